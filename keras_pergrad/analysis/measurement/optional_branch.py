"""Parts of a graph that run only where they are wanted."""

import tensorflow as tf

from keras_pergrad.factors.unchanged import unchanged_factors


def only_if(wanted, factors, compute):
    """Return what `compute()` gives where `wanted`, else zeros of its shape.

    The shapes must be known. Tensors that factors hold for later use do not
    leave the branch.
    """
    results = []

    def computed():
        with unchanged_factors(factors):
            results.append(tf.nest.map_structure(tf.identity, compute()))
        return results[0]

    def zeros():  # traced after the other branch
        return tf.nest.map_structure(
            lambda t: tf.zeros(t.shape, t.dtype), results[0]
        )

    return tf.cond(wanted, computed, zeros)
