"""Several uses of one variable: shared layers and tied weights.

Norms do not add up over the uses. Tables, and matrices of one layout, are
joined along their positions: one more use is like a longer sample. If a table
is also a matrix (tied embeddings), its cross terms are added. In these cases
no array of the variable's size is held. Others are materialised and added.
"""

import copy

import tensorflow as tf

from keras_pergrad.factors.base import SampleGradients
from keras_pergrad.factors.full import Held
from keras_pergrad.factors.outer import Outer
from keras_pergrad.factors.rounding import rounded_up
from keras_pergrad.factors.rows import Rows
from keras_pergrad.factors.written_out import (
    held_bytes,
    squares_by_sample,
    wide,
)


def join(parts):
    """Return one factor for all uses of a variable.

    Args:
        parts: the `SampleGradients` of each use, at least one.

    Returns:
        The factor itself if there is one, else one of a kind that gives the
        exact norm of the sum.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> part = factors.Sum(tf.ones((2, 5, 3)))
    >>> factors.join([part, part]).squared_norms().numpy()  # 3 · 10²
    array([300., 300.], dtype=float32)
    """
    for factor_class, joined_class in (
        (Rows, JoinedRows),
        (Outer, JoinedOuter),
    ):
        parts = _join_same_layout(parts, factor_class, joined_class)
    if len(parts) == 1:
        return parts[0]
    return tie_factors(parts) or Joined(parts)


def tie_factors(parts):
    """Return one factor for a table that is also a matrix, or None."""
    # Another subclass may mean other gradients by the same tensors.
    table = next((p for p in parts if type(p) in (Rows, JoinedRows)), None)
    matrix = next((p for p in parts if type(p) in (Outer, JoinedOuter)), None)
    if len(parts) != 2 or table is None or matrix is None:
        return None
    if table.whole != list(matrix.shape) or table.dz.dtype != matrix.x.dtype:
        return None
    sizes = [matrix.x.shape[-1], matrix.dz.shape[-1]]
    is_plain = matrix.perm is None and list(matrix.shape) == sizes
    is_transposed = (
        matrix.perm is not None
        and list(matrix.perm) == [1, 0]
        and list(matrix.unpermuted or ()) == sizes
    )
    if not is_plain and not is_transposed:
        return None
    return Tied(table, matrix, is_transposed)


def _join_same_layout(parts, factor_class, joined_class):
    """Return `parts`, where parts of this kind and one layout are joined."""
    groups, remaining = {}, []
    for part in parts:
        if type(part) is factor_class:
            layout = *part.layout(), part.dz.dtype, part.method
            groups.setdefault(layout, []).append(part)
        else:
            remaining.append(part)
    for group in groups.values():
        remaining.append(group[0] if len(group) == 1 else joined_class(group))
    return remaining


class Joined(SampleGradients):
    """The sum of several factors of one variable, of any kinds.

    The contributions are added before they are squared.

    Args:
        parts: the factors, at least two.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> part = factors.Full(tf.ones((2, 1)))
    >>> factors.Joined([part, part]).squared_norms().numpy()  # not 1 + 1
    array([4., 4.], dtype=float32)
    """

    sampled: tuple[str, ...] = ("parts",)

    def __init__(self, parts):
        self.parts = parts

    def held(self, pairs=False):
        return Held(self.materialize())

    def squared_norms(self):
        return squares_by_sample(self.materialize())

    def weighted_sum(self, weights):
        sums = [part.weighted_sum(weights) for part in self.parts]
        return tf.add_n([wide(tf.convert_to_tensor(s)) for s in sums])

    def materialize(self):
        return tf.add_n([wide(part.materialize()) for part in self.parts])

    def dot(self, direction):
        return tf.add_n([wide(part.dot(direction)) for part in self.parts])

    def chosen_method(self):
        return "joined"

    def norm_bytes(self, n):
        return held_bytes(self.parts[0].materialize(), n)


