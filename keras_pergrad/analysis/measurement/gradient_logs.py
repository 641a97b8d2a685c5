"""The names of gradient statistics in the logs."""

# The names that a per-sample mode logs for the training batches.
_OF_BATCHES = ("gradient_norm", "gradient_variance", "gradient_noise_scale")

# The progress bar shows only the probe's norm and noise scale.
_HIDDEN = (
    "gradient_variance",
    "gradient_snr",
    "gradient_repeat_deviation",
    "bitwise_equal_variables",
)


def logged(found):
    """Return the values of a `BatchGradient` for the logs."""
    values = {
        "gradient_norm": found.norm,
        "gradient_repeat_deviation": found.repeat_deviation,
        "bitwise_equal_variables": found.bitwise_equal_variables,
    }
    values = {k: v for k, v in values.items() if v is not None}
    if found.variances is not None:
        for name in ("variance", "noise_scale", "snr"):
            value = getattr(found, name)
            values[f"gradient_{name}"] = (
                float("nan") if value is None else value
            )
    return values


def hidden(name, value):
    """Whether a figure of the probe is left out of the progress bar."""
    del value
    return name in _HIDDEN or name.startswith("train_gradient_")


def set_apart(logs):
    """Set the training batches' statistics apart from the probe's."""
    for name in _OF_BATCHES:
        if logs and name in logs:
            logs[f"train_{name}"] = logs.pop(name)
