"""How two groups differ, in a sentence."""

import numpy as np

from keras_pergrad.runs.effects import REPEATS
from keras_pergrad.runs.wording import listed, relative


def effect(e, broken=()):
    """One `Effect` in a sentence or two.

    Args:
        e: the `Effect`.
        broken: names of the groups' runs that have gradients which are not
            finite; these are left out of all distances.
    """
    said = [_effect(e, where=", where finite," if broken else "")]
    if broken:
        said.append(f"Not finite: {listed(broken)}.")
    if e.besides:
        said.append(f"They differ in {' and '.join(e.besides)}, too.")
    return " ".join(said)


def _effect(e, where):
    who = f"{e.first} and {e.second}"
    seed = " at equal seeds" if e.paired else ""
    if np.isnan(e.distance):
        return (
            f"{who} could not be compared: at no step that a run of each has "
            "are both gradients finite and not zero."
        )
    if e.yardstick and np.isnan(e.floor):
        return (
            f"{who} could not be compared: at no step that two {e.yardstick} "
            "have are both gradients finite and not zero."
        )
    apart = (
        f"{who}{where} are {relative(e.distance)} of the gradient's norm apart"
    )
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
                f"{who}{where} have the same gradients{seed}, in every bit "
                "recorded."
            )
        return f"{apart}{seed}, where {e.yardstick} are equal in every bit."
    times = f"{e.ratio:.2g} times what {e.yardstick} differ by"
    if e.probability is None:
        return (
            f"{apart}{seed}, {times}; how likely that is by chance is not "
            "known, since not every two runs share a step."
        )
    chance = f", p {_p(e.probability)}"
    if e.real:
        return f"{who}{where} differ by {times}{seed}{chance}."
    noise = "nondeterminism" if e.yardstick == REPEATS else "seed noise"
    return (
        f"{who}{where.rstrip(',')}: no difference beyond {noise} "
        f"({times}{seed}{chance})."
    )


def _p(probability):
    if probability < 0.001:
        return "< 0.001"
    return f"= {probability:.2g}"
