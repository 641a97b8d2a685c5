"""The values of samples that a model has trained on, saved with its weights.

So a backup of the weights, and of what they owe to each sample, is one file:
no update is lost or counted twice, wherever training was stopped.
"""

import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.saved_state import SavedState

_NAMES = _SUMS, _COUNTS = "sample_values", "sample_steps"


class ValueState(SavedState):
    """For each sample the sum of its values, and how many steps had one."""

    def __init__(self):
        self.sums = self.counts = self._known = None

    def begin(self, samples, dtype, goes_on):
        """Begin a `fit`: with zeros, or with what is known so far."""
        known = self.arrays() if goes_on else None
        if known is None:
            known = np.zeros(samples, dtype), np.zeros(samples, "int64")
        _require_length(known, samples)
        sums, counts = known
        self.sums = tf.Variable(tf.constant(sums, dtype), trainable=False)
        self.counts = tf.Variable(tf.constant(counts), trainable=False)

    def end(self):
        """Free what the steps wrote to, and keep the numbers."""
        self._known = self.arrays()
        self.sums = self.counts = None

    def add(self, rows, values, counted):
        """Add the values of a step, in its graph."""
        self.sums.scatter_add(tf.IndexedSlices(values, rows))
        self.counts.scatter_add(tf.IndexedSlices(counted, rows))

    def arrays(self):
        """Return copies of (sums, counts), or None: nothing was valued."""
        if self.sums is None:
            return self._known
        return np.array(self.sums), np.array(self.counts)

    def save_own_variables(self, store):
        for name, array in zip(_NAMES, self.arrays() or ()):
            store[name] = array

    def load_own_variables(self, store):
        if not set(_NAMES) <= set(store.keys()):
            return  # Of a training without values.
        known = tuple(np.array(store[name]) for name in _NAMES)
        if self.sums is None:
            self._known = known
            return
        _require_length(known, self.sums.shape[0])
        self.sums.assign(known[0].astype(self.sums.dtype.as_numpy_dtype))
        self.counts.assign(known[1])


def _require_length(known, samples):
    if len(known[0]) != samples:
        raise ValueError(
            f"The weights were saved with the values of {len(known[0])} "
            f"samples. Expected to go on with as many. Received: {samples}. "
            "Give the same data and `ids` as before, or begin anew with "
            "weights that were saved without values."
        )
