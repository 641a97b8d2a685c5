"""Inputs of any size, read in chunks; the next chunk is read ahead."""

import concurrent.futures
import math

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.input_gradients.paging import release
from keras_pergrad.common.data_frames import by_position


def source(x, batch_size):
    """Return a reader of `x` by chunks: an `Arrays` or a `Dataset`.

    Raises:
        TypeError, ValueError: `x` is nothing that can be read, is empty, has
            no end, or its parts differ in length.
    """
    if isinstance(x, tf.data.Dataset):
        return Dataset(x, batch_size)
    return Arrays(x, batch_size)


class Arrays:
    """Arrays, memory-mapped or not, in any structure.

    Attributes:
        samples: how many there are.
    """

    def __init__(self, x, batch_size):
        self.structure = x
        self.arrays = [_array(a) for a in tf.nest.flatten(x)]
        lengths = {len(a) for a in self.arrays}
        if len(lengths) != 1:
            raise ValueError(
                "all inputs must have the same number of entries on their "
                f"first axis. Received: {[tuple(a.shape) for a in self.arrays]}"
            )
        self.samples = lengths.pop()
        if self.samples == 0:
            raise ValueError("x must hold at least one sample. Received: none")
        self.batch_size = batch_size

    @property
    def chunks(self):
        return math.ceil(self.samples / self.batch_size)

    def __iter__(self):
        starts = range(0, self.samples, self.batch_size)
        with concurrent.futures.ThreadPoolExecutor(1) as reader:
            following = reader.submit(self._read, 0)
            for start in starts:
                chunk = following.result()
                if start + self.batch_size < self.samples:
                    following = reader.submit(
                        self._read, start + self.batch_size
                    )
                yield chunk

    def _read(self, start):
        found = []
        for array in self.arrays:
            part = array[start : start + self.batch_size]
            if np.issubdtype(part.dtype, np.floating):
                # As `fit` and `predict` convert arrays.
                part = np.array(part, keras.config.floatx())
            else:
                part = np.array(part)
            release(array, part.nbytes)
            found.append(part)
        return tf.nest.pack_sequence_as(self.structure, found)


class Dataset:
    """A `tf.data.Dataset` of batches of x, (x, y) or (x, y, sample_weight).

    Attributes:
        samples: how many there are; None where that is not known before.
    """

    samples = None
    chunks = None

    def __init__(self, dataset, batch_size):
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "x is a dataset without an end. Give it one: x.take(batches)"
            )
        dataset = dataset.map(_only_x)
        for spec in tf.nest.flatten(dataset.element_spec):
            if spec.shape.rank == 0:
                raise ValueError(
                    "x must be a dataset of batches. Received: elements "
                    f"without an axis, {dataset.element_spec}. Batch it: "
                    "x.batch(256)"
                )
        self.dataset = dataset.rebatch(batch_size).prefetch(1)

    def __iter__(self):
        return iter(self.dataset)


def require_batch(model, chunk):
    """Refuse single samples where batches are expected.

    Args:
        model: the model.
        chunk: what was read of x, a structure of tensors.
    """
    for tensor, expected in _with_inputs(model, chunk):
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


def _with_inputs(model, chunk):
    """Return pairs of a tensor and the shape the model expects, if known."""
    inputs = getattr(model, "inputs", None)
    if inputs is None:
        shape = (model.get_build_config() or {}).get("input_shape")
        if not isinstance(shape, (tuple, list)) or not tf.is_tensor(chunk):
            return []
        known = all(d is None or type(d) is int for d in shape)
        return [(chunk, shape)] if known else []
    if isinstance(chunk, dict):
        named = {t.name: t.shape for t in inputs}
        return [(chunk[k], named[k]) for k in chunk if k in named]
    flat = tf.nest.flatten(chunk)
    shapes = [t.shape for t in inputs]
    return list(zip(flat, shapes)) if len(flat) == len(shapes) else []


def _only_x(x, *others):
    """Return the inputs, converted as those in arrays are."""
    del others
    floatx = keras.config.floatx()
    return tf.nest.map_structure(
        lambda t: tf.cast(t, floatx) if t.dtype.is_floating else t, x
    )


def _array(value):
    value = by_position(value)
    if isinstance(value, (list, tuple, int, float, str, bytes)):
        raise TypeError(
            "x must be an array, a memory-mapped array, a structure of them or "
            f"a tf.data.Dataset. Received: a {type(value).__name__} in it. "
            "Use numpy.asarray(...) first."
        )
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "shape") and hasattr(value, "__getitem__"):
        array = np.asarray(value) if tf.is_tensor(value) else value
    else:
        raise TypeError(
            "x must be an array, a memory-mapped array, a structure of them or "
            f"a tf.data.Dataset. Received: {value!r} of type "
            f"{type(value).__name__}"
        )
    if len(array.shape) == 0:
        raise ValueError(
            "the first axis of x must be the sample. Received: a number "
            "without axes"
        )
    return array
