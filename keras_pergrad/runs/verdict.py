"""The outcome of a comparison in sentences."""

import numpy as np

from keras_pergrad.runs.divergence_words import divergence, steps_of
from keras_pergrad.runs.effect_words import effect
from keras_pergrad.runs.wording import listed, number, relative

_MOST = 6
# Nondeterminism begins with rounding; other weights differ at once.
_NO_REPEAT = 0.5


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
    groups = [effect(e, _broken(c, (e.first, e.second))) for e in c.groups]
    if len(groups) > _MOST:
        groups[_MOST:] = [f"{len(c.groups) - _MOST} more pairs of groups."]
    return [*groups, *_consistency(c), *_sampling(c), *_divergences(c)]


def _broken(c, groups=None):
    """The runs (of some groups) with gradients that are not finite."""
    return [
        run["name"]
        for run in c.runs
        if run["first_not_finite"] is not None
        and (groups is None or run["group"] in groups)
    ]


def _of_the_norm(c, distances):
    finite = " (where finite)" if _broken(c) else ""
    return f"{relative(typical(distances))} of the gradient's norm{finite}"


def _consistency(c):
    count = f"The {len(c.runs)} runs"
    apart = c.apart[np.triu_indices(len(c.runs), 1)]
    if np.isnan(apart).all():
        return ["At no common step is a gradient finite and not zero."]
    if np.nanmax(apart) == 0:
        return [_equal(c)]
    if c.seeds > 1:
        return [_seeds(c)]
    how_far = _of_the_norm(c, c.data["distance"])
    if c.repeated == len(c.runs):
        return [
            f"{count} repeat one seed, and yet are apart by {how_far}, "
            "by nondeterminism or a fault."
        ]
    return [f"{count} of one seed are apart by {how_far}."]


def _equal(c):
    """Of runs between which no distance was seen."""
    (everything,) = [d for d in c.divergences if len(d.runs) == len(c.runs)]
    count = f"the {len(c.runs)} runs"
    but = _exceptions(c, [everything])
    if but:
        two = count if len(c.runs) == 2 else f"two of {count}"
        return (
            f"Where {two} were compared, their gradients are the same in "
            f"every bit recorded; but {but}."
        )
    return (
        f"The {len(c.runs)} runs have the same gradients at "
        f"{steps_of(everything)}, in every bit recorded."
    )


def _seeds(c):
    """How seeds and repeats differ."""
    distance, repeats = c.data["distance"], c.data["repeat_distance"]
    known = all(run["seed"] is not None for run in c.runs)
    whose = "of different seeds" if known else "of different or unknown seeds"
    apart = typical(distance)
    said = (
        f"Runs {whose} share no step at which gradients are finite and not zero"
        if np.isnan(apart)
        else f"Runs {whose} are apart by {_of_the_norm(c, distance)}"
    )
    sets = [d for d in c.divergences if d.repeats]
    if not c.repeated:
        why = "No run repeats another"
        if sets:
            why = "No two repeats of a seed could be compared"
        return (
            f"{said}. {why}, so what is the seed and what is "
            "nondeterminism cannot be told apart: train one seed twice."
        )
    if typical(repeats) == 0:
        but = _exceptions(c, sets)
        if but:
            return (
                f"{said}; where repeats of a seed were compared, they are "
                f"equal in every bit recorded, but {but}."
            )
        said = f"{said}; repeats of a seed are equal in every bit recorded"
        if np.isnan(apart):
            return f"{said}."
        return f"{said}: the seeds explain all of it, nondeterminism none."
    first = repeats[np.isfinite(repeats)][0]
    how_far = f"repeats of a seed by {relative(typical(repeats))}"
    if np.isnan(apart):
        return f"{said}; {how_far.replace(' by', ' are apart by')}."
    if first > _NO_REPEAT * apart:
        return (
            f"{said}, and {how_far} from their first step on: as if the seed "
            "had not been set again before each run, with "
            "keras.utils.set_random_seed."
        )
    both = np.isfinite(repeats) & np.isfinite(distance) & (distance > 0)
    if not both.any():
        return f"{said}, {how_far}."
    share = middle((repeats[both] / distance[both]) ** 2)
    return (
        f"{said}, {how_far}: nondeterminism explains "
        f"{relative(min(share, 1.0))} of the variance between runs (median "
        "over the steps)."
    )


def _exceptions(c, sets):
    """What forbids to call the runs of some sets equal; "" for nothing."""
    names = [run["name"] for run in c.runs]
    chosen = sorted({names.index(name) for d in sets for name in d.runs})
    broken = {
        names[r]: c.runs[r]["first_not_finite"]
        for r in chosen
        if c.runs[r]["first_not_finite"] is not None
    }
    found = []
    if broken:
        word = "gradient of" if len(broken) == 1 else "gradients of"
        verb = "is" if len(broken) == 1 else "are"
        found.append(
            f"the {word} {listed(broken)} {verb} not finite (first at step "
            f"{min(broken.values())})"
        )
    elif any(_unknown(c, [names.index(name) for name in d.runs]) for d in sets):
        found.append(
            "not every two of them share a step with gradients that are "
            "finite and not zero"
        )
    steps = {d.differ_step for d in sets} - {None, *broken.values()}
    if steps:
        found.append(f"at step {min(steps)} two of them differ")
    return " and ".join(found)


def _unknown(c, chosen):
    apart = c.apart[np.ix_(chosen, chosen)]
    return np.isnan(apart[~np.eye(len(chosen), dtype=bool)]).any()


def _sampling(c):
    ratio = middle(c.data["sampling_ratio"])
    if np.isnan(ratio):
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
        f"{said}: the variance of such draws is {relative(ratio)} of that "
        "between runs (median), a yardstick and not a cause."
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
    broken = _broken(c)
    said = [divergence(d, c.tolerance, broken) for d in found]
    if len(said) > _MOST:
        parted = sum(d.step is not None for d in found)
        said[_MOST:] = [
            f"Of all {len(found)} such sets of runs, {parted} part."
        ]
    return said
