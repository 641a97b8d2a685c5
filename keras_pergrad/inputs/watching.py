"""What gradients are taken with respect to: inputs, or embeddings of ids."""

import contextlib
import functools

import keras
import tensorflow as tf

from keras_pergrad.patching import attribute

#: Ops that hand ids on as they are.
_PASSING = ("Cast", "Identity")


@contextlib.contextmanager
def embeddings(model, tape):
    """Yields the list of (layer, ids, output) of the Embeddings called inside.

    Their outputs are watched by `tape`.
    """
    found = []
    with contextlib.ExitStack() as stack:
        for layer in model._flatten_layers():
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


def of_input(position, tensor, found):
    """The tensor that stands for an input in the gradient.

    Args:
        position: which of the flat inputs it is, for the message.
        tensor: the input.
        found: what `embeddings` has yielded.

    Raises:
        ValueError: an integer input that not exactly one Embedding reads.
    """
    if tensor.dtype.is_floating:
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


def _is(ids, tensor):
    """Whether `ids` are those of the input, perhaps of another type."""
    while ids is not tensor:
        if not tf.is_tensor(ids) or ids.op.type not in _PASSING:
            return False
        ids = ids.op.inputs[0]
    return True
