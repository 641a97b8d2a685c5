"""Findings of a comparison, as data and as sentences, and its answer."""

import dataclasses
import string
from typing import Any

import numpy as np

from keras_pergrad.runs.divergence import outlier_index
from keras_pergrad.runs.effects import REPEATS

# Nondeterminism begins with rounding errors. Repeats that differ at their first
# step by more than this share of the distance of seeds had other weights.
_MAX_REPEAT_RATIO = 0.5
_MAX_FINDINGS = 6
_MAX_NAMED = 5

# {share} is a share of something, {list} a list of names.
TEXTS = {
    "not_compared": "{who} share no step with gradients that are finite and "
    "not zero: they could not be compared.",
    "not_finite": "Gradients that are not finite are left out: {runs:list}.",
    # Two groups.
    "groups_confounded": "{who} differ by {distance:share} of the gradient's "
    "norm, but so do their seeds: train one seed in both, twice in one.",
    "groups_without_reference": "{who} differ by {distance:share} of the "
    "gradient's norm{pairing}. Train a seed twice in one of them.",
    "groups_equal": "{who} have the same gradients{pairing}, in every bit "
    "recorded.",
    "groups_differ_from_equal": "{who} differ by {distance:share} of the "
    "gradient's norm{pairing}; {reference} are equal in every bit recorded.",
    "groups_differ": "{who} differ by {ratio:.2g} times what {reference} "
    "differ by{pairing} (p {probability:p}).",
    "groups_alike": "{who} show no difference beyond {noise}: {ratio:.2g} "
    "times what {reference} differ by{pairing} (p {probability:p}).",
    "groups_untested": "{who} differ by {ratio:.2g} times what {reference} "
    "differ by{pairing}; whether by chance is not tested, since SciPy is not "
    "installed.",
    "confounders": "They also differ in {confounders:list}.",
    # All runs.
    "all_equal": "All {count} runs have the same gradients at {steps}, in "
    "every bit recorded.",
    "equal_where_compared": "Where they were compared, {who} have the same "
    "gradients in every bit recorded, with the exceptions below.",
    "repeats_differ": "The {count} runs repeat one seed, and yet differ by "
    "{distance:share} of the gradient's norm: nondeterminism or a fault.",
    "one_seed": "{count} runs of one seed differ by {distance:share} of the "
    "gradient's norm.",
    "seeds": "{who} differ by {distance:share} of the gradient's norm.",
    # Repeats, next to seeds.
    "no_repeats": "No run repeats another: train one seed twice to "
    "separate seeds from nondeterminism.",
    "repeats_equal": "Repeats of a seed are equal in every bit recorded: the "
    "seeds explain all of it, nondeterminism none.",
    "repeats_not_repeated": "Repeats of a seed differ by {repeats:share} from "
    "the first step on: call keras.utils.set_random_seed before each run.",
    "repeats": "Repeats of a seed differ by {repeats:share}.",
    "explained": "Nondeterminism explains {explained:share} of the variance "
    "between runs (median).",
    # Batches.
    "sampling": "Two batches of {samples} samples at equal weights would "
    "differ by {distance:share} ({ratio:share} of the runs' variance, median): "
    "a reference, not a cause.",
    # Divergence.
    "equal": "{who} are equal at {steps}, in every bit recorded.",
    "within": "{who} stay within {tolerance:g} of each other at {steps} (at "
    "most {largest:.0e}; they differ in some bit from step {differ_step} on).",
    "differ_from_start": "{who} differ from their first common step ({step}) "
    "on, most in {variable}, by {size:share} of its norm.",
    "diverge": "{who} diverge at step {step}, first in {variable}, by "
    "{size:share} of its norm; before, they are {before}.",
    "outlier": "{outlier} is the outlier.",
    "ends": "{ends:list}.",
    "more": "{count} more {what}: see `comparison.{what}`.",
}
_ABNORMAL_ANSWER = (
    "The runs differ by more than seeds and nondeterminism normally cause"
)
_UNKNOWN_ANSWER = (
    "Whether the runs differ by more than seeds and nondeterminism normally "
    "cause is not known"
)
_NORMAL_ANSWER = (
    "The runs differ by no more than seeds and nondeterminism normally cause"
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that a comparison found; `str` gives its sentences.

    Attributes:
        kinds: keys of `TEXTS`, one for each sentence; the first is its kind.
        values: what the sentences say, by name.
    """

    kinds: tuple[str, ...]
    values: dict[str, Any]

    @property
    def kind(self) -> str:
        """What the finding is of: the first of `kinds`."""
        return self.kinds[0]

    def __str__(self) -> str:
        texts = " ".join(TEXTS[kind] for kind in self.kinds)
        return _FindingFormatter().vformat(texts, (), self.values)


def _finding(*kinds, **values):
    return Finding(kinds, values)


class _FindingFormatter(string.Formatter):
    """Formats shares, probabilities and lists."""

    def format_field(self, value, format_spec):
        if format_spec == "share":
            return format_share(value)
        if format_spec == "p":
            return "< 0.001" if value < 0.001 else f"= {value:.2g}"
        if format_spec == "list":
            return join_words(value)
        return super().format_field(value, format_spec)


def format_share(value):
    """Return a share of something: "12 %", "0.3 %", "4e-07", "0"."""
    if not np.isfinite(value):
        return "–" if np.isnan(value) else "∞"
    if value == 0:
        return "0"
    if value < 0.001:
        return f"{value:.0e}"
    return f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def join_words(words, most=_MAX_NAMED):
    """Return "a, b and c"; of more than `most` words the number left out."""
    words = list(map(str, words))
    if len(words) > most:
        words[most:] = [f"{len(words) - most} more"]
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def collect_findings(comparison):
    """Return what a `RunComparison` found, the most important first."""
    c = comparison
    group_findings = [_group_finding(effect) for effect in c.groups]
    items = [*_truncate(group_findings, "groups"), *_run_findings(c)]
    if not any(f.kind == "not_finite" for f in items):
        items += _nonfinite_findings(c)
    return [
        *items,
        *_sampling_findings(c),
        *_truncate(_set_findings(c), "divergences"),
    ]


def _truncate(items, attribute):
    """Return the first findings, and how many more there are."""
    if len(items) <= _MAX_FINDINGS:
        return items
    return [
        *items[:_MAX_FINDINGS],
        _finding("more", count=len(items) - _MAX_FINDINGS, what=attribute),
    ]


def _group_finding(e):
    if not e.compared:
        kind = "not_compared"
    elif e.confounded:
        kind = "groups_confounded"
    elif e.reference is None:
        kind = "groups_without_reference"
    elif e.floor == 0:
        same = e.distance == 0
        kind = "groups_equal" if same else "groups_differ_from_equal"
    elif e.untested:
        kind = "groups_untested"
    else:
        kind = "groups_differ" if e.real else "groups_alike"
    who = f"{e.first} and {e.second}"
    return _finding(
        *([kind, "confounders"] if e.confounders else [kind]),
        **vars(e),
        who=who if e.compared else f"Some runs of {who}",
        pairing=" at equal seeds" if e.paired else "",
        noise="nondeterminism" if e.reference == REPEATS else "seed noise",
    )


def _run_findings(c):
    distances = c.squared_distances[np.triu_indices(len(c.runs), 1)]
    count, distance = len(c.runs), _rms(c.data["distance"])
    (overall,) = [d for d in c.divergences if len(d.runs) == count]
    if np.isnan(distances).all():
        return [_finding("not_compared", who="All runs")]
    if np.nanmax(distances) == 0:
        steps = _describe_steps(overall)
        equal = _finding("all_equal", count=count, steps=steps)
        return _exceptions(c, [overall], f"the {count} runs") or [equal]
    if c.seeds == 1:
        kind = "repeats_differ" if c.repeated == count else "one_seed"
        return [_finding(kind, count=count, distance=distance)]
    known = all(run["seed"] is not None for run in c.runs)
    who = f"Runs of {'different' if known else 'different or unknown'} seeds"
    kind = "not_compared" if np.isnan(distance) else "seeds"
    return [
        _finding(kind, who=who, distance=distance),
        *_repeat_findings(c, distance),
    ]


def _repeat_findings(c, seed_rms):
    """Return findings on how repeats differ, if there are several seeds."""
    distance, repeats = c.data["distance"], c.data["repeat_distance"]
    sets = [d for d in c.divergences if d.repeats]
    if not c.repeated:
        no_repeats = _finding("no_repeats")
        not_compared = _finding("not_compared", who="Repeats of a seed")
        return [not_compared if sets else no_repeats]
    repeat_rms = _rms(repeats)
    if repeat_rms == 0:
        equal = _finding("repeats_equal")
        return _exceptions(c, sets, "repeats of a seed") or [equal]
    if repeats[np.isfinite(repeats)][0] > _MAX_REPEAT_RATIO * seed_rms:
        return [_finding("repeats_not_repeated", repeats=repeat_rms)]
    with np.errstate(invalid="ignore", divide="ignore"):
        explained = _median((repeats / distance) ** 2)
    if np.isnan(explained):
        return [_finding("repeats", repeats=repeat_rms)]
    values = {"repeats": repeat_rms, "explained": min(explained, 1.0)}
    return [_finding("repeats", "explained", **values)]


def _exceptions(c, sets, who):
    """Return why sets that are equal are not so at every step, if at all."""
    names = {name for d in sets for name in d.runs}
    nonfinite_steps = {
        k: step for k, step in _nonfinite_steps(c).items() if k in names
    }
    found = []
    if nonfinite_steps:
        found += _nonfinite_findings(c)
    elif any(_has_unknown_distance(c, d.runs) for d in sets):
        found.append(_finding("not_compared", who="Some runs"))
    known = (None, *nonfinite_steps.values())
    differing = [d for d in sets if d.differ_step not in known]
    found += [_set_finding(d, c.tolerance) for d in differing]
    return found and [_finding("equal_where_compared", who=who), *found]


def _has_unknown_distance(c, names):
    """Return whether any two of these runs have no distance."""
    indices = [i for i, run in enumerate(c.runs) if run["name"] in names]
    distances = c.squared_distances[np.ix_(indices, indices)]
    return np.isnan(distances[~np.eye(len(indices), dtype=bool)]).any()


def _nonfinite_steps(c):
    """Return the first step that is not finite of each run with one."""
    steps = {run["name"]: run["first_not_finite"] for run in c.runs}
    return {name: step for name, step in steps.items() if step is not None}


def _nonfinite_findings(c):
    runs = [
        f"{name} (from step {step})"
        for name, step in _nonfinite_steps(c).items()
    ]
    return [_finding("not_finite", runs=runs)] if runs else []


def _sampling_findings(c):
    ratio = _median(c.data["sampling_ratio"])
    # Repeats see the same batches: sampling explains nothing.
    if np.isnan(ratio) or c.seeds == 1:
        return []
    distance = _rms(c.data["sampling_distance"])
    values = {"samples": c.samples, "distance": distance, "ratio": ratio}
    return [_finding("sampling", **values)]


def _set_findings(c):
    # It is obvious that seeds differ from the start.
    divergences = [
        d
        for d in c.divergences
        if d.common or c.seeds == 1 or d.step != d.first_step
    ]
    # Small sets (repeats) come first; of equal sizes, the first to diverge.
    divergences.sort(
        key=lambda d: (len(d.runs), np.inf if d.step is None else d.step)
    )
    return [_set_finding(d, c.tolerance) for d in divergences]


def _set_finding(d, tolerance):
    extra = [kind for kind in ("outlier", "ends") if getattr(d, kind)]
    if d.first_step is None:
        kind, extra = "not_compared", []
    elif d.differ_step is None:
        kind = "equal"
    elif d.step is None:
        kind = "within"
    else:
        kind = "differ_from_start" if d.step == d.first_step else "diverge"
    variable, size = d.variables[0] if d.variables else (None, None)
    equal = d.differ_step == d.step
    runs = f"{len(d.runs)} runs"
    values = vars(d) | {
        "who": f"The {runs} of {d.common}" if d.common else f"All {runs}",
        "steps": _describe_steps(d),
        "tolerance": tolerance,
        "variable": variable,
        "size": size,
        "before": "equal in every bit" if equal else f"within {tolerance:g}",
        "ends": [f"{name} ends at step {step}" for name, step in d.ends],
    }
    return _finding(kind, *extra, **values)


def _describe_steps(d):
    """Say at which steps the runs were compared."""
    if not d.ends:
        return "every step"
    both = "both" if len(d.runs) == 2 else "two of them"
    return f"every step that {both} have"


def _rms(values):
    """Return the root mean square over the steps at which it is defined."""
    values = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(values**2))) if len(values) else np.nan


def _median(values):
    """Return the median over the steps at which it is defined."""
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else np.nan


def make_answer(comparison):
    """Return one sentence: more than normal, not known, or normal, and why."""
    kinds = {finding.kind for finding in comparison.findings}
    if "all_equal" in kinds:
        return "The runs do not differ in any bit recorded."
    for opening, reasons in (
        (_ABNORMAL_ANSWER, _abnormal_reasons),
        (_UNKNOWN_ANSWER, _unknown_reasons),
    ):
        for reason in reasons(comparison, kinds):
            return f"{opening}: {reason}."
    return f"{_NORMAL_ANSWER}: {_normal_reason(comparison, kinds)}."


def _abnormal_reasons(c, kinds):
    """Yield what seeds and nondeterminism do not make."""
    nonfinite_steps = _nonfinite_steps(c)
    if nonfinite_steps:
        yield f"gradients of {join_words(nonfinite_steps)} are not finite"
    # Seeds are meant to differ by more than their repeats.
    real = [e for e in c.groups if e.real and c.by != "seed"]
    if real:
        pairs = [f"{e.first} differs from {e.second}" for e in real]
        yield join_words(pairs, 3)
    if "repeats_not_repeated" in kinds:
        yield "repeats of a seed are as different as seeds from the start"
    outliers = {
        d.outlier for d in c.divergences if d.repeats and d.outlier
    } or _outlier_names(c)
    if outliers:
        yield f"{join_words(sorted(outliers))} stands out from the others"


def _unknown_reasons(c, kinds):
    """Yield why nothing can be said."""
    if np.isnan(_rms(c.data["distance"])):
        yield "too few runs share a step"
    if any(e.untested for e in c.groups):
        yield "groups are tested with SciPy, which is not installed"
    if not all(e.compared and e.reference for e in c.groups):
        yield "not all groups could be judged"
    if "one_seed" in kinds:
        yield (
            "runs of one seed were not trained alike; compare them with `by`"
        )
    for d in c.divergences:
        if not d.repeats or d.step is None:
            continue
        if d.step == d.first_step and c.seeds == 1:
            yield "repeats differ at once, and no other seed shows how far"
        elif d.step == d.differ_step != d.first_step:
            yield (
                f"the {len(d.runs)} runs of {d.common} are equal until they "
                f"diverge at step {d.step}, while nondeterminism begins with "
                "rounding"
            )
    if c.seeds == 2 and not c.repeated and not c.groups:
        yield "two runs have no reference; train more seeds, or one twice"


def _normal_reason(c, kinds):
    if "repeats_equal" in kinds:
        return "repeats are equal in every bit, and no seed stands out"
    if c.seeds == 1:
        return "repeats begin alike, and none stands out"
    if c.repeated:
        return "repeats differ by less than seeds, and no run stands out"
    return "no seed stands out"


def _outlier_names(c):
    """Return the run whose seed is far from the others, in a set."""
    seeds = [run["seed"] for run in c.runs]
    first = [r for r, s in enumerate(seeds) if s is None or seeds.index(s) == r]
    distances = np.sqrt(c.squared_distances[np.ix_(first, first)])
    if len(first) < 3 or np.isnan(distances).any():
        return set()
    outlier = outlier_index(distances)
    return set() if outlier is None else {c.runs[first[outlier]]["name"]}
