"""Findings of a comparison, as data and as sentences, and its answer."""

import dataclasses
import string

import numpy as np

from keras_pergrad.runs.divergence import farthest
from keras_pergrad.runs.effects import REPEATS

# Nondeterminism begins with rounding; other weights differ at once.
_NO_REPEAT = 0.5
_MOST = 6
_MOST_NAMED = 5

# {share} is a share of something, {list} a list of names.
TEXTS = {
    "not_compared": "{who} share no step with gradients that are finite and "
    "not zero: they could not be compared.",
    "not_finite": "Gradients that are not finite are left out: {runs:list}.",
    # Two groups.
    "groups_confounded": "{who} differ by {distance:share} of the gradient's "
    "norm, but so do their seeds: train one seed in both, twice in one.",
    "groups_without_yardstick": "{who} differ by {distance:share} of the "
    "gradient's norm{pairing}. Train a seed twice in one of them.",
    "groups_equal": "{who} have the same gradients{pairing}, in every bit "
    "recorded.",
    "groups_differ_from_equal": "{who} differ by {distance:share} of the "
    "gradient's norm{pairing}; {yardstick} are equal in every bit recorded.",
    "groups_differ": "{who} differ by {ratio:.2g} times what {yardstick} "
    "differ by{pairing} (p {probability:p}).",
    "groups_alike": "{who} show no difference beyond {noise}: {ratio:.2g} "
    "times what {yardstick} differ by{pairing} (p {probability:p}).",
    "besides": "They also differ in {besides:list}.",
    # All runs.
    "all_equal": "All {count} runs have the same gradients at {steps}, in "
    "every bit recorded.",
    "equal_where_compared": "Where they were compared, {who} have the same "
    "gradients in every bit recorded, with the exceptions below.",
    "repeats_apart": "The {count} runs repeat one seed, and yet differ by "
    "{distance:share} of the gradient's norm: nondeterminism or a fault.",
    "one_seed": "{count} runs of one seed differ by {distance:share} of the "
    "gradient's norm.",
    "seeds": "{who} differ by {distance:share} of the gradient's norm.",
    # Repeats, next to seeds.
    "no_repeats": "No run repeats another: train one seed twice to tell its "
    "part from that of nondeterminism.",
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
    "a yardstick, not a cause.",
    # Divergence.
    "equal": "{who} are equal at {steps}, in every bit recorded.",
    "within": "{who} stay within {tolerance:g} of each other at {steps} (at "
    "most {largest:.0e}; they differ in some bit from step {differ_step} on).",
    "apart_from_start": "{who} differ from their first common step ({step}) "
    "on, most in {variable}, by {size:share} of its norm.",
    "part": "{who} part at step {step}, first in {variable}, by {size:share} "
    "of its norm; before, they are {before}.",
    "odd": "{odd} is the odd one.",
    "ends": "{ends:list}.",
    "more": "{count} more {what}: see `comparison.{what}`.",
}
_MORE = "The runs differ by more than seeds and nondeterminism normally make"
_UNKNOWN = (
    "Whether the runs differ by more than seeds and nondeterminism normally "
    "make is not known"
)
_NORMAL = "The runs differ by what seeds and nondeterminism normally make"


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
        """What the finding is of: the first of `kinds`."""
        return self.kinds[0]

    def __str__(self):
        texts = " ".join(TEXTS[kind] for kind in self.kinds)
        return _Words().vformat(texts, (), self.values)


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


def findings(comparison):
    """Return what a `RunComparison` found, the most important first."""
    c = comparison
    of_groups = [_of_groups(effect) for effect in c.groups]
    found = [*_few(of_groups, "groups"), *_of_runs(c)]
    if not any(f.kind == "not_finite" for f in found):
        found += _not_finite(c)
    return [*found, *_sampling(c), *_few(_of_sets(c), "divergences")]


def _few(found, what):
    """Return the first findings, and how many more there are."""
    if len(found) <= _MOST:
        return found
    return [
        *found[:_MOST],
        _finding("more", count=len(found) - _MOST, what=what),
    ]


def _of_groups(e):
    if not e.compared:
        kind = "not_compared"
    elif e.confounded:
        kind = "groups_confounded"
    elif e.yardstick is None:
        kind = "groups_without_yardstick"
    elif e.floor == 0:
        same = e.distance == 0
        kind = "groups_equal" if same else "groups_differ_from_equal"
    else:
        kind = "groups_differ" if e.real else "groups_alike"
    who = f"{e.first} and {e.second}"
    return _finding(
        *([kind, "besides"] if e.besides else [kind]),
        **vars(e),
        who=who if e.compared else f"Some runs of {who}",
        pairing=" at equal seeds" if e.paired else "",
        noise="nondeterminism" if e.yardstick == REPEATS else "seed noise",
    )


def _of_runs(c):
    apart = c.apart[np.triu_indices(len(c.runs), 1)]
    count, distance = len(c.runs), _typical(c.data["distance"])
    (everything,) = [d for d in c.divergences if len(d.runs) == count]
    if np.isnan(apart).all():
        return [_finding("not_compared", who="All runs")]
    if np.nanmax(apart) == 0:
        exceptions = _exceptions(c, [everything])
        if exceptions:
            who = f"the {count} runs"
            return [_finding("equal_where_compared", who=who), *exceptions]
        return [_finding("all_equal", count=count, steps=_steps(everything))]
    if c.seeds == 1:
        kind = "repeats_apart" if c.repeated == count else "one_seed"
        return [_finding(kind, count=count, distance=distance)]
    known = all(run["seed"] is not None for run in c.runs)
    who = f"Runs of {'different' if known else 'different or unknown'} seeds"
    kind = "not_compared" if np.isnan(distance) else "seeds"
    return [_finding(kind, who=who, distance=distance), *_repeats(c, distance)]


