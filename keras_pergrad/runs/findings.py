"""Findings of a comparison, as data and as sentences."""

import dataclasses
import string

import numpy as np

from keras_pergrad.runs.effects import REPEATS

# Nondeterminism begins with rounding; other weights differ at once.
_NO_REPEAT = 0.5
_MOST = 6
_MOST_NAMED = 5

# {share} is a share of something, {list} a list of names.
_PHRASES = {
    "bits": "in every bit recorded",
    "norm": "of the gradient's norm",
    "meet": "share no step with gradients that are finite and not zero",
    "where": "Where they were compared,",
    "but": "with the exceptions below",
}
TEXTS = {
    # Two groups.
    "groups_not_compared": "{first} and {second} could not be compared: they "
    "{meet}.",
    "groups_confounded": "{first} and {second} differ by {distance:share} "
    "{norm}, but so do their seeds: train one seed in both, twice in one.",
    "groups_without_yardstick": "{first} and {second} differ by "
    "{distance:share} {norm}{pairing}. Train a seed twice in one of them.",
    "groups_equal": "{first} and {second} have the same gradients{pairing}, "
    "{bits}.",
    "groups_differ_from_equal": "{first} and {second} differ by "
    "{distance:share} {norm}{pairing}; {yardstick} are equal {bits}.",
    "groups_undecided": "{first} and {second} differ by {ratio:.2g} times "
    "what {yardstick} differ by{pairing}; chance cannot be judged, since some "
    "runs share no step.",
    "groups_differ": "{first} and {second} differ by {ratio:.2g} times what "
    "{yardstick} differ by{pairing} (p {probability:p}).",
    "groups_alike": "{first} and {second} show no difference beyond {noise}: "
    "{ratio:.2g} times what {yardstick} differ by{pairing} "
    "(p {probability:p}).",
    "besides": "They also differ in {besides:list}.",
    "more_groups": "{count} more pairs of groups.",
    # All runs.
    "nothing_compared": "No two runs share a step with gradients that are "
    "finite and not zero.",
    "all_equal": "All {count} runs have the same gradients at {steps}, {bits}.",
    "equal_where_compared": "{where} the {count} runs have the same gradients "
    "{bits}, {but}.",
    "repeats_apart": "The {count} runs repeat one seed, and yet differ by "
    "{distance:share} {norm}: nondeterminism or a fault.",
    "one_seed": "{count} runs of one seed differ by {distance:share} {norm}.",
    "seeds": "Runs of {whose} differ by {distance:share} {norm}.",
    "seeds_not_compared": "Runs of {whose} {meet}.",
    # Repeats, next to seeds.
    "no_repeats": "No run repeats another: train one seed twice to tell its "
    "part from that of nondeterminism.",
    "repeats_not_compared": "No two repeats of a seed could be compared: the "
    "seed's part and that of nondeterminism cannot be told apart.",
    "repeats_equal": "Repeats of a seed are equal {bits}: the seeds explain "
    "all of it, nondeterminism none.",
    "repeats_equal_alone": "Repeats of a seed are equal {bits}.",
    "repeats_equal_where_compared": "{where} repeats of a seed are equal "
    "{bits}, {but}.",
    "repeats_not_repeated": "Repeats of a seed differ by {repeats:share} from "
    "the first step on: call keras.utils.set_random_seed before each run.",
    "repeats": "Repeats of a seed differ by {repeats:share}: nondeterminism "
    "explains {explained:share} of the variance between runs (median).",
    "repeats_alone": "Repeats of a seed differ by {repeats:share}.",
    # Exceptions.
    "not_finite": "Gradients that are not finite are left out: {runs:list}.",
    "never_meet": "Some runs {meet}.",
    # Batches.
    "sampling": "Two batches of {samples} samples at equal weights would "
    "differ by {distance:share} ({ratio:share} of the runs' variance, median): "
    "a yardstick, not a cause.",
    "sampling_of_one_seed": "Two batches of {samples} samples at equal "
    "weights would differ by {distance:share}, {times:.3g} times as much as "
    "these runs.",
    # Divergence.
    "no_common_step": "{who} have no step in common and could not be compared.",
    "equal": "{who} are equal at {steps}, {bits}.",
    "within": "{who} stay within {tolerance:g} of each other at {steps} (at "
    "most {largest:.0e}; they differ in some bit from step {differ_step} on).",
    "apart_from_start": "{who} differ from their first common step ({step}) "
    "on, most in {variable}, by {size:share} of its norm.",
    "part": "{who} part at step {step}, first in {variable}, by {size:share} "
    "of its norm; before, they are {before}.",
    "odd": "{odd} is the odd one.",
    "ends": "{ends:list}.",
    "more_sets": "Of all {count} such sets of runs, {parted} part.",
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that a comparison found; `str` gives its sentences.

    Attributes:
        kinds: keys of `TEXTS`, one a sentence; the first tells what it is.
        values: what the sentences say, by name.
    """

    kinds: tuple[str, ...]
    values: dict

    @property
    def kind(self):
        return self.kinds[0]

    def __str__(self):
        texts = " ".join(TEXTS[kind] for kind in self.kinds)
        return _Words().vformat(texts, (), _PHRASES | self.values)


def _finding(*kinds, **values):
    return Finding(kinds, values)


class _Words(string.Formatter):
    """Formats shares, probabilities and lists."""

    def format_field(self, value, format_spec):
        if format_spec == "share":
            return share(value)
        if format_spec == "p":
            return "< 0.001" if value < 0.001 else f"= {value:.2g}"
        if format_spec == "list":
            return listed(value)
        return super().format_field(value, format_spec)


def share(value):
    """Return a share of something: "12 %", "0.3 %", "4e-07", "0"."""
    if not np.isfinite(value):
        return "–" if np.isnan(value) else "∞"
    if value == 0:
        return "0"
    if value < 0.001:
        return f"{value:.0e}"
    return f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def listed(words, most=_MOST_NAMED):
    """Return "a, b and c"; of more than `most` words the number left out."""
    words = list(map(str, words))
    if len(words) > most:
        words[most:] = [f"{len(words) - most} more"]
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def typical(values):
    """Return the root mean square over the steps at which it is defined."""
    return float(np.sqrt(_defined(values**2, np.mean)))


def middle(values):
    """Return the median over the steps at which it is defined."""
    return float(_defined(values, np.median))


def _defined(values, summary):
    values = values[np.isfinite(values)]
    return summary(values) if len(values) else np.nan


def findings(comparison):
    """Return what a `RunComparison` found, the most important first."""
    c = comparison
    groups = [_group(effect) for effect in c.groups[:_MOST]]
    if len(c.groups) > _MOST:
        groups.append(_finding("more_groups", count=len(c.groups) - _MOST))
    of_all = [*_consistency(c), *_not_finite(c)]
    return [*groups, *of_all, *_sampling(c), *_divergences(c)]


def _group(e):
    if np.isnan(e.distance) or (e.yardstick and np.isnan(e.floor)):
        kind = "groups_not_compared"
    elif e.confounded:
        kind = "groups_confounded"
    elif e.yardstick is None:
        kind = "groups_without_yardstick"
    elif e.floor == 0:
        same = e.distance == 0
        kind = "groups_equal" if same else "groups_differ_from_equal"
    elif e.probability is None:
        kind = "groups_undecided"
    else:
        kind = "groups_differ" if e.real else "groups_alike"
    return _finding(
        *([kind, "besides"] if e.besides else [kind]),
        **vars(e),
        pairing=" at equal seeds" if e.paired else "",
        noise="nondeterminism" if e.yardstick == REPEATS else "seed noise",
    )


def _consistency(c):
    apart = c.apart[np.triu_indices(len(c.runs), 1)]
    count, distance = len(c.runs), typical(c.data["distance"])
    (everything,) = [d for d in c.divergences if len(d.runs) == count]
    if np.isnan(apart).all():
        return [_finding("nothing_compared")]
    if np.nanmax(apart) == 0:
        exceptions = _exceptions(c, [everything])
        kind = "equal_where_compared" if exceptions else "all_equal"
        steps = _steps(everything)
        return [_finding(kind, count=count, steps=steps), *exceptions]
    if c.seeds == 1:
        kind = "repeats_apart" if c.repeated == count else "one_seed"
        return [_finding(kind, count=count, distance=distance)]
    known = all(run["seed"] is not None for run in c.runs)
    kind = "seeds_not_compared" if np.isnan(distance) else "seeds"
    whose = "different seeds" if known else "different or unknown seeds"
    first = _finding(kind, whose=whose, distance=distance)
    return [first, *_repeats(c, distance)]


def _repeats(c, apart):
    """Return findings on how repeats differ, if there are several seeds."""
    distance, repeats = c.data["distance"], c.data["repeat_distance"]
    sets = [d for d in c.divergences if d.repeats]
    if not c.repeated:
        return [_finding("repeats_not_compared" if sets else "no_repeats")]
    mine = typical(repeats)
    if mine == 0:
        exceptions = _exceptions(c, sets)
        if exceptions:
            return [_finding("repeats_equal_where_compared"), *exceptions]
        alone = np.isnan(apart)
        return [_finding("repeats_equal_alone" if alone else "repeats_equal")]
    if repeats[np.isfinite(repeats)][0] > _NO_REPEAT * apart:
        return [_finding("repeats_not_repeated", repeats=mine)]
    both = np.isfinite(repeats) & np.isfinite(distance) & (distance > 0)
    if not both.any():
        return [_finding("repeats_alone", repeats=mine)]
    explained = middle((repeats[both] / distance[both]) ** 2)
    return [_finding("repeats", repeats=mine, explained=min(explained, 1.0))]


def _exceptions(c, sets):
    """Return findings against calling these sets equal at every step."""
    chosen = {name for d in sets for name in d.runs}
    broken = {k: step for k, step in _broken(c).items() if k in chosen}
    exceptions = []
    if broken:
        exceptions += _not_finite(c)
    elif any(_unknown(c, d.runs) for d in sets):
        exceptions.append(_finding("never_meet"))
    known = (None, *broken.values())
    differing = [d for d in sets if d.differ_step not in known]
    return exceptions + [_divergence(d, c.tolerance) for d in differing]


def _unknown(c, names):
    """Return whether any two of these runs have no distance."""
    chosen = [i for i, run in enumerate(c.runs) if run["name"] in names]
    apart = c.apart[np.ix_(chosen, chosen)]
    return np.isnan(apart[~np.eye(len(chosen), dtype=bool)]).any()


def _broken(c):
    """Return the first step that is not finite of each run with one."""
    steps = {run["name"]: run["first_not_finite"] for run in c.runs}
    return {name: step for name, step in steps.items() if step is not None}


def _not_finite(c):
    runs = [f"{name} (from step {step})" for name, step in _broken(c).items()]
    return [_finding("not_finite", runs=runs)] if runs else []


def _sampling(c):
    ratio = middle(c.data["sampling_ratio"])
    if np.isnan(ratio):
        return []
    distance = typical(c.data["sampling_distance"])
    values = {"samples": c.samples, "distance": distance, "ratio": ratio}
    if c.seeds > 1:
        return [_finding("sampling", **values)]
    # Repeats see the same batches: sampling explains nothing.
    times = distance / typical(c.data["distance"])
    return [_finding("sampling_of_one_seed", **values, times=times)]


def _divergences(c):
    # It is obvious that seeds differ from the start.
    chosen = [
        d
        for d in c.divergences
        if d.common or c.seeds == 1 or d.step != d.first_step
    ]
    # Small sets (repeats) come first; of equal sizes, the first to part.
    chosen.sort(
        key=lambda d: (len(d.runs), np.inf if d.step is None else d.step)
    )
    shown = [_divergence(d, c.tolerance) for d in chosen]
    if len(shown) > _MOST:
        parted = sum(d.step is not None for d in chosen)
        shown[_MOST:] = [_finding("more_sets", count=len(shown), parted=parted)]
    return shown


def _divergence(d, tolerance):
    extra = [kind for kind in ("odd", "ends") if getattr(d, kind)]
    if d.first_step is None:
        kind, extra = "no_common_step", []
    elif d.differ_step is None:
        kind = "equal"
    elif d.step is None:
        kind = "within"
    else:
        kind = "apart_from_start" if d.step == d.first_step else "part"
    variable, size = d.variables[0] if d.variables else (None, None)
    equal = d.differ_step == d.step
    runs = f"{len(d.runs)} runs"
    values = vars(d) | {
        "who": f"The {runs} of {d.common}" if d.common else f"All {runs}",
        "steps": _steps(d),
        "tolerance": tolerance,
        "variable": variable,
        "size": size,
        "before": "equal in every bit" if equal else f"within {tolerance:g}",
        "ends": [f"{name} ends at step {step}" for name, step in d.ends],
    }
    return _finding(kind, *extra, **values)


def _steps(d):
    """Say at which steps the runs were compared."""
    if not d.ends:
        return "every step"
    both = "both" if len(d.runs) == 2 else "two of them"
    return f"every step that {both} have"
