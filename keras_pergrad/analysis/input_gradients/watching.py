"""The tensors that outputs are differentiated by: inputs, or embeddings."""

import contextlib
import functools

import keras
import tensorflow as tf

from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.model_parts import layers_of

#: Ops that pass ids on unchanged.
_PASSING = ("Cast", "Identity")


@contextlib.contextmanager
def embeddings(model, tape):
    """Yield the list of (layer, ids, output) of the Embeddings called inside.

    Their outputs are watched by `tape`.
    """
    found = []
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            if isinstance(layer, keras.layers.Embedding):
                call = _watched(layer, layer.call, tape, found)
                stack.enter_context(attribute(layer, "call", call))
        yield found


def _watched(layer, original, tape, found):
    @functools.wraps(original)
    def call(inputs, *args, **kwargs):
        outputs = original(inputs, *args, **kwargs)
        tape.watch(outputs)
        found.append((layer, inputs, outputs))
        return outputs

    return call


def is_connected(tape, output, tensor):
    """Whether an output has a gradient with respect to a tensor at all."""
    return tape.gradient(output, tensor) is not None


def of_input(position, tensor, found, connected):
    """Return the tensor that stands for an input in the gradient.

    Args:
        position: which of the flat inputs it is, for the message.
        tensor: the input.
        found: what `embeddings` has yielded.
        connected: a function that tells whether a floating input
            `is_connected`.

    Raises:
        ValueError: an integer input is not read by exactly one Embedding, or a
            floating input serves only as ids.
    """
    if tensor.dtype.is_floating:
        _require_no_ids(position, tensor, found, connected)
        return tensor
    readers = [(layer, out) for layer, ids, out in found if _is(ids, tensor)]
    if len(readers) == 1:
        return readers[0][1]
    names = ", ".join(repr(layer.name) for layer, _ in readers) or "none"
    raise ValueError(
        f"input {position} holds integers ({tensor.dtype.name}), which have no "
        "gradient; that of an Embedding's output is given instead where "
        f"exactly one Embedding reads them. Found: {names}. Pass numbers "
        'meant as such (pixels, say) as x.astype("float32"), or build a '
        "model that starts behind the embedding."
    )


def _require_no_ids(position, tensor, found, connected):
    """Refuse ids in a floating type: their gradient would be all zeros."""
    for layer, ids, _ in found:
        if _is(ids, tensor) or (
            _comes_from(ids, tensor) and not connected(tensor)
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
    waiting, seen = [ids], {}
    while waiting:
        this = waiting.pop()
        if this is tensor:
            return True
        if tf.is_tensor(this) and id(this) not in seen:
            seen[id(this)] = this
            waiting += this.op.inputs
    return False


def _is(ids, tensor):
    """Whether `ids` are the input itself, perhaps cast to another type."""
    while ids is not tensor:
        if not tf.is_tensor(ids) or ids.op.type not in _PASSING:
            return False
        ids = ids.op.inputs[0]
    return True
