"""Checks of the arguments of `Influence`."""

import os
from typing import Literal

import keras
import tensorflow as tf

from keras_pergrad.common.arguments import is_number

Curvature = Literal["ekfac", "kfac", "exact", "projected", "none"]
CURVATURES = ("ekfac", "kfac", "exact", "projected", "none")


def comes_in_batches(x):
    """Whether data come in batches."""
    return isinstance(x, (tf.data.Dataset, keras.utils.PyDataset))


def checked_shard(shard):
    """Return a shard as (i, of), after a look at it."""
    try:
        number, of = map(int, shard)
    except (TypeError, ValueError):
        number, of = 0, 0
    if not 0 <= number < of:
        raise ValueError(
            "`shard` must be (i, of) with 0 <= i < of. Received: "
            f"shard={shard!r}"
        )
    return number, of


def check_arguments(curvature, damping, checkpoints):
    """Refuse arguments of the wrong kind or out of range."""
    if curvature not in CURVATURES:
        raise ValueError(
            f"`curvature` must be one of {CURVATURES}. Received: "
            f"curvature={curvature!r}"
        )
    if damping is not None and not (
        is_number(damping) and 0 <= damping < float("inf")
    ):
        raise ValueError(
            "`damping` must be None or a number of at least 0. Received: "
            f"damping={damping!r}"
        )
    if curvature == "none" and damping is not None:
        raise ValueError(
            "`damping` is added to a curvature, and curvature='none' has "
            f"none. Expected damping=None. Received: damping={damping!r}"
        )
    if isinstance(checkpoints, (str, os.PathLike)) or (
        checkpoints is not None and not len(checkpoints)
    ):
        raise ValueError(
            "`checkpoints` must be None or a list of at least one weights "
            f"file. Received: checkpoints={checkpoints!r}"
        )
