"""The verdict on a profiled pipeline, and where its figures disagree."""

from keras_pergrad.analysis.pipelines.diagnosis import (
    SMALL_SHARE,
    SMALL_WAIT_MS,
    digits,
)

# Two measurements of the same rate differ by less, even on a busy machine.
NOISE = 0.1


def verdict(profile):
    """Say in one line whether the pipeline of a profile is the bottleneck."""
    pipeline = profile.pipeline_batches_per_s
    model = profile.model_batches_per_s
    if model is None:
        return (
            f"none without a model: the pipeline gives {digits(pipeline)} "
            f"batches/s{_best_change(profile)}"
        )
    ratio = pipeline / model
    lost, wait = profile.stall_fraction or 0.0, profile.wait_ms or 0.0
    if lost <= SMALL_SHARE or wait < SMALL_WAIT_MS:
        return (
            f"not the bottleneck: the pipeline gives {_times(ratio)} what the "
            "model takes"
        )
    more = f", the pipeline gives {_times(ratio)} what it takes"
    return (
        f"the bottleneck: the model waits {lost:.0%} of the time"
        f"{_best_change(profile) or more}"
    )


def _times(ratio):
    """Say how large a ratio is: "34 times", but "4.7% of"."""
    value, unit = (ratio, " times") if ratio >= 1 else (100 * ratio, "% of")
    return (f"{value:.0f}" if value >= 10 else f"{value:.2g}") + unit


def _best_change(profile):
    """Return the change that was measured to help most, as words."""
    now = profile.together_batches_per_s
    rates = {name: each for name, (each, _) in profile.what_if.items()}
    best = max(rates, key=lambda name: rates[name], default=None)
    if best is None or rates[best] < (1 + NOISE) * now:
        return ""
    return f"; best of the changes: {best}, {_times(rates[best] / now)}"


def contradictions(profile):
    """Return a sentence for each limit that a measured rate exceeds."""
    rates = {name: each for name, (each, _) in profile.what_if.items()}
    together = {"together": profile.together_batches_per_s}
    limits = {
        "the model alone": (profile.model_batches_per_s, together | rates),
        "the pipeline alone": (profile.pipeline_batches_per_s, together),
    }
    sentences = []
    for part, (limit, faster) in limits.items():
        name = max(faster, key=lambda name: faster[name])
        if limit and faster[name] > (1 + NOISE) * limit:
            sentences.append(
                f"`{name}` gives {digits(faster[name])} batches/s, more than "
                f"{part} ({digits(limit)}), which cannot be. Differences of "
                f"{faster[name] / limit - 1:.0%} mean nothing here: measure "
                "again on a quiet machine, with more `batches`."
            )
    return sentences
