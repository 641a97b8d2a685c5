"""The contract of factors: a weight's gradient for each sample, not held."""

import abc
import copy
import inspect
import math
import weakref
from typing import Any

import tensorflow as tf

from keras_pergrad.keras_internals.tensorflow.settings import in_xla

# Small tensors that the factors of a graph share.
#
# Each op costs about a tenth of a millisecond to trace, and as much to
# optimise and start; a step has a norm and a sum for each variable.


# The names of tensors, since a tensor keeps its graph alive.
_TENSOR_NAMES = weakref.WeakKeyDictionary()


def integers(*values):
    """Return integers, an axis or a shape, as one constant of the graph."""
    not_shared = tf.executing_eagerly() or not values
    if not_shared or not all(type(value) is int for value in values):
        return list(values)
    return _shared_tensor(values, lambda: tf.constant(values, tf.int32))


def reshape_once(tensor, shape):
    """Return a tensor in a shape of integers, made once in its graph."""
    # A tensor with a value has no graph.
    graph = getattr(tensor, "graph", None)
    if graph is not tf.compat.v1.get_default_graph():
        return tf.reshape(tensor, shape)
    key = tensor.name, *shape
    return _shared_tensor(key, lambda: tf.reshape(tensor, integers(*shape)))


def zero(dtype):
    """Return a scalar zero, as one constant of the graph."""
    if tf.executing_eagerly():
        return tf.zeros([], dtype)
    return _shared_tensor(("zero", dtype), lambda: tf.constant(0, dtype))


def _shared_tensor(key, make):
    """Return `make()`, a tensor, which is made once in a graph."""
    graph = tf.compat.v1.get_default_graph()
    names = _TENSOR_NAMES.setdefault(graph, {})
    if key not in names:
        # The control dependencies of the first use are not those of others.
        with tf.control_dependencies(None):
            names[key] = make().name
    return graph.get_tensor_by_name(names[key])


# Samples that are not finite are blanked in what factors hold.


#: Numbers of a sample that are blanked without asking whether any must be.
_SMALL_SIZE = 4000


def select(factors, keep):
    """Return factors that are blank for the samples that are not kept.

    A weight of zero is not enough: zero times NaN is NaN. Large tensors are
    not touched if every sample is kept.

    Args:
        factors: `SampleGradients`; None stays None.
        keep: (n,) booleans.
    """
    tensors = {}
    map_factors(factors, lambda t: tensors.setdefault(id(t), t))
    tensors = [t for t in tensors.values() if t.dtype.is_floating]
    small = [t for t in tensors if _is_small(t)]
    large = [t for t in tensors if not _is_small(t)]
    blanked = blank(keep, small)
    if large:
        # A called function would spare ops, but would hide where they run, and
        # each could not run on the device that has its kernel.
        blanked += tf.cond(
            tf.reduce_all(keep), lambda: large, lambda: blank(keep, large)
        )
    by_id = {}
    for tensor, chosen in zip(small + large, blanked):
        chosen.set_shape(tensor.shape)
        by_id[id(tensor)] = chosen
    return map_factors(factors, lambda t: by_id.get(id(t), t))


def _is_small(tensor):
    """Whether blanking costs less than the ops of a condition."""
    size = tensor.shape[1:].num_elements()
    return size is not None and size <= _SMALL_SIZE


def blank(keep, tensors):
    """Return tensors with zeros for samples that are not kept."""
    masks, zeros = {}, {}
    for t in tensors:
        rank, dtype = t.shape.rank, t.dtype
        if rank not in masks:
            masks[rank] = tf.reshape(keep, [-1] + [1] * (rank - 1))
        if dtype not in zeros:
            zeros[dtype] = tf.zeros([], dtype)
    return [tf.where(masks[t.shape.rank], t, zeros[t.dtype]) for t in tensors]


# The n per-sample gradients of one variable, kept factored.


#: Types whose squares overflow, vanish or lose too many digits.
HALF = (tf.float16, tf.bfloat16)


class Sampled:
    """What holds tensors whose first axis is the sample.

    Nothing changes it after its constructor.

    Attributes:
        sampled: the names of the attributes that follow the samples: tensors
            with the samples on the first axis, `Sampled` objects, lists of
            either, or None.
    """

    sampled: tuple[str, ...] = ()


class Shared(Sampled):
    """What several factors ask for: each answer is made once in a graph."""

    def __init__(self):
        self._answers = {}

    def __getstate__(self):
        # What a copy, with other tensors, answers is something else.
        return {**vars(self), "_answers": {}}

    def once(self, question, make, weights=None):
        """Return `make()`, made once for a question and a weights tensor."""
        # The tensors of a branch cannot be used outside of it.
        graph = tf.compat.v1.get_default_graph()
        key = graph, question, id(weights)
        if key not in self._answers:
            # The weights are kept, so that nothing else gets their id.
            self._answers[key] = weights, make()
        return self._answers[key][1]


