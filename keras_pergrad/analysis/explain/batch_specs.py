"""The shapes and types of a model's inputs, for a size of batch."""

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.batches import is_composite
from keras_pergrad.keras_internals.model_parts import symbolic_inputs


def specs(model, batch_size, x):
    """Return the `TensorSpec`s of so many samples, of a batch or a model."""
    if x is not None:
        return tf.nest.map_structure(lambda t: _spec(t, batch_size), x)
    inputs = getattr(model, "inputs", None) or [None]
    known = symbolic_inputs(model)
    if known is None:
        known = inputs if len(inputs) > 1 else inputs[0]
    if known is None:
        raise ValueError(
            f"Model {model.name!r} does not know the shapes of its inputs. "
            "Pass a batch: explain(model, batch_size, x=x)."
        )
    return tf.nest.map_structure(lambda t: _spec(t, batch_size), known)


def _spec(tensor, n):
    """Get the type of `n` samples like those in a tensor, perhaps symbolic."""
    if not isinstance(tensor, keras.KerasTensor) and not is_composite(tensor):
        tensor = tf.convert_to_tensor(tensor)
    shape = [n, *tensor.shape[1:]]
    if isinstance(tensor, tf.SparseTensor) or getattr(tensor, "sparse", False):
        return tf.SparseTensorSpec(shape, tensor.dtype)
    if isinstance(tensor, tf.RaggedTensor) or getattr(tensor, "ragged", False):
        return tf.RaggedTensorSpec(shape, tensor.dtype)
    return tf.TensorSpec(shape, tensor.dtype)


def build(model, batch):
    """Build a model that is not built yet, by a call on zeros."""
    if not model.built:
        model(tf.nest.map_structure(_zeros, batch))


def _zeros(spec):
    return tf.zeros([1 if s is None else s for s in spec.shape], spec.dtype)
