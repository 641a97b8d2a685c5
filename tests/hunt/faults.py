"""Faults to plant into the engine, for the hunt to find.

Each replaces one function of the package by one that is wrong in a special
case. Where the engine changes, only the table at the end must follow.
"""

import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad import factors
from keras_pergrad.factors.base import squares_by_sample
from keras_pergrad.modes import microbatches
from keras_pergrad.uses import weight_paths
from keras_pergrad.uses.one_by_one import RowExchange
from tests.hunt.planting import Fault
from tests.hunt.type_faults import TYPE_FAULTS


def _no_cross_terms(right):
    def squared_norms(self):
        if self.positions == 1:
            return right(self)
        each = tf.reduce_sum(self.x**2, -1) * tf.reduce_sum(self.dz**2, -1)
        return tf.reduce_sum(each, 1)

    return squared_norms


def _unweighted_when_narrow(right):
    def weighted_sum(self, weights):
        narrow = self.x.shape[-1] < self.dz.shape[-1]
        return right(self, None if narrow else weights)

    return weighted_sum


def _repeated_ids(right):
    return lambda self: squares_by_sample(self.dz)


def _squares_of_positions(right):
    def squared_norms(self):
        return tf.cast(squares_by_sample(self.dz), self.gradients.dtype)

    return squared_norms


def _first_sample_unweighted(right):
    def weighted_sum(self, weights):
        if weights is not None:
            weights = tf.concat([tf.ones_like(weights[:1]), weights[1:]], 0)
        return right(self, weights)

    return weighted_sum


def _norms_of_uses_added(right):
    def squared_norms(self):
        return tf.add_n([part.squared_norms() for part in self.parts])

    return squared_norms


def _unweighted(right):
    return lambda self, weights: right(self, None)


def _lenient(right):
    def weights(self, norms):
        found = right(self, norms)
        return tf.where(found < 0.7, found, tf.ones_like(found))

    return weights


def _all_means(right):
    def kinds(*args, **kwargs):
        return [tf.zeros_like(k) for k in right(*args, **kwargs)]

    return kinds


def _as_they_are(right):
    return lambda self, tensors: list(tensors)


def _strides_forgotten(right):
    def squared_norms(self):
        strided = any(s > 1 for s in self.windows.strides)
        return right(self) * (0.8 if strided else 1.0)

    return squared_norms


ENGINE_FAULTS = [
    Fault(
        "kernel norms without the cross terms of positions",
        factors.Outer,
        "squared_norms",
        _no_cross_terms,
    ),
    Fault(
        "narrow kernels summed without the clipping weights",
        factors.Outer,
        "weighted_sum",
        _unweighted_when_narrow,
    ),
    Fault(
        "table norms with repeated ids apart",
        factors.Rows,
        "squared_norms",
        _repeated_ids,
    ),
    Fault(
        "bias norms squared before the sum over positions",
        factors.Sum,
        "squared_norms",
        _squares_of_positions,
    ),
    Fault(
        "first sample of a materialised gradient unweighted",
        factors.Full,
        "weighted_sum",
        _first_sample_unweighted,
    ),
    Fault(
        "norms of a shared weight's uses added",
        factors.Joined,
        "squared_norms",
        _norms_of_uses_added,
    ),
    Fault(
        "weights behind weights summed without the clipping weights",
        weight_paths.PulledBack,
        "weighted_sum",
        _unweighted,
    ),
    Fault(
        "norms a little above the limit not clipped",
        kpg.ClippedMean,
        "weights",
        _lenient,
    ),
    Fault(
        "every add_loss taken for a mean when accumulating",
        microbatches,
        "add_loss_kinds",
        _all_means,
    ),
    Fault(
        "norms of strided convolutions too small",
        factors.Patches,
        "squared_norms",
        _strides_forgotten,
    ),
    Fault(
        "a sample that is not finite left in what a loop has kept",
        RowExchange,
        "all",
        _as_they_are,
    ),
]
FAULTS = ENGINE_FAULTS + TYPE_FAULTS
