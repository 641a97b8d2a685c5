"""Ten faults to plant into the engine, for the hunt to find.

Each replaces one function of the package by one that is wrong in a special
case. Where the engine changes, only the table at the end must follow.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad import factors
from keras_pergrad.factors.sample_gradients import sum_of_squares
from keras_pergrad.modes import add_loss_reduction
from keras_pergrad.samples import weight_paths


@dataclasses.dataclass(frozen=True)
class Fault:
    """A wrong function.

    Attributes:
        name: what is wrong, in words.
        owner: the class or module.
        attribute: the function's name there.
        make: of the right function, gives the wrong one.
    """

    name: str
    owner: Any
    attribute: str
    make: Callable

    @contextlib.contextmanager
    def planted(self):
        """The fault is in the engine until this closes."""
        with _replaced(self.owner, self.attribute, self.make):
            yield

    @contextlib.contextmanager
    def watched(self, touched):
        """Adds `self` to the set `touched` when the function is called."""

        def make(right):
            def called(*args, **kwargs):
                touched.add(self.name)
                return right(*args, **kwargs)

            return called

        with _replaced(self.owner, self.attribute, make):
            yield


@contextlib.contextmanager
def _replaced(owner, attribute, make):
    own = attribute in vars(owner)
    right = getattr(owner, attribute)
    setattr(owner, attribute, make(right))
    try:
        yield
    finally:
        if own:
            setattr(owner, attribute, right)
        else:
            delattr(owner, attribute)


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
    return lambda self: sum_of_squares(self.dz)


def _squares_of_positions(right):
    def squared_norms(self):
        return tf.cast(sum_of_squares(self.dz), self.gradients.dtype)

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


def _strides_forgotten(right):
    def squared_norms(self):
        strided = any(s > 1 for s in self.windows.strides)
        return right(self) * (0.8 if strided else 1.0)

    return squared_norms


FAULTS = [
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
        weight_paths.Pulled,
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
        add_loss_reduction,
        "kinds",
        _all_means,
    ),
    Fault(
        "norms of strided convolutions too small",
        factors.Patches,
        "squared_norms",
        _strides_forgotten,
    ),
]
