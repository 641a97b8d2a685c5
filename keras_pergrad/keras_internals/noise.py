"""The noise of an aggregation, whose state is saved with the model.

Private names in use: `keras.src.saving.keras_saveable.KerasSaveable`, whose
subclasses are saved with the model they are an attribute of.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.saving.keras_saveable import KerasSaveable

STATE = "noise_state"


class Noise(KerasSaveable):
    """Draws noise, other in each step, and goes on after a restart.

    Under a `tf.distribute` strategy it is made in its scope: a generator from
    outside would be advanced by each replica.

    Args:
        seed: an integer, or None.
        **kept: numbers to keep from step to step beside it, each of which
            becomes an attribute of that name, a `keras.Variable`.
    """

    #: Whether it holds a count of updates that may not be forgotten.
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
        """Take over where the noise of a former compile() stands.

        A step whose noise had been there before could be told from it.
        """
        self._set(np.asarray(before.generator.state))
        for name in self.kept:
            if name in before.kept:
                getattr(self, name).assign(np.asarray(getattr(before, name)))

    def begin_fit(self, aggregation):
        """Take note of a `fit` that begins with an aggregation, or None."""

    def advance(self, name, value: Any = 1):
        """Add to a number that is kept; the same on all replicas."""
        variable = getattr(self, name)
        variable.assign(variable + value)

    def normal(self, like, deviation):
        """Noise of the shape and type of a tensor."""
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
            return  # Of a model without noise, or saved before it was kept.
        self._set(np.asarray(store[STATE]))
        for name in self.kept:
            if name in names:
                getattr(self, name).assign(np.asarray(store[name]))

    def _set(self, number):
        # Whoever gives another seed wants other noise.
        if self.seed in (None, int(number[0])):
            self.generator.state.assign(number)

    def _obj_type(self):
        return "Loss"
