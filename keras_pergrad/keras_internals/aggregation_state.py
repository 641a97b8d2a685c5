"""The noise of an aggregation, whose state is saved with the model."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.saved_state import SavedState

STATE = "noise_state"


class AggregationState(SavedState):
    """What an aggregation keeps from step to step: its draws and numbers."""

    # Under a `tf.distribute` strategy create it in the strategy's scope: each
    # replica would advance a generator from outside. Each number in `kept`
    # becomes an attribute of that name, a `keras.Variable`.

    #: Whether it holds a count of updates that must not be lost.
    begun = False

    def __init__(self, seed, **kept):
        self.seed = seed
        self.generator = keras.random.SeedGenerator(seed)
        self.kept = tuple(kept)
        for name, value in kept.items():
            dtype = "int64" if isinstance(value, int) else "float32"
            variable = keras.Variable(
                np.asarray(value, dtype),
                dtype=dtype,
                trainable=False,
                name=name,
            )
            setattr(self, name, variable)

    def go_on_from(self, before):
        """Continue the noise of a former compile(): do not repeat it."""
        self._set(np.asarray(before.generator.state))
        for name in self.kept:
            if name in before.kept:
                getattr(self, name).assign(np.asarray(getattr(before, name)))

    def begin_fit(self, model):
        """Note that a `fit` of a model begins."""

    def end_fit(self, model):
        """Note that it has ended, or was interrupted."""

    def advance(self, name, value: Any = 1):
        """Add to a kept number; the result is the same on all replicas."""
        variable = getattr(self, name)
        variable.assign(variable + value)

    def normal(self, like, deviation):
        """Return noise of the shape and type of a tensor."""
        if tf.is_tensor(deviation):
            deviation = tf.cast(deviation, like.dtype)
        return keras.random.normal(
            tf.shape(like),
            stddev=deviation,
            dtype=like.dtype.name,
            seed=self.generator,
        )

    def save_own_variables(self, store):
        store[STATE] = np.asarray(self.generator.state)
        for name in self.kept:
            store[name] = np.asarray(getattr(self, name))

    def load_own_variables(self, store):
        names = list(store.keys())
        if STATE not in names:
            return  # From a model without noise, or saved by an older version.
        self._set(np.asarray(store[STATE]))
        for name in self.kept:
            if name in names:
                getattr(self, name).assign(np.asarray(store[name]))

    def _set(self, number):
        # A user who gives another seed wants other noise.
        if self.seed in (None, int(number[0])):
            self.generator.state.assign(number)
