"""Several uses of one variable: shared layers and tied weights.

Norms do not add up over the uses. Tables, and matrices of one layout, are
joined along their positions: a use more is like a longer sample, and nothing
of the size of the variable is held. Others are added, written out.
"""

import tensorflow as tf

from keras_pergrad.factors.base import SampleGradients, sum_of_squares, weighted
from keras_pergrad.factors.full import held_bytes
from keras_pergrad.factors.outer import Outer
from keras_pergrad.factors.rows import Rows


def join(parts):
    """One factor for all uses of a variable.

    Args:
        parts: the `SampleGradients` of each use, at least one.
    """
    for kind, joined in ((Rows, JoinedRows), (Outer, JoinedOuter)):
        parts = _together(parts, kind, joined)
    return parts[0] if len(parts) == 1 else Joined(parts)


def _together(parts, kind, joined):
    """`parts`, those of this kind that have one layout made one."""
    groups, found = {}, []
    for part in parts:
        if type(part) is kind:
            groups.setdefault(joined.layout(part), []).append(part)
        else:
            found.append(part)
    for group in groups.values():
        found.append(group[0] if len(group) == 1 else joined(group))
    return found


class Joined(SampleGradients):
    """The sum of several factors of one variable, of any kinds.

    The contributions are added before they are squared.

    Args:
        parts: the factors, at least two.
    """

    rows = ("_gradients",)

    def __init__(self, parts):
        self.parts = parts
        self._gradients = None

    def squared_norms(self):
        return sum_of_squares(self.materialize())

    def weighted_sum(self, weights):
        if self._gradients is not None:
            return weighted(self._gradients, weights)
        sums = [part.weighted_sum(weights) for part in self.parts]
        return tf.add_n([tf.convert_to_tensor(s) for s in sums])

    def materialize(self):
        if self._gradients is None:
            self._gradients = tf.add_n([p.materialize() for p in self.parts])
        return self._gradients

    def holders(self):
        return [self, *(h for part in self.parts for h in part.holders())]

    def chosen_method(self):
        return "joined"

    def norm_bytes(self, n):
        return held_bytes(self.parts[0].materialize(), n)


class JoinedRows(Rows):
    """Several uses of a table as one of so many more positions.

    Args:
        parts: the `Rows` of each use, of one layout.
    """

    def __init__(self, parts):
        wide = tf.int64 if len({p.ids.dtype for p in parts}) > 1 else None
        super().__init__(
            tf.concat([tf.cast(p.ids, wide or p.ids.dtype) for p in parts], 1),
            tf.concat([p.dz for p in parts], 1),
            parts[0].shape,
            parts[0].method,
            parts[0].whole,
        )

    @staticmethod
    def layout(part):
        """What uses must have in common."""
        return tuple(part.whole), part.dz.dtype, part.method

    def norm_bytes(self, n):
        return _added(super().norm_bytes(n), n, self.ids, self.dz)


class JoinedOuter(Outer):
    """Several uses of a matrix as one at so many more positions.

    Args:
        parts: the `Outer` of each use, of one layout.
    """

    def __init__(self, parts):
        first = parts[0]
        super().__init__(
            tf.concat([p.x for p in parts], 1),
            tf.concat([p.dz for p in parts], 1),
            first.shape,
            first.perm,
            first.unpermuted,
            first.method,
        )

    @staticmethod
    def layout(part):
        """What uses must have in common."""
        axes = [tuple(a or ()) for a in (part.perm, part.unpermuted)]
        sizes = tuple(part.shape), part.x.shape[-1], part.dz.shape[-1]
        return *sizes, *axes, part.x.dtype, part.dz.dtype, part.method

    def norm_bytes(self, n):
        return _added(super().norm_bytes(n), n, self.x, self.dz)


def _added(norm_bytes, n, *tensors):
    """With what the joining has copied."""
    found = [norm_bytes, *(held_bytes(t, n) for t in tensors)]
    return None if None in found else sum(found)
