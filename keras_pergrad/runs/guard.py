"""Conditions under which a comparison of runs fails: a regression guard."""

import dataclasses
import math
import os
import statistics

from keras_pergrad.runs.alignment import directories
from keras_pergrad.runs.findings import format_share
from keras_pergrad.runs.records import list_runs, read_epochs, read_info

DIVERGED, SLOWER, STALL = "diverged", "slower", "stall"


@dataclasses.dataclass(frozen=True)
class Condition:
    """A condition, and the share above which it fails; NaN of `DIVERGED`."""

    name: str
    share: float = math.nan


def parse(text):
    """Return the `Condition` of a text such as "slower=5%"."""
    name, has_share, share = text.partition("=")
    try:
        if (name == DIVERGED) and not has_share:
            return Condition(name)
        if name in (SLOWER, STALL):
            value = float(share.rstrip("%")) / (100 if "%" in share else 1)
            if 0 <= value < math.inf:
                return Condition(name, value)
    except ValueError:
        pass
    raise ValueError(
        "`--fail-if` expected diverged, slower=5% or stall=10%, with a share "
        f"of one's own. Received: {text!r}."
    )


def failures(comparison, log_dir, conditions):
    """Return a sentence for each condition that a comparison fails.

    The runs of the last of several directories, or the newest run of one, are
    judged by the others.

    Raises:
        ValueError: there is nothing to judge a condition by.
    """
    found = []
    for condition in conditions:
        if condition.name == DIVERGED:
            found += _divergences(comparison)
            continue
        judged, others = _sides(log_dir)
        if condition.name == SLOWER:
            found += _slower(judged, others, condition.share)
        else:
            found += _stalls(judged, condition.share)
    return found


def _divergences(comparison):
    """Yield where runs of one seed diverge, and which are not finite."""
    steps = {run["label"]: run["first_not_finite"] for run in comparison.runs}
    for label, step in steps.items():
        if step is not None:
            yield (
                f"diverged: the gradient of {label} is not finite at step "
                f"{step}."
            )
    of_one_seed = [d for d in comparison.divergences if d.common]
    if comparison.seeds == 1:
        of_one_seed = comparison.divergences
    if not of_one_seed and not any(steps.values()):
        raise ValueError(
            "`--fail-if diverged` expected two runs or more of one seed. "
            "Received: runs of different seeds, which diverge in any case."
        )
    for d in of_one_seed:
        if d.step is not None:
            yield (
                f"diverged: {' and '.join(d.runs)} differ by more than "
                f"{comparison.tolerance:g} from step {d.step} on, first in "
                f"{d.variables[0][0]}."
            )


def _slower(judged, others, share):
    """Yield by how much the judged runs are slower than the others."""
    judged_ms = _median(judged, "step_ms", SLOWER)
    other_ms = _median(others, "step_ms", SLOWER)
    if judged_ms > other_ms * (1 + share):
        yield (
            f"slower: a step takes {judged_ms:.3g} ms in {_names(judged)}, "
            f"{format_share(judged_ms / other_ms - 1)} longer than "
            f"{other_ms:.3g} ms before; {format_share(share)} are allowed."
        )


def _stalls(judged, share):
    """Yield by how much the judged runs wait for data."""
    stall = _median(judged, "data_stall_fraction", STALL)
    if stall > share:
        yield (
            f"stall: {_names(judged)} waits for data {format_share(stall)} of "
            f"the time; {format_share(share)} are allowed."
        )


def _sides(log_dir):
    """Return the paths of the judged runs, and of the others."""
    *earlier, last = directories(log_dir)
    if earlier:
        return list_runs(last), [p for d in earlier for p in list_runs(d)]
    runs = sorted(list_runs(last), key=_created)
    return runs[-1:], runs[:-1]


def _created(path):
    return (read_info(path) or {}).get("created", math.inf)


def _median(paths, name, condition):
    """Return the median of a figure of DataStall over epochs and runs."""
    values = []
    for path in paths:
        found = [e[name] for e in read_epochs(path) if name in e]
        if not found:
            raise ValueError(
                f"`--fail-if {condition}` expected runs with the figures of "
                "DataStall. Received: none in "
                f"{os.path.basename(path)!r}. Record with both callbacks in "
                "one fit: callbacks=[GradientVariance(..., log_dir=...), "
                "DataStall()]."
            )
        values.append(statistics.median(found))
    return statistics.median(values)


def _names(paths):
    return ", ".join(os.path.basename(path) for path in paths)
