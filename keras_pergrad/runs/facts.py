"""What the reader of a comparison should know of the runs."""

import numpy as np

from keras_pergrad.runs.kinship import mode_of


def runs(aligned, related):
    """One dict a run."""
    return [
        {
            "name": name,
            "seed": info.get("seed"),
            "device": info.get("device"),
            "mode": mode_of(info),
            "group": related.groups[r] if related.groups else None,
            "tags": dict(info.get("tags") or {}),
            "records": len(run),
            "last_step": int(run.scalars["step"].max()),
            "first_not_finite": _first_not_finite(run),
        }
        for r, (name, info, run) in enumerate(
            zip(aligned.names, aligned.infos, aligned.runs)
        )
    ]


def notes(aligned, related, by, repeats):
    """What the reader should know, as sentences.

    `repeats` (R, R) tells which repeats have a distance.
    """
    found = []
    if related.groups and len(set(related.groups)) == 1:
        found.append(
            f"All runs have {by} {related.groups[0]!r}: no groups to compare."
        )
    unknown = int((~related.known).sum())
    if unknown:
        found.append(
            f"{unknown} runs have no known seed and count as runs of "
            "different seeds; keras.utils.set_random_seed sets one."
        )
    if related.repeats.any() and not repeats.any():
        found.append(
            "Runs that repeat each other share no step at which gradients "
            "are finite and not zero: they count as not repeated."
        )
    counts = (aligned.rows >= 0).sum(0)
    if counts.min() < len(aligned.steps):
        short = [n for n, c in zip(aligned.names, counts) if c < counts.max()]
        found.append(
            "Not every run has every step"
            + (f": fewer in {', '.join(short[:5])}" if short else "")
            + (", …" if len(short) > 5 else "")
            + ". At each step the runs that have it are compared."
        )
    steps = map(_first_not_finite, aligned.runs)
    broken = {n: s for n, s in zip(aligned.names, steps) if s is not None}
    for name, step in list(broken.items())[:5]:
        found.append(
            f"Run {name} has a gradient that is not finite, first at step "
            f"{step}; such records are left out of the averages."
        )
    if len(broken) > 5:
        found.append(f"So have {len(broken) - 5} other runs.")
    return found


def _first_not_finite(run):
    """The first step with a gradient that is not finite, or None."""
    bad = np.flatnonzero(~np.isfinite(run.scalars["gradient_norm"]))
    return int(run.scalars["step"][bad[0]]) if len(bad) else None
