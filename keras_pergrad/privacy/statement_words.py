"""The words for private training, for those who read it."""

_NORM_SCOPES = {
    "variable": ", each variable to its equal part of that",
    "layer": ", each layer to its equal part of that",
}


def describe_clipping(clipping):
    """Say how gradients are clipped, from the `Clipping` of a `Mechanism`."""
    name, config = clipping.name, clipping.config
    norm = _format_value(config.get("clip_norm"))
    if name == "AutomaticClippedMean":
        words = f"gradients scaled to norm {norm} (automatic clipping)"
    elif name == "AdaptiveClippedMean":
        words = (
            f"gradients clipped to norm {norm} at first, which then follows "
            f"the {_format_value(config['quantile'])} quantile of their norms"
        )
    elif name == "ClippedMean":
        words = f"gradients clipped to norm {norm}"
    else:
        words = f"gradients clipped by {name}, clip_norm {norm}"
    return words + _NORM_SCOPES.get(config.get("per"), "")


def describe_views(count):
    """Say how many views a gradient is the mean of, if there are several."""
    if count == 1:
        return ""
    return f", each the mean over {count} augmented views of its example"


def describe_noise(values):
    """Say how large the noise multipliers are, from the least and the most."""
    least, most = values
    return f"{least:.4g}" if least == most else f"{least:.4g} to {most:.4g}"


def describe_strategy(strategy):
    """Say how noise is correlated, from the dict of a `Strategy` or None."""
    if strategy is None:
        return ""
    kind = strategy["kind"].replace("_", " ")
    count = len(strategy["coefficients"])
    return f", correlated over {count} steps ({kind} strategy)"


def describe_plan(private):
    """Return the lines that a `PrivateTraining` prints."""
    m, steps = private.mechanism, private.steps
    budget = private.target_epsilon
    epsilon, planned = "see epsilon(steps)", "not planned"
    if steps:
        spent = private.epsilon()
        epsilon = f"{spent:.4g} after these steps"
        planned = f"{steps} ({steps / m.steps_per_epoch:g} epochs)"
        if budget and spent > budget:
            epsilon += ", which training stops before"
    if budget:
        epsilon += f", budget {budget:g}"
    rows = {
        "steps": planned,
        "batches": f"{m.batch_size} of {m.examples} examples, {m.sampling}",
        "clipping": describe_clipping(m.clipping)
        + describe_views(m.augmentations),
        "noise": f"{describe_noise(m.noise_range(steps or 1))} times that norm"
        f"{describe_strategy(m.to_dict()['strategy'])}",
        "unit": _describe_unit(m),
        "epsilon": epsilon,
        "delta": f"{private.delta:g}",
    }
    lines = [f"  {head:<9} {text}" for head, text in rows.items()]
    return "\n".join(["Private training (DP-SGD)", *lines])


def _describe_unit(mechanism):
    """Say whom the guarantee is for."""
    if mechanism.unit == "user":
        count = mechanism.examples_per_user
        return f"a user, with at most {count} example{'s' * (count > 1)}"
    if mechanism.unit == "unique":
        return "an example, each of another person"
    return "an example, of which a person may have several"


def _format_value(value):
    """Return a number in few figures; a schedule by its class."""
    if isinstance(value, dict):
        return f"of a schedule ({value['class_name']})"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
