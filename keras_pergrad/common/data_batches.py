"""The batches of arrays, frames, data sets and generators."""

import math

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.arguments import is_number, positive_integer
from keras_pergrad.common.batches import (
    is_composite,
    require_arrays,
    require_equal_lengths,
)


def frame_to_array(value):
    """Return a Series or a DataFrame as an array, anything else as it is."""
    # Indexing a Series or DataFrame takes labels or columns, not positions.
    if not hasattr(value, "iloc"):
        return value
    array = np.asarray(value)
    if array.dtype == object and not _is_text(array):
        dtypes = getattr(value, "dtypes", None)
        dtypes = [
            str(dtype) for dtype in np.atleast_1d(np.asarray(dtypes, object))
        ]
        raise ValueError(
            "Expected a DataFrame or Series of numbers, or of text, without "
            f"missing values. Received: a {type(value).__name__} of dtypes "
            f"{dtypes}. Convert it, such as by .astype('float32'), or give a "
            "dict of its columns, each an input of its own."
        )
    return array


def _is_text(array):
    return all(isinstance(entry, (str, bytes)) for entry in array.flat)


_SOURCE = "keras_pergrad_source"


def drawn_from(dataset, source):
    """Mark a dataset as drawn by this package from a source of this name."""
    setattr(dataset, _SOURCE, source)
    return dataset


def source_of_draws(data):
    """Return the name of the source that data is drawn from, or None."""
    return getattr(data, _SOURCE, None)


def batches_of(x, y=None, sample_weight=None, *, batch_size=None):
    """Return an iterable, with a `count`, of batches (x, y, sample_weight)."""
    # The count is None where it is not known. A ValueError says that x is empty
    # or endless, that lengths differ, or that the weights are not numbers.
    if batch_size is not None:
        batch_size = positive_integer("batch_size", batch_size)
    if isinstance(x, tf.data.Dataset):
        if y is not None or sample_weight is not None:
            raise ValueError(
                "`y` and `sample_weight` come with the dataset: expected a "
                "dataset of (x, y) or (x, y, sample_weight) and nothing else. "
                "Received: a dataset as x, and "
                + ("y" if y is not None else "sample_weight")
            )
        return _DatasetBatches(x, batch_size)
    if isinstance(x, keras.utils.PyDataset):
        if not (y is None and sample_weight is None and batch_size is None):
            raise ValueError(
                "A PyDataset gives its batches, with targets and weights, "
                "itself. Expected it and nothing else. Received: a PyDataset "
                "as x, and y, sample_weight or batch_size"
            )
        return _PyDatasetBatches(x)
    if hasattr(x, "__next__"):
        raise ValueError(
            "`x` expected arrays or a data set. Received: an iterator, of type "
            f"{type(x).__name__}, which gives its batches once. Give a batch, "
            "x, y = next(iterator), or tf.data.Dataset.from_generator()."
        )
    require_arrays(x, y)
    for array in tf.nest.flatten(x):
        is_known = array is None or hasattr(array, "shape")
        if not is_known and not is_number(array):
            raise ValueError(
                "`x` expected an array or a tensor, or a data set. Received: "
                f"an object of type {type(array).__name__}"
            )
    require_weights(sample_weight)
    return _ArrayBatches((x, y, sample_weight), batch_size)


def require_weights(sample_weight):
    """Refuse sample weights that are not arrays of real numbers."""
    for part in tf.nest.flatten(sample_weight):
        array = np.asarray(0.0 if part is None else part)
        # Kind "V" is that of bfloat16 and the like in NumPy.
        if array.dtype.kind not in "biufV" or (
            array.ndim == 0 and part is not None
        ):
            raise ValueError(
                "`sample_weight` expected an array of real numbers, one for "
                "each sample, or a structure of them for several outputs. "
                f"Received: {sample_weight!r}"
            )


class _Batches:
    def __iter__(self):
        return self.iterate_from(0)

    def iterate_from(self, number):
        """Yield the batches from the one of this number on."""
        raise NotImplementedError


