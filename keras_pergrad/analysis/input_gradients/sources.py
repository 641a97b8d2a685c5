"""Inputs of any size, read in chunks; the next chunk is read ahead."""

import concurrent.futures

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.input_gradients.paging import Pages
from keras_pergrad.common.data_frames import by_position
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
        self._parts = tf.nest.map_structure(_array, parts)
        self._pages = tf.nest.map_structure(Pages, self._parts)
        batches = batches_of(*self._parts, batch_size=batch_size)
        self.samples, self.chunks = batches.samples, batches.count
        self._size = batch_size

    def __iter__(self):
        starts = iter(range(0, self.samples, self._size))
        with concurrent.futures.ThreadPoolExecutor(1) as reader:
            chunk = reader.submit(self._read, next(starts)).result()
            for start in starts:
                following = reader.submit(self._read, start)
                yield tf.nest.map_structure(_tensor, chunk)
                chunk = following.result()
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
        # Keras adds a last axis of length 1 itself.
        if tensor.shape.rank == len(expected) - 1 and expected[-1] != 1:
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
    advice = ""
    if isinstance(value, (list, tuple, int, float, str, bytes)):
        shown = f"a {type(value).__name__} in it"
        advice = ". Use numpy.asarray(...) first."
    elif not _is_array(value):
        shown = f"{value!r} of type {type(value).__name__}"
    elif len(value.shape):
        return
    else:
        raise ValueError(
            "the first axis of x must be the sample. Received: a number "
            "without axes"
        )
    raise TypeError(
        "x must be an array, a memory-mapped array, a structure of them or a "
        f"tf.data.Dataset. Received: {shown}{advice}"
    )


def _is_array(value):
    return hasattr(value, "shape") and hasattr(value, "__getitem__")


def _joined(y):
    """Return nested lists of numbers as one array; others are structures."""
    numbers = any(isinstance(v, (int, float)) for v in tf.nest.flatten(y))
    return np.asarray(y) if numbers else y


def _array(value):
    """Return an array as it is read, so a mapped one not as a whole."""
    value = by_position(value)
    as_it_is = value is None or (_is_array(value) and not tf.is_tensor(value))
    return value if as_it_is else np.asarray(value)


def _in_floatx(part):
    """Return a copy, as `fit` and `predict` convert arrays."""
    floating = np.issubdtype(part.dtype, np.floating)
    return np.array(part, keras.config.floatx() if floating else None)


def _tensor(part):
    return None if part is None else tf.convert_to_tensor(part)


def _is_floating(tensor):
    return tensor is not None and tensor.dtype.is_floating
