"""Factors of tensors that are made of weights, back at their variables."""

import functools

import tensorflow as tf

from keras_pergrad.factors import Adapted, Held, SampleGradients
from keras_pergrad.factors.sampled import Shared
from keras_pergrad.factors.written_out import sizes_of, squares_by_sample
from keras_pergrad.keras_internals.graphs.gradients import op_gradients


class PulledBack(SampleGradients):
    """A factor of a tensor, pulled back to some of the tensor's sources.

    Args:
        backward: the `Backward` of the tensor.
        sources: tensors that it depends on; their gradients are added. One may
            be the handle of a variable.
        shape: the shape of their gradients.
    """

    sampled = ("_backward",)

    def __init__(self, backward, sources, shape):
        self._backward = backward
        self._index = backward.add(sources, shape)
        self.shape = list(shape)

    def held(self, pairs=False):
        return Held(self.materialize())

    def sum_method(self):
        return self._backward.factor.sum_method()

    def squared_norms(self):
        return squares_by_sample(self.materialize())

    def weighted_sum(self, weights):
        return self._backward.weighted_sums(weights)[self._index]

    def materialize(self):
        return self._backward.materialize()[self._index]


class Backward(Shared):
    """The backward pass from a tensor to the sources of several variables.

    What one of their factors needs is computed for all.

    Args:
        factor: `SampleGradients` of the tensor.
        tensor: the tensor.
    """

    sampled = ("factor",)

    def __init__(self, factor, tensor):
        super().__init__()
        self.factor, self.tensor = factor, tensor
        self._sources, self._shapes = [], []

    def add(self, sources, shape):
        """Return the index of what is pulled back to these sources."""
        self._sources.append(sources)
        self._shapes.append(shape)
        return len(self._sources) - 1

    def weighted_sums(self, weights):
        """Return the weighted sums of all variables."""

        def compute():
            total = tf.convert_to_tensor(self.factor.weighted_sum(weights))
            return self._pull_back(tf.reshape(total, sizes_of(self.tensor)))

        return self.once("weighted_sums", compute, weights)

    def materialize(self):
        """Return the gradients of all variables, written out."""

        def compute():
            gradients = self.factor.materialize()
            shape = [tf.shape(gradients)[0], *sizes_of(self.tensor)]
            specs = [
                tf.TensorSpec(shape, _dtype(sources, gradients))
                for sources, shape in zip(self._sources, self._shapes)
            ]
            return tf.map_fn(
                self._pull_back,
                tf.reshape(gradients, shape),
                fn_output_signature=specs,
            )

        return self.once("materialize", compute)

    def _pull_back(self, gradient):
        """Return the gradients at the sources of all variables."""
        gradients = iter(
            op_gradients(
                [self.tensor],
                [source for sources in self._sources for source in sources],
                [tf.cast(gradient, self.tensor.dtype)],
                graph=self.tensor.graph,
            )
        )
        return [
            _total(
                [next(gradients) for _ in sources],
                shape=shape,
                dtype=_dtype(sources, gradient),
            )
            for sources, shape in zip(self._sources, self._shapes)
        ]


def _total(parts, shape, dtype):
    parts = [
        tf.cast(tf.convert_to_tensor(g), dtype) for g in parts if g is not None
    ]
    return tf.add_n(parts) if parts else tf.zeros(shape, dtype)


def _dtype(sources, gradient):
    """Return the type of a pulled-back gradient."""
    if sources[0].dtype.is_complex:
        return gradient.dtype
    return gradient.dtype.real_dtype


class Moved(Adapted):
    """A factor of a tensor whose entries are some of a source's, moved there.

    All other entries are zero, so that norms stay.

    Args:
        factor: `SampleGradients` of the tensor.
        tensor, source: the tensors.
        move: a function that moves a gradient's entries back, in any type;
            default: the op's own gradient, in the type of the tensor.
        move_all: the same for gradients (n, ...); default: one by one.
    """

    def __init__(self, factor, tensor, source, *, move=None, move_all=None):
        super().__init__(factor)
        self.tensor, self.source = tensor, source
        self.shape = list(source.shape)
        self._move, self._move_all = move, move_all

    def change(self, tensor):
        tensor = tf.reshape(tensor, sizes_of(self.tensor))
        if self._move is not None:
            return self._move(tensor)
        (gradient,) = op_gradients(
            [self.tensor],
            [self.source],
            [tf.cast(tensor, self.tensor.dtype)],
            graph=self.tensor.graph,
        )
        dtype = _dtype([self.source], tensor)
        return _total([gradient], self.shape, dtype)

    def materialize(self):
        gradients = self.factor.materialize()
        if self._move_all is not None:
            return self._move_all(gradients)
        spec = tf.TensorSpec(self.shape, gradients.dtype)
        return tf.map_fn(self.change, gradients, fn_output_signature=spec)

    def squared_norms(self):
        return self.factor.squared_norms()

    def sum_of_squares(self):
        return self.change(tf.convert_to_tensor(self.factor.sum_of_squares()))

    def dot(self, direction):
        # The other way, from the source to the tensor. `change` is linear: the
        # gradient of its result is the transposed map, at any point.
        direction = tf.convert_to_tensor(direction)
        zeros = tf.zeros(sizes_of(self.tensor), direction.dtype)
        moved = self.change(zeros)
        (direction,) = tf.gradients(moved, zeros, direction)
        return self.factor.dot(direction)

    def gram(self, other=None):
        return self.factor.gram() if other is None else super().gram(other)


class Reshaped(Moved):
    """A factor of the output of a reshape, pulled back to its source.

    Args:
        factor: `SampleGradients` of the output.
        op: the reshape, which has the same entries on both sides.
    """

    def __init__(self, factor, op):
        source, (output,) = op.inputs[0], op.outputs
        move = functools.partial(tf.reshape, shape=sizes_of(source))
        super().__init__(factor, output, source, move=move)