class Tied(Joined):
    """A table that is also a matrix: embeddings tied to output logits.

    With contributions Σ_s onehot(ids_s) ⊗ dz_s and Σ_t a_t ⊗ b_t the cross
    term of the squared norm is 2 Σ_st a_t[ids_s] ⟨b_t, dz_s⟩.

    Args:
        table: a `Rows`.
        matrix: an `Outer` of the same shape.
        is_transposed: whether its `dz`, not its `x`, has the table's rows.
    """

    sampled = ("parts", "_table", "_matrix")

    def __init__(self, table, matrix, is_transposed):
        super().__init__([table, matrix])
        # For the cross terms, also where the parts are held.
        self._table, self._matrix = table, matrix
        self._is_transposed = is_transposed

    def held(self, pairs=False):
        held = copy.copy(self)
        held.parts = [part.held(pairs) for part in self.parts]
        return held

    def _gathered_sides(self):
        """Return a at the looked-up rows, (n, t, s), and b, (n, t, d)."""
        a, b = self._sides()
        copies = tf.stack([1, tf.shape(a)[1], 1])
        ids = tf.tile(self._table.ids[:, None], copies)
        return tf.gather(a, ids, axis=2, batch_dims=2), b

    def _sides(self):
        """Return a and b, (n, t, rows) and (n, t, d)."""
        sides = self._matrix.x, self._matrix.dz
        return sides[::-1] if self._is_transposed else sides

    def squared_norms(self):
        gathered, b = self._gathered_sides()
        products = tf.matmul(b, self._table.dz, transpose_b=True)
        cross = tf.reduce_sum(gathered * products, [1, 2])
        table, matrix = self.parts
        squares = table.squared_norms() + matrix.squared_norms()
        return rounded_up(squares + 2 * cross, 2 * squares, b)

    def sum_of_squares(self):
        table = self._table
        gathered, b = self._gathered_sides()
        # The matrix's gradients in the rows of the table, (n, s, d).
        cross = table.dz * tf.matmul(gathered, b, transpose_a=True)
        cross = table.slices(2 * cross, tf.reshape(table.ids, [-1]))
        squares = [part.sum_of_squares() for part in self.parts[::-1]]
        total = tf.add_n([tf.convert_to_tensor(s) for s in (*squares, cross)])
        return tf.maximum(total, 0)

    def gram(self, other=None):
        other = self if other is None else other
        if (
            type(other) is not Tied
            or self._is_transposed != other._is_transposed
        ):
            return super().gram(other)
        (table, matrix), (table_2, matrix_2) = self.parts, other.parts
        products = table.gram(table_2) + matrix.gram(matrix_2)
        return products + self._cross(other) + tf.transpose(other._cross(self))

    def _cross(self, other):
        """Return the products of the table with the other's matrix, (n, m)."""
        a, b = other._sides()

        def of_sample(table_sample):
            ids, dz = table_sample
            products = tf.matmul(b, dz, transpose_b=True)
            return tf.reduce_sum(tf.gather(a, ids, axis=2) * products, [1, 2])

        table = self._table
        return tf.map_fn(
            of_sample,
            (table.ids, table.dz),
            fn_output_signature=tf.TensorSpec([None], table.dz.dtype),
        )

    def chosen_method(self):
        return self.parts[1].chosen_method()

    def sum_method(self):
        return self.parts[1].sum_method()

    def norm_bytes(self, n):
        table, matrix = self._table, self._matrix
        bytes_of_parts = [part.norm_bytes(n) for part in self.parts]
        if None in (*bytes_of_parts, table.ids.shape[1], matrix.positions):
            return None
        pairs = table.ids.shape[1] * matrix.positions
        return sum(bytes_of_parts) + 2 * n * pairs * matrix.x.dtype.size


class JoinedRows(Rows):
    """Several uses of a table as one use with all their positions."""

    def __init__(self, parts):
        ids_dtype = tf.int64 if len({p.ids.dtype for p in parts}) > 1 else None
        super().__init__(
            tf.concat(
                [tf.cast(p.ids, ids_dtype or p.ids.dtype) for p in parts], 1
            ),
            tf.concat([p.dz for p in parts], 1),
            parts[0].shape,
            method=parts[0].method,
            whole=parts[0].whole,
        )

    def norm_bytes(self, n):
        return _add_copies(super().norm_bytes(n), n, self.ids, self.dz)


class JoinedOuter(Outer):
    """Several uses of a matrix as one use with all their positions."""

    def __init__(self, parts):
        first = parts[0]
        super().__init__(
            tf.concat([p.x for p in parts], 1),
            tf.concat([p.dz for p in parts], 1),
            first.shape,
            perm=first.perm,
            unpermuted=first.unpermuted,
            method=first.method,
        )

    def norm_bytes(self, n):
        return _add_copies(super().norm_bytes(n), n, self.x, self.dz)


def _add_copies(norm_bytes, n, *tensors):
    """Add the bytes of the tensors that joining has copied."""
    all_bytes = [norm_bytes, *(held_bytes(t, n) for t in tensors)]
    return None if None in all_bytes else sum(all_bytes)
