"""The n per-sample gradients of one variable, kept factored."""

import abc
from typing import Any

import tensorflow as tf

from keras_pergrad.factors import kronecker
from keras_pergrad.factors.blanking import blank, select
from keras_pergrad.factors.shared import in_rank, integers

#: What follows from the gradients, if a class has no better answer.
_FURTHER = (
    "axes",
    "dot",
    "dot_is_less",
    "gram",
    "kronecker",
    "project",
    "rotated",
    "sum_of_squares",
)
#: Types whose squares overflow, vanish or lose too many digits.
HALF = (tf.float16, tf.bfloat16)


class SampleGradients(abc.ABC):
    """The n per-sample gradients of one variable, not yet computed.

    Subclasses hold tensors whose first axis is the sample and answer
    questions, each as cheaply as their structure allows; three of them have no
    answer here. They represent *contributions*, which add up to the batch
    gradient.

    `rows` names the attributes that hold such tensors, so that `select` can
    blank a sample in all of them.

    Units are those of the gradient; its square for norms. In a step half
    precision is widened before it is squared (`widened`).

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> two = factors.Full(tf.constant([[3.0, 4.0], [0.0, 1.0]]))
    >>> isinstance(two, factors.SampleGradients), two.squared_norms().numpy()
    (True, array([25.,  1.], dtype=float32))
    >>> two.weighted_sum(tf.constant([1.0, 2.0])).numpy()
    array([3., 6.], dtype=float32)
    """

    rows = ()
    # What `select` kept, where it blanked the gradients alone.
    _kept = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # A class of other gradients than its base has none of its answers.
        gradients = _defining(cls, "materialize")
        for name in _FURTHER:
            if _defining(cls, name) > gradients:
                setattr(cls, name, vars(SampleGradients)[name])

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
        """Return all contributions, (n, *shape of the variable)."""

    def dot(self, direction):
        """Return the inner product of each contribution with a gradient, (n,).

        Call it after `squared_norms`, if you need both: it reuses what they
        hold. In a step half precision is widened first (`widened`).

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
        sum of squares (Dangel et al., arXiv 1912.10985). Call it after
        `squared_norms`, if you need both. In a step half precision is widened
        first (`widened`).

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

    def gram(self, other=None):
        """Return the inner products of all pairs of contributions, (n, m).

        Call it after `squared_norms`, if you need both. In a step half
        precision is widened first (`widened`).

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
        rows = flat(self.materialize())
        others = rows if other is None else flat(other.materialize())
        return tf.matmul(rows, tf.cast(others, rows.dtype), transpose_b=True)

    def project(self, projection):
        """Return a random projection of each contribution, (n, k).

        Inner products of projections are those of contributions in the mean.
        All factors of a variable give the same linear map, exactly. Outer
        products need no gradient: each side is projected (LoGra, Choe et al.,
        arXiv 2405.13954). Call it after `squared_norms`, if you need both.

        Args:
            projection: the `Projection` of this variable; k is its `size`.

        Example:

        >>> import tensorflow as tf
        >>> from keras_pergrad import factors
        >>> kernel = factors.Outer(tf.ones((5, 20)), tf.ones((5, 30)))
        >>> kernel.project(factors.Projection((20, 30), 16, seed=0)).shape
        TensorShape([5, 16])
        """
        return projection.of_gradients(self.materialize())

    def dot_is_less(self, projection):
        """Whether `dot` costs no more than `project`, or hardly more."""
        return True

    def kronecker(self):
        """Return a Kronecker product that stands for Σ g gᵀ: a `Kronecker`.

        For outer products Σ_t a_t ⊗ b_t of one use they are the sums of a aᵀ
        and b bᵀ over samples and positions (K-FAC; "expand" in Eschenhagen et
        al., arXiv 2311.00636). Others answer the exact Σ g gᵀ of a variable of
        at most 1,024 entries, else its exact diagonal.

        Example:

        >>> import tensorflow as tf
        >>> from keras_pergrad import factors
        >>> kernel = factors.Outer(tf.ones((5, 2)), tf.ones((5, 3)))
        >>> found = kernel.kronecker()
        >>> found.inputs.numpy(), int(found.count), found.axes
        (array([[5., 5.],
               [5., 5.]], dtype=float32), 5, (0,))
        """
        squared = tf.convert_to_tensor(self.sum_of_squares())
        size = squared.shape.num_elements()
        if size is None or size > kronecker.FULL:
            squared = tf.reshape(squared, [-1])
            return kronecker.Kronecker.of_entries(squared)
        rows = flat(self.materialize())
        pairs = tf.matmul(rows, rows, transpose_a=True)
        return kronecker.Kronecker.of_entries(pairs)

    def axes(self):
        """Return the variable's axes on the left of `kronecker`."""
        return ()

    def rotated(self, inputs=None, outputs=None):
        """Return the factor of Uᵀ G V, for gradients G seen as matrices.

        With the eigenvectors of `kronecker`, its `sum_of_squares` are the
        corrected eigenvalues of EK-FAC (George et al., arXiv 1806.03884).

        Args:
            inputs, outputs: U, (i, any), and V, (o, any), for what `kronecker`
                has on the left and on the right; None: it stays as it is.

        Example:

        >>> import tensorflow as tf
        >>> from keras_pergrad import factors
        >>> bias = factors.Full(tf.constant([[3.0, 4.0], [0.0, 1.0]]))
        >>> turned = tf.constant([[0.6, -0.8], [0.8, 0.6]])
        >>> bias.rotated(outputs=turned).sum_of_squares().numpy().round(2)
        array([[25.64,  0.36]], dtype=float32)
        """
        from keras_pergrad.factors.full import Full

        gradients = wide(self.materialize())
        matrices = kronecker.as_matrices(gradients, self.axes())
        return Full(kronecker.rotated(matrices, inputs, outputs))

    def squared_norm_of_sum(self):
        """Return the squared norm of the sum of all contributions, a scalar.

        Call it after `squared_norms`, whose held tensors it reuses.
        """
        total = tf.convert_to_tensor(self.weighted_sum(None))
        return tf.reduce_sum(tf.square(total))

    def _without_blank(self, *tensors):
        """Return tensors with samples, zeros for those that are blank."""
        if self._kept is None:
            return tensors
        return blank(self._kept, tensors)

    def chosen_method(self):
        """How the norms are computed, in a word."""
        return "full"

    def sum_method(self):
        """How the weighted sum is computed after the norms, in a word.

        "held": from gradients that the norms have materialised.
        """
        return "held"

    def norm_bytes(self, n):
        """Return the bytes that norms of n samples hold besides given tensors.

        None if the shapes are not known.
        """
        return None

    def holders(self):
        """Return the factors in it that hold tensors, itself first."""
        return [self]

    def select(self, keep):
        """Blank the samples for which `keep`, (n,) booleans, is false.

        A weight of zero is not enough: zero times NaN is NaN. Large tensors
        are not touched if every sample is kept.
        """
        select([self], keep)
        return self


