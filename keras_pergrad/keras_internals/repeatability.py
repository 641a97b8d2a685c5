"""The settings by which a run repeats: the global seed, deterministic ops.

Only the record of a run asks for them, so they are imported then.

Private names in use: `keras.src.utils.rng_utils.get_random_seed`,
`tensorflow.python.framework.config.is_op_determinism_enabled`.
"""

import tensorflow as tf

# What TensorFlow answers where no global seed was set.
_UNSET = 87654321


def is_deterministic():
    """Whether ops are to give equal results in every run."""
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())


def global_seed():
    """Return the seed of `keras.utils.set_random_seed`, if it was called."""
    from keras.src.utils import rng_utils

    if hasattr(rng_utils, "get_random_seed"):
        return rng_utils.get_random_seed()
    # Keras before 3.11 forgets it, TensorFlow does not.
    seed = tf.compat.v1.get_seed(1)[0]
    return None if seed == _UNSET else seed