def _repeats(c, apart):
    """Return findings on how repeats differ, if there are several seeds."""
    distance, repeats = c.data["distance"], c.data["repeat_distance"]
    sets = [d for d in c.divergences if d.repeats]
    if not c.repeated:
        none = _finding("no_repeats")
        unmet = _finding("not_compared", who="Repeats of a seed")
        return [unmet if sets else none]
    mine = _typical(repeats)
    if mine == 0:
        exceptions = _exceptions(c, sets)
        if exceptions:
            who = "repeats of a seed"
            return [_finding("equal_where_compared", who=who), *exceptions]
        return [_finding("repeats_equal")]
    if repeats[np.isfinite(repeats)][0] > _NO_REPEAT * apart:
        return [_finding("repeats_not_repeated", repeats=mine)]
    with np.errstate(invalid="ignore", divide="ignore"):
        explained = _median((repeats / distance) ** 2)
    if np.isnan(explained):
        return [_finding("repeats", repeats=mine)]
    values = {"repeats": mine, "explained": min(explained, 1.0)}
    return [_finding("repeats", "explained", **values)]


def _exceptions(c, sets):
    """Return findings against calling these sets equal at every step."""
    chosen = {name for d in sets for name in d.runs}
    broken = {k: step for k, step in _broken(c).items() if k in chosen}
    exceptions = []
    if broken:
        exceptions += _not_finite(c)
    elif any(_unknown_distance(c, d.runs) for d in sets):
        exceptions.append(_finding("not_compared", who="Some runs"))
    known = (None, *broken.values())
    differing = [d for d in sets if d.differ_step not in known]
    return exceptions + [_of_set(d, c.tolerance) for d in differing]


def _unknown_distance(c, names):
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
    ratio = _median(c.data["sampling_ratio"])
    # Repeats see the same batches: sampling explains nothing.
    if np.isnan(ratio) or c.seeds == 1:
        return []
    distance = _typical(c.data["sampling_distance"])
    values = {"samples": c.samples, "distance": distance, "ratio": ratio}
    return [_finding("sampling", **values)]


def _of_sets(c):
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
    return [_of_set(d, c.tolerance) for d in chosen]


def _of_set(d, tolerance):
    extra = [kind for kind in ("odd", "ends") if getattr(d, kind)]
    if d.first_step is None:
        kind, extra = "not_compared", []
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


def _typical(values):
    """Return the root mean square over the steps at which it is defined."""
    values = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(values**2))) if len(values) else np.nan


def _median(values):
    """Return the median over the steps at which it is defined."""
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else np.nan


def answer(comparison):
    """Return one sentence: more than normal, not known, or normal, and why."""
    kinds = {finding.kind for finding in comparison.findings}
    if "all_equal" in kinds:
        return "The runs do not differ in any bit recorded."
    for begins, reasons in ((_MORE, _more), (_UNKNOWN, _unknown)):
        for why in reasons(comparison, kinds):
            return f"{begins}: {why}."
    return f"{_NORMAL}: {_normal(comparison, kinds)}."


def _more(c, kinds):
    """Yield what seeds and nondeterminism do not make."""
    broken = _broken(c)
    if broken:
        yield f"gradients of {listed(broken)} are not finite"
    # Seeds are meant to differ by more than their repeats.
    real = [e for e in c.groups if e.real and c.by != "seed"]
    if real:
        both = [f"{e.first} differs from {e.second}" for e in real]
        yield listed(both, 3)
    if "repeats_not_repeated" in kinds:
        yield "repeats of a seed are as far apart as seeds from the start"
    odd = {d.odd for d in c.divergences if d.repeats and d.odd} or _odd(c)
    if odd:
        yield f"{listed(sorted(odd))} stands out from the others"


def _unknown(c, kinds):
    """Yield why nothing can be said."""
    if np.isnan(_typical(c.data["distance"])):
        yield "too few runs share a step"
    if not all(e.compared and e.yardstick for e in c.groups):
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
                f"part at step {d.step}, while nondeterminism begins with "
                "rounding"
            )
    if c.seeds == 2 and not c.repeated and not c.groups:
        yield "two runs have no yardstick; train more seeds, or one twice"


def _normal(c, kinds):
    if "repeats_equal" in kinds:
        return "repeats are equal in every bit, and no seed stands out"
    if c.seeds == 1:
        return "repeats begin alike, and none stands out"
    if c.repeated:
        return "repeats differ by less than seeds, and no run stands out"
    return "no seed stands out"


def _odd(c):
    """Return the run whose seed is far from the others, in a set."""
    seeds = [run["seed"] for run in c.runs]
    first = [r for r, s in enumerate(seeds) if s is None or seeds.index(s) == r]
    apart = np.sqrt(c.apart[np.ix_(first, first)])
    if len(first) < 3 or np.isnan(apart).any():
        return set()
    place = farthest(apart)
    return set() if place is None else {c.runs[first[place]]["name"]}
