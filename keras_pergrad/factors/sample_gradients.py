"""The n per-sample gradients of one variable, kept factored."""

import abc
from typing import Any

import tensorflow as tf

#: Types whose squares overflow, vanish or are rounded too much.
HALF = (tf.float16, tf.bfloat16)


class SampleGradients(abc.ABC):
    """The n per-sample gradients of one variable, not yet computed.

    Subclasses hold tensors whose first axis is the sample and answer three
    questions, each as cheaply as their structure allows. What they stand for
    are *contributions*: they add up to the batch gradient.

    `rows` names the attributes that hold such tensors, so that `select` can
    blank a sample in all of them.
    """

    rows = ()

    @abc.abstractmethod
    def squared_norms(self):
        """Return the squared Euclidean norm of each contribution, (n,)."""

    @abc.abstractmethod
    def weighted_sum(self, weights) -> Any:
        """Return the sum of all contributions, each times its weight.

        Args:
            weights: (n,), or None for the plain sum.

        Returns:
            A tensor of the variable's shape (or `tf.IndexedSlices`).
        """

    @abc.abstractmethod
    def materialize(self):
        """All contributions, (n, *shape of the variable)."""

    def squared_norm_of_sum(self):
        """Return the squared norm of the sum of all contributions, a scalar.

        Asked after `squared_norms`, so that what that holds serves again.
        """
        total = tf.convert_to_tensor(self.weighted_sum(None))
        return tf.reduce_sum(tf.square(total))

    def chosen_method(self):
        """How the norms are computed, in a word."""
        return "full"

    def sum_method(self):
        """How the weighted sum is computed after the norms, in a word.

        "held": from gradients that the norms have materialised.
        """
        return "held"

    def norm_bytes(self, n):
        """Bytes that the norms of n samples hold beside what is given.

        None where the shapes do not tell.
        """
        return None

    def holders(self):
        """Return the factors in it that hold tensors, itself first."""
        return [self]

    def select(self, keep):
        """Blanks the samples for which `keep`, (n,) booleans, is false.

        A weight of zero is not enough: zero times NaN is NaN. Costs nothing
        at run time while every sample is kept.
        """
        select([self], keep)
        return self


def select(factors, keep):
    """`select` for many factors at once, with a single condition."""
    held = [
        (part, name)
        for factor in factors
        for part in factor.holders()
        for name in part.rows
    ]
    tensors = [getattr(part, name) for part, name in held]
    floats = [
        k
        for k, t in enumerate(tensors)
        if t is not None and t.dtype.is_floating
    ]
    chosen = [tensors[k] for k in floats]
    selected = tf.cond(
        tf.reduce_all(keep),
        lambda: [tf.identity(t) for t in chosen],
        lambda: [_blank(t, keep) for t in chosen],
    )
    for k, tensor in zip(floats, selected):
        tensor.set_shape(tensors[k].shape)
        setattr(*held[k], tensor)


def _blank(tensor, keep):
    mask = tf.reshape(keep, [-1] + [1] * (tensor.shape.rank - 1))
    return tf.where(mask, tensor, tf.zeros([], tensor.dtype))


def wide(tensor):
    """`tensor`, in float32 where it is of half precision."""
    return tf.cast(tensor, tf.float32) if tensor.dtype in HALF else tensor


def expand(weights, tensor):
    """Weights (n,) shaped to multiply `tensor`, (n, ...)."""
    weights = tf.cast(weights, tensor.dtype)
    return tf.reshape(weights, [-1] + [1] * (tensor.shape.rank - 1))


def weighted(gradients, weights):
    """Σ_n weights[n] · gradients[n], the gradients materialised.

    Without weights Σ_n gradients[n].
    """
    if weights is None:
        # A product is faster than a reduction over the first axis.
        weights = tf.ones([tf.shape(gradients)[0]], gradients.dtype)
    return tf.tensordot(tf.cast(weights, gradients.dtype), gradients, 1)


def sum_of_squares(tensor):
    """Σ over all axes but the first of the squares, (n,)."""
    return tf.reduce_sum(tf.square(tensor), list(range(1, tensor.shape.rank)))
