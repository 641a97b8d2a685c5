"""What `kronecker` answers: two sides of a curvature, not multiplied."""

from typing import NamedTuple

import tensorflow as tf

#: A variable of at most so many entries has all of Σ g gᵀ.
FULL = 2**10


class Kronecker(NamedTuple):
    """Σ g gᵀ of contributions g is about inputs ⊗ outputs / count.

    What several batches give adds up, part by part. Of mean gradients' samples
    it is n² times as much, since contributions are 1/n of them.

    Attributes:
        inputs: (i, i), or (i,) if it is diagonal: of a table, how often each
            row was looked up.
        outputs: (o, o), or (o,) if it is diagonal.
        count: a scalar: samples times positions.
        axes: which axes of the variable make up the i inputs, in this order;
            the others, in theirs, are the o outputs. What has no two sides
            has no axes here: `inputs` is [[1]] and `count` 1 for each batch,
            and `outputs` is the exact Σ g gᵀ of all entries of the variable,
            as they lie in memory, or its diagonal.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> table = factors.Rows(tf.constant([[0, 0]]), tf.ones((1, 2, 3)), (4, 3))
    >>> found = table.kronecker()
    >>> found.inputs.numpy(), found.outputs.shape.as_list()
    (array([2., 0., 0., 0.], dtype=float32), [3, 3])
    """

    inputs: tf.Tensor
    outputs: tf.Tensor
    count: tf.Tensor
    axes: tuple[int, ...]
