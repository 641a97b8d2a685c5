"""The two sides of a curvature, not multiplied."""

import math
from typing import Any, NamedTuple

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

    inputs: Any
    outputs: Any
    count: Any
    axes: tuple[int, ...]

    @classmethod
    def of_entries(cls, outputs):
        """Return that of the sum over all entries, or of its diagonal."""
        one = tf.ones([1, 1], outputs.dtype)
        return cls(one, outputs, one[0, 0], ())


def as_matrices(gradients, axes):
    """Return gradients of a variable as (n, these axes, the others)."""
    sizes = gradients.shape[1:].as_list()
    others = [k for k in range(len(sizes)) if k not in axes]
    turned = tf.transpose(gradients, [0, *(k + 1 for k in (*axes, *others))])
    left, right = (math.prod(sizes[k] for k in some) for some in (axes, others))
    return tf.reshape(turned, [-1, left, right])


def rotated(matrices, inputs=None, outputs=None):
    """Return Uᵀ G V of each; None leaves a side as it is."""
    if outputs is not None:
        matrices = tf.einsum("nio,ok->nik", matrices, outputs)
    if inputs is not None:
        matrices = tf.einsum("nio,ik->nko", matrices, inputs)
    return matrices