def _defining(cls, name):
    """Return the place in the order of bases of the one that defines it."""
    return next(k for k, base in enumerate(cls.__mro__) if name in vars(base))


def wide(tensor):
    """Return `tensor`, in float32 if it is of half precision.

    Args:
        tensor: of any shape and floating type; the shape stays.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> factors.wide(tf.ones(2, tf.bfloat16)).dtype.name
    'float32'
    """
    return tf.cast(tensor, tf.float32) if tensor.dtype in HALF else tensor


def expand(weights, tensor):
    """Return weights (n,), shaped to multiply `tensor`, (n, ...)."""
    weights = tf.cast(weights, tensor.dtype)
    return in_rank(weights, [-1] + [1] * (tensor.shape.rank - 1))


def in_shape(tensor, shape):
    """Return a tensor in another shape, without an op if it has that."""
    known = tensor.shape.rank is not None and tensor.shape.as_list()
    if known == list(shape):
        return tensor
    return tf.reshape(tensor, integers(*shape))


def weighted(gradients, weights, shape=None):
    """Return Σ_n weights[n] · gradients[n] of materialised gradients.

    Without weights return Σ_n gradients[n]; in another shape if it is given.
    """
    if weights is None:
        # A product is faster than a reduction over the first axis.
        weights = tf.ones([tf.shape(gradients)[0]], gradients.dtype)
    weights = tf.cast(weights, gradients.dtype)
    known = gradients.shape[1:]
    shape = known if shape is None else shape
    if not known.num_elements():
        total = tf.tensordot(weights, gradients, 1)
        return total if shape is known else tf.reshape(total, shape)
    # As `tf.tensordot` does, in a sixth of its ops.
    rows = gradients
    if known.rank != 1:
        rows = tf.reshape(gradients, integers(-1, known.num_elements()))
    return tf.reshape(in_rank(weights, [1, -1]) @ rows, integers(*shape))


def inner_products(gradients, direction):
    """Return ⟨gradients[n], direction⟩ of materialised gradients, (n,)."""
    rows = flat(gradients)
    direction = in_type(direction, rows.dtype)
    return tf.linalg.matvec(rows, tf.reshape(direction, [-1]))


def flat(gradients):
    """Return materialised gradients, widened, as a vector a sample."""
    shape = tf.shape(gradients)
    size = gradients.shape[1:].num_elements() or tf.reduce_prod(shape[1:])
    return tf.reshape(wide(gradients), [shape[0], size])


def in_type(direction, dtype):
    """Return a gradient as a tensor of this type; equal rows are added."""
    return tf.cast(tf.convert_to_tensor(direction), dtype)


def squares(gradients):
    """Return Σ_n gradients[n]² of materialised gradients, entry by entry."""
    return tf.reduce_sum(tf.square(wide(gradients)), 0)


def squares_by_sample(tensor):
    """Return the sum of squares over all axes but the first, (n,)."""
    axes = integers(*range(1, tensor.shape.rank))
    return tf.reduce_sum(tf.square(tensor), axes)
