"""The words for private training, for those who read it."""

import math

from keras_pergrad.privacy.mechanism import UNIQUE, Clipping
from keras_pergrad.privacy.trade_off import MU_DELTA

_NORM_SCOPES = {
    "variable": ", each variable to its equal part of that",
    "layer": ", each layer to its equal part of that",
}


#: Above it nothing is promised that would protect anyone.
_MAX_EPSILON = 20.0


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


def is_trained(entries):
    """Return whether a step was made, or is planned."""
    return entries["planned"] or any(p["steps"] for p in entries["phases"])


def describe_guarantee(entries):
    """Return the guarantee in the field's terms, and when it does not hold."""
    verb = "will be" if entries["planned"] else "is"
    epsilon, delta = f"{entries['epsilon']:.4g}", f"{entries['delta']:.3g}"
    sentences = [
        "The model was not trained privately: no update was made, so "
        "no epsilon was spent, and nothing is guaranteed beyond what held "
        "before."
    ]
    if is_trained(entries):
        sentences = [
            f"The weights {'would be' if entries['planned'] else 'are'} "
            f"({epsilon}, {delta})-differentially private: for data sets that "
            f"differ by {entries['neighbours']}, the probability of any set of "
            f"results with one is at most e^{epsilon} times that with the "
            f"other, plus {delta}. Epsilon {verb} computed by dp-accounting "
            f"({entries['accountant']})."
        ]
    if entries["outside"]:
        sentences.append(
            "THIS DOES NOT HOLD if the examples were used when the weights "
            "were changed without privacy in between: in another gradient "
            "mode, in a custom loop, through a model that shares layers, or by "
            "weights that were set or loaded from elsewhere."
        )
    return sentences


def describe_plainly(entries):
    """Return the guarantee for readers who have never heard of epsilon."""
    factor = factor_in_words(entries["epsilon"])
    if factor is None:
        return (
            f"Epsilon is {entries['epsilon']:.4g}: so large a number bounds "
            "no conclusion in a way that protects anyone."
        )
    who, used = {
        "user": ("one user", "that user's examples were"),
        UNIQUE: ("one person", "that person's example was"),
    }.get(_unit(entries), ("one example", "that example was"))
    condition = f"whether {used} used or not"
    if "another" in entries["neighbours"]:
        condition = f"whatever {used} replaced by"
    # Rounded down: a larger probability than delta.
    chance = math.floor(1 / entries["delta"] * (1 + 1e-9))
    return (
        f"No conclusion that anyone can draw from the weights about {who} "
        f"{'would change' if entries['planned'] else 'changes'} its "
        f"probability by more than a factor of {factor}, {condition}, except "
        f"for a probability of at most 1 in {chance:,} that may be added."
    )


def describe_level(entries):
    """Say whom the guarantee is for: examples, persons or users."""
    unit = _unit(entries)
    if unit == "user":
        most = max(p["samples_per_user"] for p in entries["phases"])
        return (
            "User-level privacy: it protects all examples of one user, at most "
            f"{most} of which are used."
        )
    if unit == UNIQUE:
        return (
            "Example-level privacy, where each example comes from a different "
            "person, as those who trained the model state."
        )
    return (
        "Example-level privacy: it protects one example. A person with several "
        "examples has less protection."
    )


def factor_in_words(epsilon):
    """Return e^epsilon as text, rounded up; None: too large to protect."""
    if epsilon > _MAX_EPSILON:
        return None
    factor = math.exp(epsilon)
    digits = max(2 - math.floor(math.log10(factor)), -12)
    scale = 10.0**digits
    rounded = math.ceil(factor * scale * (1 - 1e-12)) / scale
    return f"{rounded:,.{max(digits, 0)}f}"


def _unit(entries):
    """Return "user", "unique" or "example", as the weakest phase has it."""
    units = {p.get("unit", entries["unit"]) for p in entries["phases"]}
    return UNIQUE if units == {UNIQUE} else entries["unit"]


def describe_trade_off(entries):
    """Yield what all pairs of epsilon and delta together say, in words."""
    if "true_positive_rates" not in entries:
        return  # It was saved before this was stated.
    first, *others = attacker_rates(entries)
    unit = entries["unit"]
    yield (
        f"An attacker who infers from the weights which {unit}s were used, "
        f"and wrongly accuses {first[0]} {unit}s that were not used, "
        f"identifies at most {first[1]} of those that were; "
        + ", ".join(f"with {wrong} at most {found}" for wrong, found in others)
        + "."
    )
    pairs = [f"{e:.4g} at {delta:g}" for delta, e in entries["epsilons"]]
    yield f"Epsilon for other values of delta: {', '.join(pairs)}."
    if entries["mu"] is not None:
        yield (
            "As Gaussian differential privacy: mu is "
            f"{entries['mu']:.4g}, except with a probability of {MU_DELTA:g}."
        )


def attacker_rates(entries):
    """Return pairs ("1 in 100", "6.26 %"): wrongly accused, found at most."""
    return [
        (f"1 in {1 / wrong:,.0f}", f"{100 * found:.3g} %")
        for wrong, found in entries["true_positive_rates"]
    ]


def describe_origin(entries):
    """Yield the date, the versions, and the SHA-256 of what is published."""
    if "date" in entries:  # absent from those saved before it was noted
        versions = ", ".join(f"{k} {v}" for k, v in entries["versions"].items())
        yield f"Made on {entries['date']} (UTC) with {versions}."
    if entries.get("weights_sha256"):
        yield f"SHA-256 of the weights file: {entries['weights_sha256']}"


def each_phase(entries):
    """Return what was done in each phase, a string each."""
    return [_describe_phase(phase) for phase in entries["phases"]]


def _describe_phase(phase):
    return (
        f"{phase['steps']} steps, sampling={phase['sampling']!r}, batches of "
        f"{phase['batch_size']} from {phase['samples']} examples, "
        f"{describe_clipping(Clipping.from_json(phase['clipping']))}"
        f"{describe_views(phase.get('augmentations', 1))}, noise multiplier "
        f"{describe_noise(phase['noise_multiplier'])}"
        f"{describe_strategy(phase.get('strategy'))}"
        f"{_describe_search(phase.get('search'))}"
    )


def _describe_search(search):
    """Say of what search a phase is the best trial; "" of none."""
    if not search:
        return ""
    score = "on public data"
    if search["score_noise"] is not None:
        score = (
            "on protected examples, with noise of standard deviation "
            f"{search['score_noise']:g} on the number of right answers"
        )
    return (
        "; the best of a random number of such trials "
        f"({search['distribution']}, with a mean of "
        f"{search['expected_trials']:g}), by a score {score}"
    )


def _describe_unit(mechanism):
    """Say whom the guarantee is for."""
    if mechanism.unit == "user":
        count = mechanism.examples_per_user
        return f"a user, with at most {count} example{'s' * (count > 1)}"
    if mechanism.unit == "unique":
        return "an example, each from a different person"
    return "an example, and a person may have several"


def _format_value(value):
    """Return a number in few figures; a schedule by its class."""
    if isinstance(value, dict):
        return f"of a schedule ({value['class_name']})"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
