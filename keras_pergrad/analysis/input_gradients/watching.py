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
def embeddings(model, watch):
    """Yield a list of each Embedding called inside: (layer, ids, output)."""
    calls = []
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            if isinstance(layer, keras.layers.Embedding):
                call = _watched(layer, layer.call, watch, calls)
                stack.enter_context(attribute(layer, "call", call))
        yield calls


def _watched(layer, original, watch, calls):
    @functools.wraps(original)
    def call(inputs, *args, **kwargs):
        outputs = original(inputs, *args, **kwargs)
        watch(outputs)
        calls.append((layer, inputs, outputs))
        return outputs

    return call


def source_of(position, tensor, calls, is_connected):
    """Return the tensor that stands for a flat input in the gradient."""
    if tensor.dtype.is_floating:
        _require_no_ids(position, tensor, calls, is_connected)
        return tensor
    readers = [(layer, out) for layer, ids, out in calls if _is(ids, tensor)]
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


def _require_no_ids(position, tensor, calls, is_connected):
    """Refuse ids in a floating type: their gradient would be all zeros."""
    for layer, ids, _ in calls:
        if _is(ids, tensor) or (
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
