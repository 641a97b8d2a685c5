"""A mark on tensors that are taken to be the same whatever the samples are."""

import tensorflow as tf

#: In the names of these tensors.
SAME_FOR_ALL = "keras_pergrad_same_for_all"


def same_for_all(tensor):
    """Return a tensor that is taken not to depend on the samples."""
    # For what a mode finds out about the model by calling it on samples, such
    # as whether a loss is a sum or a mean.
    return tf.identity(tensor, name=SAME_FOR_ALL)
