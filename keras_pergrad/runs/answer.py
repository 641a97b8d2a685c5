"""The answer of a comparison: is what differs what seeds normally make?"""

import numpy as np

from keras_pergrad.runs.divergence import farthest
from keras_pergrad.runs.findings import listed

_MORE = "The runs differ by more than seeds and nondeterminism normally make"
_UNKNOWN = (
    "Whether the runs differ by more than seeds and nondeterminism normally "
    "make is not known"
)
_NORMAL = "The runs differ by what seeds and nondeterminism normally make"


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
    broken = [r["name"] for r in c.runs if r["first_not_finite"] is not None]
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
    if kinds & {"nothing_compared", "seeds_not_compared"}:
        yield "too few runs share a step"
    open_kinds = {"confounded", "without_yardstick", "not_compared"}
    if kinds & {f"groups_{kind}" for kind in (*open_kinds, "undecided")}:
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
