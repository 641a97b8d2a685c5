"""The gradient of one chunk, in one traced function for all chunks.

It is that of outputs, or of each sample's own loss, by inputs, or by the output
of the Embedding that reads integer ones.
"""

import contextlib
import functools

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.losses.losses import (
    recording_losses,
    total_loss,
)
from keras_pergrad.keras_internals.models.parts import (
    compiled_loss,
    has_own_loss,
    layers_of,
    patched_attribute,
    takes_training,
)
from keras_pergrad.keras_internals.state.model import twice_differentiable
from keras_pergrad.modes import fractions
from keras_pergrad.uses import TracedStep, refusals, sum_of_outputs

#: The values of `reduce`; all but "norm" reduce over the samples.
OVER_SAMPLES = ("sum", "mean", "mean_abs", "mean_square")
REDUCTIONS = (*OVER_SAMPLES, "norm")
#: Up to so many outputs are differentiated one after the other in the graph,
#: more in a loop.
UNROLLED = 4
#: Ops that pass ids on unchanged.
_ID_OPS = ("Cast", "Identity")
#: For batches of one sample: the loss as Keras computes it.
loss_of_one = total_loss


def traced_gradients(model, selection, reduce, *, order, loss):
    """Return a function of a batch and indices: each input's gradients.

    Of shape (n, *target.shape, *input), without the axes that `reduce`
    removes. It holds the layers as they are in its first call: for one pass.
    """

    @tf.function(autograph=False, reduce_retracing=True)
    def function(batch, indices):
        chunk = _Chunk(model, batch, order, loss=loss)
        results = [
            tf.nest.pack_sequence_as(
                batch[0],
                [
                    _reduced(g, reduce, len(target.shape))
                    for g in chunk.gradients(position, target, sample_indices)
                ],
            )
            for position, target, sample_indices in zip(
                selection.positions, selection.targets, indices
            )
        ]
        return selection.pack(results)

    return function


def call(model, x):
    """Return the model's outputs for x, as `predict` computes them."""
    return model(x, training=False) if takes_training(model) else model(x)


def loss_of_chunk(model, first_sample):
    """Return a chunk's loss: `_sum_of_losses` if it holds, or `loss_of_one`."""
    # It holds if the loss of a batch is a sum or a mean over its samples: not
    # where masks or weights are counted, or the model adds losses.
    if has_own_loss(model):
        return loss_of_one
    added_losses, (x, y, sample_weight) = [], first_sample
    with recording_losses(model, added_losses):
        y_pred = call(model, x)
    try:
        terms = fractions.evaluate(
            compiled_loss(model), y, y_pred, sample_weight
        )
    except fractions.NotAdditive:
        return loss_of_one
    is_counted = any(term.kind == fractions.DATA for term in terms)
    return (
        loss_of_one
        if added_losses or is_counted or not terms
        else _sum_of_losses
    )


def _sum_of_losses(model, x, y, y_pred, sample_weight, training):
    """Return the sum of the samples' own losses."""
    del x, training
    n = tf.shape(tf.nest.flatten(y_pred)[0])[0]
    values = []
    for term in fractions.evaluate(
        compiled_loss(model), y, y_pred, sample_weight
    ):
        value = term.numerator
        if term.denominator is not None:
            # The number of values of one sample.
            count = term.denominator / tf.cast(n, term.denominator.dtype)
            value /= tf.cast(count, value.dtype)
        weight = 1.0 if term.loss_weight is None else term.loss_weight
        values.append(tf.cast(value, keras.config.floatx()) * weight)
    return tf.add_n(values)


