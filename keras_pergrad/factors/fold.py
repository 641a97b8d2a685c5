"""Factors of layers that are called for each step of a sequence.

What was a sample for the layer is a step of the real one: n·t entries, t at a
time, are added to the contributions of n samples.
"""

import dataclasses
import functools

import tensorflow as tf

from keras_pergrad.factors.base import SampleGradients
from keras_pergrad.factors.full import Full
from keras_pergrad.factors.outer import Outer
from keras_pergrad.factors.patches import Patches
from keras_pergrad.factors.rows import Rows
from keras_pergrad.factors.sums import Sum


@functools.singledispatch
def fold(factor: SampleGradients, steps) -> SampleGradients:
    """The contributions of `factor`, `steps` consecutive ones added to one.

    Args:
        factor: `SampleGradients` of n·steps entries.
        steps: how many of them belong to one sample.

    Returns:
        `SampleGradients` of n samples. Those kinds that know positions keep
        their cheap ways; others are materialised.
    """
    return Full(tf.reduce_sum(_by_sample(factor.materialize(), steps), 1))


@fold.register
def _(factor: Outer, steps):
    x, dz = (_by_sample(t, steps) for t in (factor.x, factor.dz))
    return Outer(
        x, dz, factor.shape, factor.perm, factor.unpermuted, factor.method
    )


@fold.register
def _(factor: Sum, steps):
    return Sum(_by_sample(factor.dz, steps), factor.shape)


@fold.register
def _(factor: Rows, steps):
    ids, dz = (_by_sample(t, steps) for t in (factor.ids, factor.dz))
    return Rows(ids, dz, factor.shape, factor.method)


@fold.register
def _(factor: Patches, steps):
    windows = factor.windows
    if windows.rank > 2:
        return fold.dispatch(SampleGradients)(factor, steps)
    # The steps are one more dimension, in which the kernel has one tap.
    windows = dataclasses.replace(
        windows,
        kernel=(1, *windows.kernel),
        strides=(1, *windows.strides),
        dilation=(1, *windows.dilation),
        sizes=(steps, *windows.sizes),
        positions=(steps, *windows.positions),
        before=(0, *windows.before),
        after=(0, *windows.after),
    )
    big, small = (_by_sample(t, steps) for t in (factor.big, factor.small))
    return Patches(big, small, windows, factor.shape, factor.groups)


def _by_sample(tensor, steps):
    return tf.reshape(tensor, [-1, steps, *tensor.shape[1:]])
