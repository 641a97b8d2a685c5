"""The outcome of a comparison in sentences, and numbers in words."""

import numpy as np

from keras_pergrad.runs.effects import REPEATS

_MOST = 6
# Nondeterminism begins with rounding; other weights differ at once.
_NO_REPEAT = 0.5


def relative(value):
    """A share of something: "12 %", "0.3 %", "4e-07", "0"."""
    if not np.isfinite(value):
        return "–" if np.isnan(value) else "∞"
    if value == 0:
        return "0"
    if value < 0.001:
        return f"{value:.0e}"
    return f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def number(value, figures=3):
    """A number to some figures; a dash for none."""
    return "–" if np.isnan(value) else f"{value:.{figures}g}"


def typical(values):
    """The root mean square over the steps at which it is defined."""
    values = values[np.isfinite(values)]
    return float(np.sqrt((values**2).mean())) if len(values) else np.nan


def middle(values):
    """The median over the steps at which it is defined."""
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else np.nan


def sentences(comparison):
    """What was found, the most important first."""
    c = comparison
    groups = [effect(e) + _besides(e) for e in c.groups]
    if len(groups) > _MOST:
        groups[_MOST:] = [f"{len(c.groups) - _MOST} more pairs of groups."]
    return [*groups, *_consistency(c), *_sampling(c), *_divergences(c)]


def _consistency(c):
    count = f"The {len(c.runs)} runs"
    apart = c.apart[np.triu_indices(len(c.runs), 1)]
    if np.isnan(apart).all():
        return ["At no common step is a gradient finite and not zero."]
    if np.nanmax(apart) == 0:
        return [
            f"{count} have the same gradients at every step, in every bit "
            "recorded."
        ]
    distance, repeats = c.data["distance"], c.data["repeat_distance"]
    how_far = f"{relative(typical(distance))} of the gradient's norm"
    if c.seeds == 1:
        if c.repeated == len(c.runs):
            return [
                f"{count} repeat one seed, and yet are apart by {how_far}, "
                "by nondeterminism or a fault."
            ]
        return [f"{count} of one seed are apart by {how_far}."]
    known = all(run["seed"] is not None for run in c.runs)
    whose = "of different seeds" if known else "of different or unknown seeds"
    said = f"Runs {whose} are apart by {how_far}"
    if not c.repeated:
        return [
            f"{said}. No run repeats another, so what is the seed and what "
            "is nondeterminism cannot be told apart: train one seed twice."
        ]
    if typical(repeats) == 0:
        return [
            f"{said}; repeats of a seed are equal in every bit recorded: "
            "the seeds "
            "explain all of it, nondeterminism none."
        ]
    both = np.isfinite(repeats) & np.isfinite(distance) & (distance > 0)
    share = middle((repeats[both] / distance[both]) ** 2)
    first = repeats[np.isfinite(repeats)][0]
    if first > _NO_REPEAT * typical(distance):
        return [
            f"{said}, and repeats of a seed by {relative(typical(repeats))} "
            "from their first step on: as if the seed had not been set again "
            "before each run, with keras.utils.set_random_seed."
        ]
    return [
        f"{said}, repeats of a seed by {relative(typical(repeats))}: "
        f"nondeterminism explains {relative(min(share, 1.0))} of the "
        "variance between runs (median over the steps)."
    ]


def _sampling(c):
    share = middle(c.data["sampling_share"])
    if np.isnan(share):
        return []
    moves = typical(c.data["sampling_distance"])
    said = (
        f"Two batches of {c.samples} samples at equal weights would be apart "
        f"by {relative(moves)}"
    )
    if c.seeds == 1:  # repeats see the same batches: it explains nothing
        times = moves / typical(c.data["distance"])
        return [f"{said}, {number(times)} times as far as these runs."]
    return [
        f"{said}: sampling of that size explains {relative(share)} of the "
        "variance between runs (median)."
    ]


def _divergences(c):
    # That seeds differ from the start needs no saying.
    found = [
        d
        for d in c.divergences
        if d.common or c.seeds == 1 or d.step != d.first_step
    ]
    # Repeats come first; among sets alike the one that parts first.
    found.sort(
        key=lambda d: (len(d.runs), np.inf if d.step is None else d.step)
    )
    said = [divergence(d, c.tolerance) for d in found]
    if len(said) > _MOST:
        parted = sum(d.step is not None for d in found)
        said[_MOST:] = [
            f"Of all {len(found)} such sets of runs, {parted} part."
        ]
    return said


def divergence(d, tolerance):
    """One `Divergence` in a sentence."""
    runs = f"{len(d.runs)} runs"
    who = f"The {runs} of {d.common}" if d.common else f"All {runs}"
    if d.differ_step is None:
        return f"{who} are equal at every step, in every bit recorded."
    if d.step is None:
        return (
            f"{who} stay within {tolerance:g} of each other at every step "
            f"(at most {d.largest:.0e}; not equal in every bit from step "
            f"{d.differ_step} on)."
        )
    path, size = d.variables[0]
    where = f"in {path}, by {relative(size)} of its norm"
    odd = f"; {d.odd} is the odd one" if d.odd else ""
    if d.step == d.first_step:
        when = f"differ from their first common step ({d.step}) on"
        return f"{who} {when}, most {where}{odd}."
    before = (
        "equal in every bit before"
        if d.differ_step == d.step
        else f"within {tolerance:g} before"
    )
    return f"{who} part at step {d.step} ({before}), first {where}{odd}."


def effect(e):
    """One `Effect` in a sentence."""
    who = f"{e.first} and {e.second}"
    seed = " at equal seeds" if e.paired else ""
    apart = f"{who} are {relative(e.distance)} of the gradient's norm apart"
    if e.confounded:
        return (
            f"{apart}, but no two runs differ in the group alone: train the "
            "same seed in both groups, twice in one of them."
        )
    if e.yardstick is None:
        return (
            f"{apart}{seed}; train a seed twice in one group to know what is "
            "normal."
        )
    if e.floor == 0:
        if e.distance == 0:
            return (
                f"{who} have the same gradients{seed}, in every bit recorded."
            )
        return f"{apart}{seed}, where {e.yardstick} are equal in every bit."
    chance = "" if e.probability is None else f", p {_p(e.probability)}"
    if e.real:
        return (
            f"{who} differ by {e.ratio:.2g} times what {e.yardstick} differ "
            f"by{seed}{chance}."
        )
    noise = "nondeterminism" if e.yardstick == REPEATS else "seed noise"
    return (
        f"{who}: no difference beyond {noise} ({e.ratio:.2g} times what "
        f"{e.yardstick} differ by{seed}{chance})."
    )


def _besides(e):
    if not e.besides:
        return ""
    return f" They differ in {' and '.join(e.besides)}, too."


def _p(probability):
    if probability < 0.001:
        return "< 0.001"
    return f"= {probability:.2g}"
