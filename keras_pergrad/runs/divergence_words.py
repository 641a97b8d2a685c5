"""Where runs part, in a sentence."""

from keras_pergrad.runs.wording import listed, relative

_MOST_ENDS = 3


def divergence(d, tolerance, broken=()):
    """One `Divergence` in a sentence.

    Args:
        d: the `Divergence`.
        tolerance: what counted as equal.
        broken: names of runs that have gradients which are not finite.
            Two of these are not told apart.
    """
    runs = f"{len(d.runs)} runs"
    who = f"The {runs} of {d.common}" if d.common else f"All {runs}"
    if d.first_step is None:
        return f"{who} have no step in common: they could not be compared."
    every = steps_of(d)
    if d.differ_step is None:
        rest = _rest(d, broken)
        return f"{who} are equal at {every}, in every bit recorded{rest}."
    if d.step is None:
        return (
            f"{who} stay within {tolerance:g} of each other at {every} "
            f"(at most {d.largest:.0e}; not equal in every bit from step "
            f"{d.differ_step} on){_rest(d, broken)}."
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
    return (
        f"{who} part at step {d.step} ({before}), first {where}{odd}{_ends(d)}."
    )


def steps_of(d):
    """At which steps runs were compared that do not all end together."""
    if not d.ends:
        return "every step"
    both = "both" if len(d.runs) == 2 else "two of them"
    return f"every step that {both} have"


def _rest(d, broken):
    broken = [name for name in d.runs if name in broken]
    finite = f"; not finite: {listed(broken)}" if broken else ""
    return finite + _ends(d)


def _ends(d):
    """Which runs end early: from there on only the others are compared."""
    if not d.ends:
        return ""
    (first, last), *rest = d.ends
    said = [f"{first} ends at step {last}"]
    said += [f"{name} at step {step}" for name, step in rest[: _MOST_ENDS - 1]]
    if len(d.ends) > _MOST_ENDS:
        said.append(f"{len(d.ends) - _MOST_ENDS} more later")
    return f"; {listed(said)}"
