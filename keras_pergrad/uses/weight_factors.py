"""Factors of tensors that are made of weights, back at their variables."""

import functools

import tensorflow as tf

from keras_pergrad.factors import SampleGradients
from keras_pergrad.factors.base import (
    HALF,
    squares_by_sample,
    weighted_total,
)
from keras_pergrad.keras_internals.graphs.gradients import op_gradients
from keras_pergrad.proof.layout import sizes_of


class PulledBack(SampleGradients):
    """A factor of a tensor, pulled back to the sources of the tensor.

    Args:
        factor: `SampleGradients` of the tensor.
        tensor: the tensor.
        sources: tensors that it depends on; their gradients are added. One may
            be the handle of a variable.
        shape: the shape of their gradients; default: that of the first one.
        keeps_norms: whether the norms are those of `factor`.
        move: where the tensor has entries of its only source, and no more: the
            function that moves a gradient's entries back, in any type. Norms
            are those of `factor` then.
        group: a list of others with this factor and tensor, to which it is
            added: what one of them needs is computed for all.
    """

    rows = ("_gradients",)

    def __init__(
        self,
        factor,
        tensor,
        sources,
        *,
        shape=None,
        keeps_norms=False,
        move=None,
        group=None,
    ):
        self.factor, self.tensor, self.sources = factor, tensor, sources
        # The ops' own gradients have the type of the tensor: of half precision
        # they would round a sum, and not the norms.
        precise = tensor.dtype not in HALF
        self.move = move
        self.keeps_norms = move is not None or (keeps_norms and precise)
        self.shape = list(sources[0].shape if shape is None else shape)
        self._gradients, self._cached_sum = None, {}
        self._group = [] if group is None else group
        self._group.append(self)

    def holders(self):
        if self._gradients is not None:
            return [self]
        return [self, *self.factor.holders()]

    def chosen_method(self):
        return self.factor.chosen_method() if self.keeps_norms else "full"

    def sum_method(self):
        return self.factor.sum_method()

    def norm_bytes(self, n):
        return self.factor.norm_bytes(n) if self.keeps_norms else None

    def squared_norms(self):
        if self.keeps_norms and self._gradients is None:
            return self.factor.squared_norms()
        return squares_by_sample(self.materialize())

    def weighted_sum(self, weights):
        if self._gradients is not None:
            return weighted_total(self._gradients, weights)
        if weights is not self._cached_sum.get("weights", self):
            tensor_sum = tf.convert_to_tensor(self.factor.weighted_sum(weights))
            tensor_sum = tf.reshape(tensor_sum, sizes_of(self.tensor))
            for member, total in zip(self._group, self._pull_back(tensor_sum)):
                member._cached_sum = {"weights": weights, "total": total}
        return self._cached_sum["total"]

    def materialize(self):
        if self._gradients is None:
            self._hold()
        return self._gradients

    def _hold(self):
        """Write the gradients of all in the group out."""
        materialized = self.factor.materialize()
        by_member = tf.map_fn(
            self._pull_back,
            tf.reshape(
                materialized,
                [tf.shape(materialized)[0], *sizes_of(self.tensor)],
            ),
            fn_output_signature=[
                tf.TensorSpec(member.shape, member._dtype_for(materialized))
                for member in self._group
            ],
        )
        for member, gradients in zip(self._group, by_member):
            member._gradients = gradients

    def dot(self, direction):
        if not self._moves_entries():
            return super().dot(direction)
        # The other way, from the sources to the tensor. `_pull_back` is linear:
        # the gradient of its result is the transposed map, at any point.
        direction = tf.convert_to_tensor(direction)
        zeros = tf.zeros(sizes_of(self.tensor), direction.dtype)
        (source_gradient,) = self._pull_back(zeros)
        (direction,) = tf.gradients(source_gradient, zeros, direction)
        return self.factor.dot(direction)

    def sum_of_squares(self):
        if not self._moves_entries():
            return super().sum_of_squares()
        total = tf.convert_to_tensor(self.factor.sum_of_squares())
        (total,) = self._pull_back(tf.reshape(total, sizes_of(self.tensor)))
        return total

    def gram(self, other=None):
        if other is None and self._moves_entries():
            return self.factor.gram()
        return super().gram(other)

    def _moves_entries(self):
        """Whether each entry is one of `factor`'s, which holds the tensors."""
        return self.keeps_norms and self._gradients is None

    def _pull_back(self, gradient):
        """Return the gradients at the sources of all in the group."""
        if self.move is not None:
            return [self.move(gradient)]
        tensor, group = self.tensor, self._group
        gradients = iter(
            op_gradients(
                [tensor],
                [source for member in group for source in member.sources],
                [tf.cast(gradient, tensor.dtype)],
                tensor.graph,
            )
        )
        return [
            member._add_sources(
                [next(gradients) for _ in member.sources], gradient
            )
            for member in group
        ]

    def _add_sources(self, parts, gradient):
        dtype = self._dtype_for(gradient)
        parts = [
            tf.cast(tf.convert_to_tensor(g), dtype)
            for g in parts
            if g is not None
        ]
        if not parts:
            return tf.zeros(self.shape, dtype)
        return tf.add_n(parts)

    def _dtype_for(self, gradient):
        """Return the type of the pulled-back gradient."""
        if self.sources[0].dtype.is_complex:
            return gradient.dtype
        return gradient.dtype.real_dtype


class Reshaped(PulledBack):
    """A factor of the output of a reshape, pulled back to its source.

    Args:
        factor: `SampleGradients` of the output.
        op: the reshape, which has the same entries on both sides.
    """

    def __init__(self, factor, op):
        source, (output,) = op.inputs[0], op.outputs
        move = functools.partial(tf.reshape, shape=sizes_of(source))
        super().__init__(factor, output, [source], move=move)