class _Chunk:
    """The outputs for a batch, and the tapes that differentiate them."""

    def __init__(self, model, batch, order, *, loss):
        traced_step = TracedStep(
            model, batch, training=False, loss=loss or sum_of_outputs
        )
        for error in refusals(traced_step):
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
            # An Embedding's output is a source, so the tapes must watch it
            # from inside the call.
            calls = stack.enter_context(_embeddings(model, self._watch))
            self._watch([t for t in tensors if t.dtype.is_floating])
            if order > 1:
                stack.enter_context(twice_differentiable())
            outputs = call(model, x)
            if loss is not None:
                outputs = loss(
                    model,
                    x,
                    y,
                    y_pred=outputs,
                    sample_weight=sample_weight,
                    training=False,
                )
        # Outside of the tapes: `_source_of` may take gradients already.
        self.outputs = tf.nest.flatten(outputs)
        self.n = tf.shape(tensors[0])[0]
        self.sources = [
            _source_of(k, t, calls, is_connected=self._is_connected)
            for k, t in enumerate(tensors)
        ]
        if loss is not None and not any(map(self._is_connected, self.sources)):
            raise ValueError(
                f"The loss of model {model.name!r} does not depend on any "
                "input. Expected a loss of the model's outputs. Look for a "
                "loss of y_true alone, for ops without a gradient (argmax, "
                "round, casts to integers) and for tf.stop_gradient."
            )

    def _watch(self, tensors):
        for tape in self.tapes:
            tape.watch(tensors)

    def _is_connected(self, tensor):
        return self.tapes[0].gradient(self.outputs, tensor) is not None

    def gradients(self, position, target, sample_indices):
        """Return the gradients of what `target` chooses, one a source."""
        output = self.outputs[position]
        if output.shape.rank == 0:  # a sum over the samples
            return self._derivatives(output, tf.ones_like(output))
        shape = tf.shape(output)
        size = output.shape[1:].num_elements() or tf.reduce_prod(shape[1:])

        # Samples do not mix, so one backward pass serves all of them.
        def gradients_of_output(index):
            """Return each source's gradient of one output, () or (n,)."""
            index = tf.broadcast_to(index, shape[:1])
            rows = tf.one_hot(index, size, dtype=output.dtype)
            return self._derivatives(output, tf.reshape(rows, shape))

        if target.is_per_sample or target.is_single:
            return gradients_of_output(
                sample_indices if target.is_per_sample else target.indices[0]
            )
        gradients = _stacked_gradients(
            gradients_of_output, self.sources, target.indices
        )
        return [
            tf.reshape(g, [self.n, *target.shape, *_inner_shape(source)])
            for g, source in zip(gradients, self.sources)
        ]

    def _derivatives(self, output, weights):
        # Of order 2, each outer tape differentiates an entry by its own input.
        inner_tape, *outer_tapes = self.tapes
        with contextlib.ExitStack() as stack:
            for tape in outer_tapes:
                stack.enter_context(tape)
            gradients = inner_tape.gradient(
                [output],
                self.sources,
                output_gradients=[weights],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            gradients = tuple(map(tf.convert_to_tensor, gradients))
        for tape in outer_tapes:
            gradients = tuple(
                self._second_derivatives(tape, g, source)
                for g, source in zip(gradients, self.sources)
            )
        return gradients

    def _second_derivatives(self, tape, gradient, source):
        """Differentiate each entry of a gradient by the source's same entry."""
        shape = tf.shape(source)
        size = source.shape[1:].num_elements() or tf.reduce_prod(shape[1:])
        with tape:
            flat = tf.reshape(gradient, [self.n, size])

        # The diagonal of each sample's Hessian, one backward pass an entry.
        def entry(k):
            row = tf.one_hot(k, size, dtype=flat.dtype)
            row_gradient = tape.gradient(
                flat,
                source,
                output_gradients=tf.broadcast_to(row, [self.n, size]),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return tf.reshape(row_gradient, [self.n, size])[:, k]

        spec = tf.TensorSpec(source.shape[:1], source.dtype)
        columns = tf.map_fn(entry, tf.range(size), fn_output_signature=spec)
        diagonal = tf.reshape(tf.transpose(columns), shape)
        return tf.ensure_shape(diagonal, source.shape)


def _stacked_gradients(gradients_of_output, sources, indices):
    """Return each source's gradients of all chosen outputs, (n, k, ...)."""
    if len(indices) <= UNROLLED:
        return [tf.stack(g, 1) for g in zip(*map(gradients_of_output, indices))]
    signature = tuple(tf.TensorSpec(t.shape, t.dtype) for t in sources)
    stacked = tf.map_fn(
        gradients_of_output,
        tf.constant(list(indices)),
        fn_output_signature=signature,
    )
    return [tf.transpose(g, [1, 0, *range(2, g.shape.rank)]) for g in stacked]


def _inner_shape(source):
    static_shape, dynamic_shape = source.shape[1:], tf.shape(source)[1:]
    return [
        dynamic_shape[k] if d is None else d for k, d in enumerate(static_shape)
    ]


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


@contextlib.contextmanager
def _embeddings(model, watch):
    """Yield a list of each Embedding called inside: (layer, ids, output)."""
    calls = []
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            if isinstance(layer, keras.layers.Embedding):
                call = _watching_call(layer, layer.call, watch, calls=calls)
                stack.enter_context(patched_attribute(layer, "call", call))
        yield calls


def _watching_call(layer, original, watch, *, calls):
    @functools.wraps(original)
    def call(inputs, *args, **kwargs):
        outputs = original(inputs, *args, **kwargs)
        watch(outputs)
        calls.append((layer, inputs, outputs))
        return outputs

    return call


def _source_of(position, tensor, calls, *, is_connected):
    """Return the tensor that stands for a flat input in the gradient."""
    if tensor.dtype.is_floating:
        _require_no_ids(position, tensor, calls, is_connected=is_connected)
        return tensor
    embeddings = [
        (layer, out) for layer, ids, out in calls if _is_cast_of(ids, tensor)
    ]
    if len(embeddings) == 1:
        return embeddings[0][1]
    names = ", ".join(repr(layer.name) for layer, _ in embeddings) or "none"
    raise ValueError(
        f"input {position} holds integers ({tensor.dtype.name}), which have no "
        "gradient; that of an Embedding's output is given instead where "
        f"exactly one Embedding reads them. Found: {names}. Pass numbers "
        'meant as such (pixels, say) as x.astype("float32"), or build a '
        "model that starts behind the embedding."
    )


def _require_no_ids(position, tensor, calls, *, is_connected):
    """Refuse ids in a floating type: their gradient would be all zeros."""
    for layer, ids, _ in calls:
        if _is_cast_of(ids, tensor) or (
            _comes_from(ids, tensor) and not is_connected(tensor)
        ):
            raise ValueError(
                f"input {position} holds floating numbers "
                f"({tensor.dtype.name}), which Embedding {layer.name!r} reads "
                "as ids; ids have no gradient, and expected were integers, "
                "for which that of the Embedding's output is given. Pass "
                'x.astype("int32"), or of a dataset '
                'dataset.map(lambda x: tf.cast(x, "int32")).'
            )


def _comes_from(ids, tensor):
    """Whether any path leads from the input to `ids`."""
    # Tensors stay in `visited`, so that no id is used again.
    pending, visited = [ids], {}
    while pending:
        tensor_above = pending.pop()
        if tensor_above is tensor:
            return True
        if tf.is_tensor(tensor_above) and id(tensor_above) not in visited:
            visited[id(tensor_above)] = tensor_above
            pending += tensor_above.op.inputs
    return False


def _is_cast_of(ids, tensor):
    """Whether `ids` are the input itself, perhaps cast to another type."""
    while ids is not tensor:
        if not tf.is_tensor(ids) or ids.op.type not in _ID_OPS:
            return False
        ids = ids.op.inputs[0]
    return True
