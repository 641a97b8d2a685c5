"""Where the noise of an aggregation stands, saved with the model.

Private names in use: `keras.src.saving.keras_saveable.KerasSaveable`, whose
subclasses are saved with the model they are an attribute of.
"""

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
    """

    def __init__(self, seed):
        self.seed = seed
        self.generator = keras.random.SeedGenerator(seed)

    def go_on_from(self, before):
        """Take over where the noise of a former compile() stands.

        A step whose noise had been there before could be told from it.
        """
        self._set(np.asarray(before.generator.state))

    def normal(self, like, deviation):
        """Noise of the shape and type of a tensor."""
        return keras.random.normal(
            tf.shape(like),
            stddev=deviation,
            dtype=like.dtype.name,
            seed=self.generator,
        )

    def save_own_variables(self, store):
        store[STATE] = np.asarray(self.generator.state)

    def load_own_variables(self, store):
        if STATE not in list(store.keys()):
            return  # Of a model without noise, or saved before it was kept.
        self._set(np.asarray(store[STATE]))

    def _set(self, number):
        # Whoever gives another seed wants other noise.
        if self.seed in (None, int(number[0])):
            self.generator.state.assign(number)

    def _obj_type(self):
        return "Loss"
