"""The contract of factors: a weight's gradient for each sample, not held."""

import abc
import inspect
from typing import Any

import tensorflow as tf

from keras_pergrad.factors.sampled import Sampled, map_factors
from keras_pergrad.factors.written_out import (
    flat_samples,
    inner_products,
    squares,
)


class SampleGradients(Sampled, abc.ABC):
    """The n per-sample gradients of one variable, not yet computed.

    Subclasses hold tensors whose first axis is the sample and answer
    questions, each as cheaply as their structure allows; three of them have no
    answer here. They represent *contributions*, which add up to the batch
    gradient.

    Nothing changes a factor, and no answer depends on what was asked before.
    Who needs more than one answer asks what `held()` returns.

    `sampled` names the attributes that hold such tensors, or factors, so that
    `map` can change them.

    A class of other gradients derives from this one or from `Adapted`: a class
    that has gradients answers in its own ways what follows from them.

    Units are those of the gradient; its square for norms. In a step half
    precision is widened before it is squared (`Widened`).

    Raises:
        TypeError: a subclass defines `materialize` though its base does.
        NotImplementedError: `map` is asked of a class without `sampled`.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> two = factors.Full(tf.constant([[3.0, 4.0], [0.0, 1.0]]))
    >>> isinstance(two, factors.SampleGradients), two.squared_norms().numpy()
    (True, array([25.,  1.], dtype=float32))
    >>> two.weighted_sum(tf.constant([1.0, 2.0])).numpy()
    array([3., 6.], dtype=float32)
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__[1:]:
            if (
                issubclass(base, SampleGradients)
                and not inspect.isabstract(base)
                and base.materialize is not cls.materialize
            ):
                raise TypeError(
                    "A factor of other gradients expected as its base "
                    "SampleGradients or Adapted, whose answers all follow "
                    f"from `materialize`. Received: {cls.__name__}, which "
                    f"derives from {base.__name__} and defines materialize()."
                )

    def map(self, change: Any) -> Any:
        """Return a factor with each of its tensors changed.

        Args:
            change: a function of a tensor, (n, ...), of floats or integers;
                only n and the type may be others afterwards.

        Example:

        >>> import tensorflow as tf
        >>> from keras_pergrad import factors
        >>> two = factors.Full(tf.constant([[3.0, 4.0], [0.0, 1.0]]))
        >>> two.map(lambda tensor: tensor[1:]).squared_norms().numpy()
        array([1.], dtype=float32)
        """
        return map_factors([self], change)[0]

    def held(self, pairs: bool = False) -> "SampleGradients":
        """Return the factor in the form that several answers share.

        Where the norms take the gradients themselves, these are written out
        here, once, and the sum and products read them. For one answer alone
        this may cost more.

        Args:
            pairs: whether `gram` is asked, not the norms.

        Example:

        >>> import tensorflow as tf
        >>> from keras_pergrad import factors
        >>> x, dz = tf.ones((2, 50, 3)), tf.ones((2, 50, 4))
        >>> factors.Outer(x, dz).held().gradients.shape.as_list()
        [2, 3, 4]
        """
        del pairs
        return self

    @abc.abstractmethod
    def squared_norms(self) -> tf.Tensor:
        """Return the squared Euclidean norm of each contribution, (n,)."""

    @abc.abstractmethod
    def weighted_sum(self, weights: tf.Tensor | None) -> Any:
        """Return the sum of all contributions, each times its weight.

        Args:
            weights: (n,), or None for the plain sum.

        Returns:
            A tensor of the variable's shape (or `tf.IndexedSlices`).
        """

    @abc.abstractmethod
    def materialize(self) -> tf.Tensor:
        """Return all contributions, (n, *shape of the variable)."""

    def dot(self, direction: Any) -> tf.Tensor:
        """Return the inner product of each contribution with a gradient, (n,).

        In a step half precision is widened first (`Widened`).

        Args:
            direction: a tensor of the variable's shape, or `tf.IndexedSlices`,
                which may repeat rows.

        Example:

        >>> import tensorflow as tf
        >>> from keras_pergrad import factors
        >>> bias = factors.Full(tf.constant([[3.0, 4.0], [0.0, 1.0]]))
        >>> bias.dot(tf.constant([1.0, 2.0])).numpy()
        array([11.,  2.], dtype=float32)
        """
        return inner_products(self.materialize(), direction)

    def sum_of_squares(self) -> Any:
        """Return Σ g², over the samples, of each entry by itself.

        With one position at a kernel it is one matrix product, as BackPACK's
        sum of squares (Dangel et al., arXiv 1912.10985). In a step half
        precision is widened first (`Widened`).

        Returns:
            A tensor of the variable's shape (or `tf.IndexedSlices`, where
            `weighted_sum` returns them).

        Example:

        >>> import tensorflow as tf
        >>> from keras_pergrad import factors
        >>> bias = factors.Full(tf.constant([[3.0, 4.0], [0.0, 1.0]]))
        >>> bias.sum_of_squares().numpy()
        array([ 9., 17.], dtype=float32)
        """
        return squares(self.materialize())

    def gram(self, other: "SampleGradients | None" = None) -> tf.Tensor:
        """Return the inner products of all pairs of contributions, (n, m).

        In a step half precision is widened first (`Widened`).

        Args:
            other: the `SampleGradients` of this variable for m other samples;
                None: these with each other.

        Example:

        >>> import tensorflow as tf
        >>> from keras_pergrad import factors
        >>> bias = factors.Full(tf.constant([[3.0, 4.0], [0.0, 1.0]]))
        >>> bias.gram().numpy()
        array([[25.,  4.],
               [ 4.,  1.]], dtype=float32)
        """
        rows = flat_samples(self.materialize())
        other_rows = (
            rows if other is None else flat_samples(other.materialize())
        )
        return tf.matmul(
            rows, tf.cast(other_rows, rows.dtype), transpose_b=True
        )

    def squared_norm_of_sum(self) -> tf.Tensor:
        """Return the squared norm of the sum of all contributions, a scalar."""
        total = tf.convert_to_tensor(self.weighted_sum(None))
        return tf.reduce_sum(tf.square(total))

    def chosen_method(self) -> str:
        """How the norms are computed, in a word."""
        return "full"

    def sum_method(self) -> str:
        """How the weighted sum is computed along with the norms, in a word.

        "held": from gradients that the norms have materialised (`held`).
        """
        return "held"

    def norm_bytes(self, n: int) -> int | None:
        """Return the bytes that norms of n samples hold beyond given tensors.

        None if the shapes are not known.
        """
        return None
