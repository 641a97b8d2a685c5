"""The gradient of one chunk, in one traced function for all chunks."""

import contextlib

import keras
import tensorflow as tf

from keras_pergrad.analysis.input_gradients.watching import (
    embeddings,
    source_of,
)
from keras_pergrad.keras_internals.model_parts import takes_training
from keras_pergrad.keras_internals.moments import twice_differentiable
from keras_pergrad.samples import TracedStep, refusals, sum_of_outputs

#: The values of `reduce`; all but "norm" reduce over the samples.
OVER_SAMPLES = ("sum", "mean", "mean_abs", "mean_square")
REDUCTIONS = (*OVER_SAMPLES, "norm")
#: Up to so many outputs are differentiated one after the other in the graph,
#: more in a loop.
UNROLLED = 4


def traced(model, selection, reduce, order, loss):
    """Return a function of a batch and indices: each input's gradients.

    Of shape (n, *target.shape, *input), without the axes that `reduce`
    removes. It holds the layers as they are in its first call: for one pass.
    """

    @tf.function(autograph=False, reduce_retracing=True)
    def function(batch, indices):
        chunk = _Chunk(model, batch, order, loss)
        results = [
            tf.nest.pack_sequence_as(
                batch[0],
                [
                    _reduced(g, reduce, len(target.shape))
                    for g in chunk.gradients(position, target, own)
                ],
            )
            for position, target, own in zip(
                selection.positions, selection.targets, indices
            )
        ]
        return selection.packed(results)

    return function


def call(model, x):
    """Return the model's outputs for x, as `predict` computes them."""
    return model(x, training=False) if takes_training(model) else model(x)


class _Chunk:
    """The outputs for a batch, and the tapes that differentiate them."""

    def __init__(self, model, batch, order, loss):
        aside = TracedStep(
            model, batch, training=False, loss=loss or sum_of_outputs
        )
        for error in refusals(aside):
            raise error
        x, y, sample_weight = batch
        tensors = tf.nest.flatten(x)
        self.tapes = [
            tf.GradientTape(persistent=True, watch_accessed_variables=False)
            for _ in range(order)
        ]
        with contextlib.ExitStack() as stack:
            for tape in self.tapes:
                stack.enter_context(tape)
            calls = stack.enter_context(embeddings(model, self._watch))
            self._watch([t for t in tensors if t.dtype.is_floating])
            if order > 1:
                stack.enter_context(twice_differentiable())
            outputs = call(model, x)
            if loss is not None:
                outputs = loss(model, x, y, outputs, sample_weight, False)
        self.outputs = tf.nest.flatten(outputs)
        self.n = tf.shape(tensors[0])[0]
        self.sources = [
            source_of(k, t, calls, self._is_connected)
            for k, t in enumerate(tensors)
        ]

    def _watch(self, tensors):
        for tape in self.tapes:
            tape.watch(tensors)

    def _is_connected(self, tensor):
        return self.tapes[0].gradient(self.outputs, tensor) is not None

    def gradients(self, position, target, own):
        """Return the gradients of what `target` chooses, one a source."""
        output = self.outputs[position]
        if output.shape.rank == 0:  # a sum over the samples
            return self._derivatives(output, tf.ones_like(output))
        shape = tf.shape(output)
        size = output.shape[1:].num_elements() or tf.reduce_prod(shape[1:])

        def one(chosen):
            """Return each source's gradient of one output, () or (n,)."""
            chosen = tf.broadcast_to(chosen, shape[:1])
            rows = tf.one_hot(chosen, size, dtype=output.dtype)
            return self._derivatives(output, tf.reshape(rows, shape))

        if target.own or target.single:
            return one(own if target.own else target.indices[0])
        gradients = _several(one, self.sources, target.indices)
        return [
            tf.reshape(g, [self.n, *target.shape, *_inner(source)])
            for g, source in zip(gradients, self.sources)
        ]

    def _derivatives(self, output, weights):
        first, *others = self.tapes
        with contextlib.ExitStack() as stack:
            for tape in others:
                stack.enter_context(tape)
            gradients = first.gradient(
                [output],
                self.sources,
                output_gradients=[weights],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            gradients = tuple(map(tf.convert_to_tensor, gradients))
        for tape in others:
            gradients = tuple(
                self._by_the_same_entry(tape, g, source)
                for g, source in zip(gradients, self.sources)
            )
        return gradients

    def _by_the_same_entry(self, tape, gradient, source):
        """Differentiate each entry of a gradient by the source's same entry."""
        shape = tf.shape(source)
        size = source.shape[1:].num_elements() or tf.reduce_prod(shape[1:])
        with tape:
            flat = tf.reshape(gradient, [self.n, size])

        def entry(k):
            row = tf.one_hot(k, size, dtype=flat.dtype)
            second = tape.gradient(
                flat,
                source,
                output_gradients=tf.broadcast_to(row, [self.n, size]),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return tf.reshape(second, [self.n, size])[:, k]

        spec = tf.TensorSpec(source.shape[:1], source.dtype)
        columns = tf.map_fn(entry, tf.range(size), fn_output_signature=spec)
        diagonal = tf.reshape(tf.transpose(columns), shape)
        return tf.ensure_shape(diagonal, source.shape)


def _several(one, sources, chosen):
    """Return each source's gradients of all chosen outputs, (n, k, ...)."""
    if len(chosen) <= UNROLLED:
        return [tf.stack(g, 1) for g in zip(*map(one, chosen))]
    signature = tuple(tf.TensorSpec(t.shape, t.dtype) for t in sources)
    stacked = tf.map_fn(
        one, tf.constant(list(chosen)), fn_output_signature=signature
    )
    return [tf.transpose(g, [1, 0, *range(2, g.shape.rank)]) for g in stacked]


def _inner(source):
    known, sizes = source.shape[1:], tf.shape(source)[1:]
    return [sizes[k] if d is None else d for k, d in enumerate(known)]


def _reduced(gradient, reduce, outputs):
    # A model, or its Embedding, may compute in another type.
    floatx = keras.config.floatx()
    if reduce is None:
        return tf.cast(gradient, floatx)
    if reduce == "norm":
        gradient = tf.cast(gradient, floatx)
        axes = list(range(1 + outputs, gradient.shape.rank))
        return tf.sqrt(tf.reduce_sum(tf.square(gradient), axes))
    if reduce == "mean_abs":
        gradient = tf.abs(gradient)
    elif reduce == "mean_square":
        gradient = tf.square(gradient)
    # The total is in double, for half precision and long sums.
    return tf.reduce_sum(tf.cast(gradient, tf.float64), 0)
