"""The names of gradient statistics in the logs."""

# The names that a per-sample mode logs for the training batches.
_OF_BATCHES = ("gradient_norm", "gradient_variance", "gradient_noise_scale")

#: What the progress bar shows of the probe, if not asked for more.
SHOWN = ("gradient_norm", "gradient_noise_scale")


def logged(gradient):
    """Return the values of a `BatchGradient` for the logs."""
    values = scalars(gradient)
    undefined = float("nan") if gradient.variances is not None else None
    for name in ("variance", "noise_scale", "snr"):
        if values[f"gradient_{name}"] is None:
            values[f"gradient_{name}"] = undefined
    return {name: v for name, v in values.items() if v is not None}


def scalars(gradient):
    """Return the figures of a `BatchGradient`, None where one is undefined."""
    return {
        "gradient_norm": gradient.norm,
        "gradient_variance": gradient.variance,
        "gradient_noise_scale": gradient.noise_scale,
        "gradient_snr": gradient.snr,
        "gradient_repeat_deviation": gradient.repeat_deviation,
        "bitwise_equal_variables": gradient.bitwise_equal_variables,
    }


def hidden(name, figures, shown):
    """Whether one of the probe's figures is left out of the progress bar."""
    if name.startswith("train_gradient_"):
        return True
    return name in figures and name not in SHOWN and name not in shown


def set_apart(logs):
    """Set the training batches' statistics apart from the probe's."""
    for name in _OF_BATCHES:
        if logs and name in logs:
            logs[f"train_{name}"] = logs.pop(name)
