"""The seed of the process, and of layers without a seed of their own.

Private names in use: `keras.src.utils.rng_utils.get_random_seed`,
`keras.src.backend.common.global_state.get_global_attribute`.
"""

import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.utils import rng_utils

# What TensorFlow answers where no global seed was set.
_UNSET = 87654321


def global_seed():
    """Return the seed of `keras.utils.set_random_seed`, if it was called."""
    if hasattr(rng_utils, "get_random_seed"):
        return rng_utils.get_random_seed()
    # Keras before 3.11 forgets it, TensorFlow does not.
    seed = tf.compat.v1.get_seed(1)[0]
    return None if seed == _UNSET else seed


def shared_seed_state():
    """Return the variable of layers without a seed, or None if not made yet."""
    # Keras's own getter would make it.
    seeds = global_state.get_global_attribute("global_seed_generator")
    return None if seeds is None else seeds.state