def map_factors(factors, change):
    """Return factors with each of their tensors changed, None as None.

    A tensor that several factors hold is changed once, and they share it.

    Args:
        factors: `SampleGradients`, or None.
        change: a function of a tensor, (n, ...), of floats or integers; only
            n and the type may be others afterwards.
    """
    done = {}
    return [_mapped(factor, change, done) for factor in factors]


def _mapped(part, change, done):
    if part is None:
        return None
    if isinstance(part, list):
        return [_mapped(one, change, done) for one in part]
    if id(part) not in done:
        if isinstance(part, Sampled):
            if not part.sampled:
                raise NotImplementedError(
                    f"{type(part).__name__} must name in `sampled` the "
                    "attributes that follow the samples, tensors or factors."
                )
            done[id(part)] = mapped = copy.copy(part)
            for name in part.sampled:
                value = _mapped(getattr(part, name), change, done)
                setattr(mapped, name, value)
        else:
            done[id(part)] = change(part)
    return done[id(part)]


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
    precision is widened before it is squared (`widened`).

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

        In a step half precision is widened first (`widened`).

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
        precision is widened first (`widened`).

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

        In a step half precision is widened first (`widened`).

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
        """Return the bytes that norms of n samples hold besides given tensors.

        None if the shapes are not known.
        """
        return None


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
    return reshape_once(weights, [-1] + [1] * (tensor.shape.rank - 1))


def in_shape(tensor, shape):
    """Return a tensor in another shape, without an op if it has that."""
    static_shape = tensor.shape.rank is not None and tensor.shape.as_list()
    is_known = not any(tf.is_tensor(size) for size in shape)
    if is_known and static_shape == list(shape):
        return tensor
    return tf.reshape(tensor, integers(*shape))


def weighted_total(gradients, weights, shape=None):
    """Return Σ_n weights[n] · gradients[n] of materialised gradients.

    Without weights return Σ_n gradients[n]; in another shape if it is given.
    """
    if weights is None:
        # A product is faster than a reduction over the first axis.
        weights = tf.ones([tf.shape(gradients)[0]], gradients.dtype)
    weights = tf.cast(weights, gradients.dtype)
    static_shape = gradients.shape[1:]
    shape = static_shape if shape is None else shape
    if not static_shape.num_elements():
        total = tf.tensordot(weights, gradients, 1)
        return total if shape is static_shape else tf.reshape(total, shape)
    # As `tf.tensordot` does, in a sixth of its ops.
    rows = gradients
    if static_shape.rank != 1:
        rows = tf.reshape(gradients, integers(-1, static_shape.num_elements()))
    return tf.reshape(reshape_once(weights, [1, -1]) @ rows, integers(*shape))


def inner_products(gradients, direction):
    """Return ⟨gradients[n], direction⟩ of materialised gradients, (n,)."""
    rows = flat_samples(gradients)
    direction = in_type(direction, rows.dtype)
    return tf.linalg.matvec(rows, tf.reshape(direction, [-1]))


def flat_samples(gradients):
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


# Squared norms that rounding has not made too small.
#
# Clipping relies on it: a norm that is too small lets a sample keep too much.


def squares_of_products(products, *sides):
    """Return squared norms, (n,), that rounding has not made too small.

    ‖Σ_t g_t‖² is the sum of the inner products of all g_t. Where these
    cancel, what is left is as small as the rounding of the largest of them,
    Σ_t ‖g_t‖² of some units in the last place. So much is added: of a sample
    whose positions do not cancel it is about a millionth, and a norm is never
    below the true one, which clipping relies on.

    Args:
        products: ⟨g_s, g_t⟩, of the shape (n, T, T) or (n, groups, T, T).
        sides: the tensors whose last axes were added up for them.
    """
    count = products.shape[-1] or tf.shape(products)[-1]
    groups = products.shape[1] if products.shape.rank > 3 else 1
    flat_products = tf.reshape(products, integers(-1, groups, count * count))
    axes = integers(1, 2)
    # Every (T + 1)th entry of a flat T × T matrix is on its diagonal.
    diagonal_sum = tf.reduce_sum(flat_products[:, :, :: count + 1], axes)
    return rounded_up(tf.reduce_sum(flat_products, axes), diagonal_sum, *sides)


def rounded_up(total, magnitudes, *sides):
    """Add what rounding may have taken from sums that cancel in part.

    Args:
        total: the sums, (n,).
        magnitudes: the sums of the sizes of their terms, (n,).
        sides: the tensors whose last axes were added up for the terms.
    """
    unit = 2.0**-52 if total.dtype == tf.float64 else 2.0**-23
    # Measured: 8 units at most. XLA adds one product after the other.
    sum_length = max(side.shape[-1] or 0 for side in sides)
    units = 8 + math.sqrt(sum_length) if in_xla() else 8
    margin = magnitudes * (unit * units)
    return tf.maximum(total + margin, zero(total.dtype))