class _ArrayBatches(_Batches):
    def __init__(self, parts, batch_size):
        parts = tf.nest.map_structure(frame_to_array, parts)
        # As a single batch, nested lists of numbers are accepted too.
        if batch_size is None:
            parts = tf.nest.map_structure(_tensor, parts)
        self.parts = parts
        self.samples = common_length(parts)
        self.size = batch_size or self.samples
        self.count = math.ceil(self.samples / self.size)

    def iterate_from(self, number):
        for start in range(number * self.size, self.samples, self.size):
            stop = min(start + self.size, self.samples)
            yield tf.nest.map_structure(
                lambda part, a=start, b=stop: _tensor(_slice_rows(part, a, b)),
                self.parts,
            )


class _DatasetBatches(_Batches):
    def __init__(self, dataset, batch_size):
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "x is a dataset without an end. Give it one: x.take(batches)"
            )
        spec = dataset.element_spec
        if isinstance(spec, tuple) and not 1 <= len(spec) <= 3:
            raise ValueError(
                "x must be a dataset of x, (x, y) or (x, y, sample_weight). "
                f"Received: elements of {len(spec)} parts"
            )
        shapes = [part.shape for part in tf.nest.flatten(spec)]
        sizes = {shape[0] for shape in shapes if shape.rank} - {None}
        if any(shape.rank == 0 for shape in shapes) or len(sizes) > 1:
            raise ValueError(
                "x must be a dataset of batches, whose first axis is the "
                f"sample. Received: elements of {spec}. Batch it: x.batch(256)"
            )
        if batch_size is not None:
            dataset = dataset.rebatch(batch_size)
        self.dataset = dataset.prefetch(1)
        count = int(self.dataset.cardinality())
        self.count = count if count >= 0 else None

    def iterate_from(self, number):
        for batch in self.dataset.skip(number) if number else self.dataset:
            yield _complete_batch(batch)


class _PyDatasetBatches(_Batches):
    def __init__(self, dataset):
        self.dataset, self.count = dataset, len(dataset)
        if not self.count:
            raise ValueError("x must hold at least one batch. Received: none")

    def iterate_from(self, number):
        for index in range(number, self.count):
            batch = self.dataset[index]
            yield tf.nest.map_structure(_tensor, _complete_batch(batch))


def _complete_batch(batch):
    """Return a batch of one to three parts as (x, y, sample_weight)."""
    batch = batch if isinstance(batch, tuple) else (batch,)
    batch = (*batch, None, None)[:3]
    common_length(batch)
    return batch


def _tensor(value):
    """Convert to a tensor; keep None and sparse or ragged tensors."""
    if value is None or is_composite(value):
        return value
    return tf.convert_to_tensor(value)


def _slice_rows(part, start, stop):
    if part is None:
        return None
    if isinstance(part, tf.SparseTensor):
        inner_sizes = part.dense_shape[1:]
        begin = tf.concat([[tf.cast(start, tf.int64)], 0 * inner_sizes], 0)
        size = tf.concat([[tf.cast(stop - start, tf.int64)], inner_sizes], 0)
        return tf.sparse.slice(part, begin, size)
    return part[start:stop]


def common_length(batch):
    """Return the number of samples, which is the same in all parts."""
    names = ("x", "y", "sample_weight")
    lengths = [
        (name, array.shape[0] if len(array.shape) else None)
        for name, part in zip(names, batch)
        for array in tf.nest.flatten(part)
        if array is not None
    ]
    for name, length in lengths:
        if length is None:
            raise ValueError(
                f"`{name}` expected arrays or tensors with the samples on "
                "their first axis, or a list or dict of such arrays for "
                "several inputs. Received: single numbers; those of several "
                f"samples become an array by numpy.asarray({name})."
            )
    require_equal_lengths(lengths)
    if not lengths or not lengths[0][1]:
        raise ValueError("x must hold at least one sample. Received: none")
    return lengths[0][1]
