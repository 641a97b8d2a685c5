"""Runs of a traced step on batches in which single samples are exchanged."""

import functools
import itertools

import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.model_state import run_and_restore
from keras_pergrad.samples.motion import (
    SAMPLES,
    Change,
    axes_of_samples,
    watch,
)
from keras_pergrad.samples.trial_batches import unpacked


class Traced:
    """A traced step, and what it shows.

    Attributes:
        function: the concrete function.
        observed: the meaning of its results, in order.
    """

    def __init__(self, function=None, observed=None):
        self.function, self.observed = function, observed

    def run(self, batch):
        """Return the tensors for a batch, as arrays."""
        found = run_and_restore(self.function, *unpacked(batch))
        return [_array(t) for t in found]


def _array(tensor):
    """Return a tensor as an array, without a copy where that is possible."""
    if tensor.dtype in (tf.float32, tf.float64):
        return np.asarray(memoryview(tensor))
    # `__array__` fails for a bfloat16 number.
    return np.asarray(tensor.numpy())


class Runs:
    """The results of a traced step for some batches.

    Args:
        traced: the `Traced` step.
        batches: `trial_batches.Batches`.
        number: the only number of samples that the model takes, or None.
        fixed: whether every batch has the same sizes but for the samples.
    """

    def __init__(self, traced, batches, number, fixed):
        self.function = traced.function
        self._traced, self._batches = traced, batches
        self._number, self._fixed = number or SAMPLES, fixed
        shapes = itertools.repeat(None)
        if batches.more is not None:
            shapes = [t.shape for t in traced.run(batches.more)]
        # Large tensors: those of a single run are kept.
        self._before = traced.run(batches.some)
        self._axes = [
            axes_of_samples(t.shape, other, self._number)
            for t, other in zip(self._before, shapes)
        ]
        self._changes = [self._changed(*one) for one in batches.exchanged]

    def motion(self, place):
        """Return the `Motion` of a tensor, by its place."""
        return self._watched(place, self._changes)

    def mixes(self, place):
        """Whether one sample's values move others in a tensor."""
        return self.motion(place).mixed

    def mixes_padding(self, place):
        """Whether zeros in one sample's integers move others in a tensor."""
        changes = self._blanked
        return bool(changes) and self._watched(place, changes).mixed

    @functools.cached_property
    def _blanked(self):
        """The changes by padding, like `_changes`; empty if it cannot run."""
        if self._batches.blanked is None:
            return []
        try:
            return [self._changed(*self._batches.blanked)]
        except tf.errors.OpError:
            return []

    def _changed(self, sample, batch):
        """Return a `Change` of each tensor for a batch with this sample."""
        after = self._traced.run(batch)
        return [
            Change.of(sample, *one)
            for one in zip(self._before, after, self._axes)
        ]

    def _watched(self, place, changes):
        return watch(
            [tensors[place] for tensors in changes],
            self._batches.more is not None,
            self._number,
            self._fixed,
        )

    def noisy(self):
        """Return for each tensor whether it changes in a repeated step."""
        again = self._traced.run(self._batches.some)
        return [bool((a != b).any()) for a, b in zip(self._before, again)]
