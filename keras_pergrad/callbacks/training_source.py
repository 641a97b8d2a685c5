"""Measurements on the training batch: what they cannot give is refused."""


def asked_for(source):
    """Return whether `source` is the training batch."""
    if source not in ("probe", "training"):
        raise ValueError(
            "`source` expected 'probe', a fixed batch, or 'training', the "
            f"batches that are trained on. Received: source={source!r}"
        )
    return source == "training"


def instruments_of(names, given, probe, repeats, log_dir, by_task):
    """Return the instruments that the training batch can give."""
    received = None
    if probe is not None:
        received = "a probe, which would not be measured"
    elif repeats != 1:
        received = f"repeats={repeats}, but a step runs once"
    elif by_task:
        received = "by_task=True, which takes a probe apart by its losses"
    elif log_dir is not None:
        received = (
            f"log_dir={log_dir!r}, whose runs are compared on one probe; "
            "kpg.trackers.Page, or another of the `trackers`, shows this one"
        )
    elif given != "all" and "alpha" in names:
        received = (
            "'alpha', which needs the same batch once more after the update"
        )
    if received is not None:
        raise ValueError(
            "With source='training' measurements are expected of the step "
            f"that trains, and nothing else. Received: {received}. Leave it "
            "out, or measure with source='probe'."
        )
    return tuple(name for name in names if name != "alpha")


def read_by(model, reader):
    """Return the context in which a reader reads the steps of a model."""
    read = getattr(model, "read_steps", None)
    if read is None:
        raise ValueError(
            "GradientVariance(source='training') expected a PerGradModel with "
            "gradient_mode='vectorized', as PerGradModel.from_model(model) "
            f"makes one. Received: a {type(model).__name__}. Or measure with "
            "source='probe'."
        )
    steps = int(model.steps_per_execution)
    if steps > 1:
        raise ValueError(
            "GradientVariance(source='training') expected "
            "steps_per_execution=1, or the weights around an update cannot be "
            f"seen. Received: steps_per_execution={steps}. Or measure with "
            "source='probe'."
        )
    return read(reader)
