"""Inputs of any size, read in chunks; the next chunk is read ahead."""

import concurrent.futures
import math

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.input_gradients.paging import Pages
from keras_pergrad.common.data_frames import by_position
from keras_pergrad.keras_internals.batches import require_one_length
from keras_pergrad.keras_internals.data_batches import batches_of


class Arrays:
    """Arrays, memory-mapped or not, in any structure: (x, y, sample_weight).

    Attributes:
        samples: how many there are.
        chunks: in how many chunks they are read.
    """

    def __init__(self, x, y, sample_weight, batch_size):
        for array in tf.nest.flatten(x):
            _require_array(by_position(array))
        parts = x, _joined(y), _joined(sample_weight)
        parts = tf.nest.map_structure(_array, parts)
        self._parts = parts
        self._pages = tf.nest.map_structure(Pages, parts)
        names = ("x", "y", "sample_weight")
        lengths = [
            (name, len(array))
            for name, part in zip(names, parts)
            for array in tf.nest.flatten(part)
            if array is not None
        ]
        require_one_length(lengths)
        self.samples = lengths[0][1]
        if self.samples == 0:
            raise ValueError("x must hold at least one sample. Received: none")
        self._size = batch_size
        self.chunks = math.ceil(self.samples / batch_size)

    def __iter__(self):
        with concurrent.futures.ThreadPoolExecutor(1) as reader:
            following = reader.submit(self._read, 0)
            for start in range(0, self.samples, self._size):
                chunk = following.result()
                if start + self._size < self.samples:
                    following = reader.submit(self._read, start + self._size)
                yield tf.nest.map_structure(_tensor, chunk)

    def _read(self, start):
        def rows(array, pages):
            if array is None:
                return None
            part = _in_floatx(array[start : start + self._size])
            pages.use(part.nbytes)
            return part

        return tf.nest.map_structure(rows, self._parts, self._pages)


class Dataset:
    """A `tf.data.Dataset` of batches of x, (x, y) or (x, y, sample_weight)."""

    #: Not known before the end.
    samples = None

    def __init__(self, batches):
        self._batches = batches
        self.chunks = batches.count

    def __iter__(self):
        floatx = keras.config.floatx()
        for batch in self._batches:
            yield tf.nest.map_structure(
                lambda t: tf.cast(t, floatx) if _is_floating(t) else t, batch
            )


def source(x, y, sample_weight, batch_size):
    """Return what yields chunks (x, y, sample_weight) of tensors."""
    if isinstance(x, tf.data.Dataset):
        return Dataset(batches_of(x, y, sample_weight, batch_size))
    return Arrays(x, y, sample_weight, batch_size)


def require_batch(model, x):
    """Refuse single samples where batches are expected."""
    for tensor, expected in _with_inputs(model, x):
        rank = tensor.shape.rank
        # Keras adds a last axis of length 1 itself.
        if rank != len(expected) - 1 or expected[-1] == 1:
            continue
        raise ValueError(
            "x must hold batches of samples. Expected, for model "
            f"{model.name!r}: arrays of shape {tuple(expected)}. Received: "
            f"shape {tuple(tensor.shape)}, as of single samples. Batch a "
            "dataset, x.batch(256), or give an array an axis, x[None]."
        )


def _with_inputs(model, x):
    """Return pairs of a tensor and the shape the model expects, if known."""
    inputs = getattr(model, "inputs", None)
    if inputs is None:
        shape = (model.get_build_config() or {}).get("input_shape")
        if not isinstance(shape, (tuple, list)) or not tf.is_tensor(x):
            return []
        known = all(d is None or type(d) is int for d in shape)
        return [(x, shape)] if known else []
    if isinstance(x, dict):
        named = {t.name: t.shape for t in inputs}
        return [(x[k], named[k]) for k in x if k in named]
    flat = tf.nest.flatten(x)
    shapes = [t.shape for t in inputs]
    return list(zip(flat, shapes)) if len(flat) == len(shapes) else []


def _require_array(value):
    if isinstance(value, (list, tuple, int, float, str, bytes)):
        shown, advice = f"a {type(value).__name__} in it", True
    elif hasattr(value, "shape") and hasattr(value, "__getitem__"):
        if len(value.shape):
            return
        raise ValueError(
            "the first axis of x must be the sample. Received: a number "
            "without axes"
        )
    else:
        shown, advice = f"{value!r} of type {type(value).__name__}", False
    raise TypeError(
        "x must be an array, a memory-mapped array, a structure of them or a "
        f"tf.data.Dataset. Received: {shown}"
        + (". Use numpy.asarray(...) first." if advice else "")
    )


def _joined(y):
    """Return nested lists of numbers as one array; others are structures."""
    numbers = any(isinstance(v, (int, float)) for v in tf.nest.flatten(y))
    return np.asarray(y) if numbers else y


def _array(value):
    """Return an array as it is read, so a mapped one not as a whole."""
    value = by_position(value)
    if value is None:
        return None
    is_array = hasattr(value, "shape") and hasattr(value, "__getitem__")
    return value if is_array and not tf.is_tensor(value) else np.asarray(value)


def _in_floatx(part):
    """Return a copy, as `fit` and `predict` convert arrays."""
    floating = np.issubdtype(part.dtype, np.floating)
    return np.array(part, keras.config.floatx() if floating else None)


def _tensor(part):
    return None if part is None else tf.convert_to_tensor(part)


def _is_floating(tensor):
    return tensor is not None and tensor.dtype.is_floating