# Per-sample gradients that are materialised, not factored.


class Full(SampleGradients):
    """Materialised contributions.

    Args:
        gradients: (n, *shape of the variable).

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> factors.Full(tf.ones((2, 3, 3))).squared_norms().numpy()
    array([9., 9.], dtype=float32)
    """

    sampled: tuple[str, ...] = ("gradients",)
    gradients: Any

    def __init__(self, gradients: tf.Tensor):
        self.gradients = gradients

    def squared_norms(self) -> tf.Tensor:
        return squares_by_sample(self.gradients)

    def weighted_sum(self, weights: tf.Tensor | None) -> tf.Tensor:
        if weights is None:
            return tf.reduce_sum(self.gradients, 0)
        return weighted_total(self.gradients, weights)

    def materialize(self) -> tf.Tensor:
        return self.gradients

    def norm_bytes(self, n: int) -> int | None:
        return held_bytes(self.gradients, n)


class Permuted(SampleGradients):
    """Contributions that are matrices whose axes are those of the variable.

    Attributes:
        shape: the variable's shape; None: that of the matrix.
        perm: how axes must be transposed to give `shape`, applied to a matrix
            reshaped to `unpermuted`; None: not.
        unpermuted: the shape before `perm`.
    """

    shape: Any
    perm: Any
    unpermuted: Any

    def _restore_shape(self, matrix, batch=()):
        """Return a matrix (*batch, ...) in the shape of the variable."""
        if self.perm is not None:
            matrix = in_shape(matrix, [*batch, *self.unpermuted])
            rank = len(batch)
            perm = [*range(rank), *(p + rank for p in self.perm)]
            matrix = tf.transpose(matrix, perm)
        shape = self.shape
        return matrix if shape is None else in_shape(matrix, [*batch, *shape])

    def _as_matrix(self, direction, shape):
        """Return a gradient of the variable as a matrix of this shape."""
        if self.perm is not None:
            sizes = [self.unpermuted[p] for p in self.perm]
            inverse = [list(self.perm).index(k) for k in range(len(self.perm))]
            direction = tf.transpose(tf.reshape(direction, sizes), inverse)
        return in_shape(direction, shape)


class Held(Permuted):
    """Gradients written out for several answers, in the layout of a factor.

    Args:
        gradients: (n, ...), with as many entries as the variable.
        shape, perm, unpermuted: as of `Outer`; default: a sample's gradient
            has the variable's shape.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> gradients = tf.ones((2, 3, 4))
    >>> kernel = factors.Held(gradients, [4, 3], perm=[1, 0], unpermuted=[3, 4])
    >>> kernel.weighted_sum(None).shape.as_list()
    [4, 3]
    """

    sampled = ("gradients",)

    def __init__(self, gradients, shape=None, perm=None, unpermuted=None):
        self.gradients = gradients
        self.shape = shape
        self.perm, self.unpermuted = perm, unpermuted

    def squared_norms(self):
        return squares_by_sample(self.gradients)

    def weighted_sum(self, weights):
        shape = self.shape if self.perm is None else self.unpermuted
        return self._restore_shape(
            weighted_total(self.gradients, weights, shape)
        )

    def materialize(self):
        return self._restore_shape(self.gradients, [-1])

    def dot(self, direction):
        matrix = self._as_matrix(tf.convert_to_tensor(direction), [-1])
        return inner_products(self.gradients, matrix)

    def sum_of_squares(self):
        return self._restore_shape(squares(self.gradients))

    def squared_norm_of_sum(self):
        return tf.reduce_sum(tf.square(tf.reduce_sum(self.gradients, 0)))

    def norm_bytes(self, n):
        return held_bytes(self.gradients, n)


def held_bytes(tensor, n):
    """Return the bytes of `tensor` for n samples; None for unknown shapes."""
    size = tensor.shape[1:].num_elements()
    return None if size is None else n * size * tensor.dtype.size


# The floating type in which several tensors meet.


def norm_type(tensors):
    """Return float64 where one of the tensors is, else float32.

    Args:
        tensors: tensors or the values of variables; None among them is left
            out. Squares of half precision would leave its range.
    """
    dtypes = {tf.as_dtype(t.dtype) for t in tensors if t is not None}
    return tf.float64 if tf.float64 in dtypes else tf.float32


def as_norms(tensors):
    """Return the tensors but for None, all of their `norm_type`."""
    dtype = norm_type(tensors)
    return [tf.cast(t, dtype) for t in tensors if t is not None]
