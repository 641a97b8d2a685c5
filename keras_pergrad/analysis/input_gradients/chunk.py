"""The gradient of one chunk, in one traced function for all chunks."""

import functools

import keras
import tensorflow as tf

from keras_pergrad.analysis.input_gradients.watching import (
    embeddings,
    is_connected,
    of_input,
)
from keras_pergrad.keras_internals.model_parts import takes_training
from keras_pergrad.samples import Tape, refusals, sum_of_outputs

#: The values of `reduce`; all but "norm" reduce over the samples.
OVER_SAMPLES = ("sum", "mean", "mean_abs", "mean_square")
REDUCTIONS = (*OVER_SAMPLES, "norm")
#: Up to so many outputs are differentiated one after the other in the graph,
#: more in a loop.
UNROLLED = 4


def traced(model, targets, reduce):
    """Return a function of (x, indices) that gives the gradients of a chunk.

    Args:
        model: the model.
        targets: the `Targets`.
        reduce: one of `REDUCTIONS`, or None.

    Returns:
        A `tf.function`. It holds the model's layers as they are when it is
        first called, so it serves one pass over the data. x may have any
        number of samples. Its result has the structure of x; each part has
        shape (n, *targets.shape, *input shape), without the axes that `reduce`
        removes.
    """

    @tf.function(autograph=False, reduce_retracing=True)
    def function(x, indices):
        return _gradients(model, targets, reduce, x, indices)

    return function


def output_of(model, x):
    """Return the model's output for x, as `predict` computes it."""
    kwargs = {"training": False} if takes_training(model) else {}
    output = model(x, **kwargs)
    if not tf.is_tensor(output):
        raise ValueError(
            f"model {model.name!r} has several outputs. Choose one: "
            "keras.Model(model.inputs, model.outputs[0])"
        )
    return output


def _gradients(model, targets, reduce, x, indices):
    tried = Tape(model, (x, None, None), training=False, loss=sum_of_outputs)
    for error in refusals(tried):
        raise error
    tensors = tf.nest.flatten(x)
    tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)
    with tape, embeddings(model, tape) as found:
        tape.watch([t for t in tensors if t.dtype.is_floating])
        output = output_of(model, x)
    connected = functools.partial(is_connected, tape, output)
    sources = [of_input(k, t, found, connected) for k, t in enumerate(tensors)]
    shape = tf.shape(output)
    size = output.shape[1:].num_elements() or tf.reduce_prod(shape[1:])

    def one(chosen):
        """Return each source's gradient; `chosen` outputs are () or (n,)."""
        chosen = tf.broadcast_to(chosen, shape[:1])
        rows = tf.one_hot(chosen, size, dtype=output.dtype)
        gradients = tape.gradient(
            [output],
            sources,
            output_gradients=[tf.reshape(rows, shape)],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return tuple(tf.convert_to_tensor(g) for g in gradients)

    if targets.kind == "own":
        gradients = one(indices)
    elif targets.single:
        gradients = one(targets.indices[0])
    else:
        chosen = range(size) if targets.kind == "all" else targets.indices
        gradients = [
            tf.reshape(g, [shape[0], *targets.shape, *_inner(source)])
            for g, source in zip(_several(one, sources, chosen), sources)
        ]
    reduced = [_reduced(g, reduce, len(targets.shape)) for g in gradients]
    return tf.nest.pack_sequence_as(x, reduced)


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
