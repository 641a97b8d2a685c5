"""The batches of arrays or a dataset, with targets and weights."""

import math

import keras
import tensorflow as tf

from keras_pergrad.common.arguments import positive_integer
from keras_pergrad.common.data_frames import by_position
from keras_pergrad.keras_internals.batches import (
    is_composite,
    require_one_length,
)
from keras_pergrad.keras_internals.inspection_checks import require_weights


def batches_of(x, y=None, sample_weight=None, batch_size=None):
    """Return an iterable, with a `count`, of batches (x, y, sample_weight)."""
    # The count is None where it is not known. ValueError: x is empty, has no
    # end or no batches, the lengths differ, the weights are no numbers.
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
        return _OfDataset(x, batch_size)
    if isinstance(x, keras.utils.PyDataset):
        if not (y is None and sample_weight is None and batch_size is None):
            raise ValueError(
                "A PyDataset gives its batches, with targets and weights, "
                "itself. Expected it and nothing else. Received: a PyDataset "
                "as x, and y, sample_weight or batch_size"
            )
        return _OfPyDataset(x)
    require_weights(sample_weight)
    return _OfArrays((x, y, sample_weight), batch_size)


class _OfArrays:
    def __init__(self, parts, batch_size):
        parts = tf.nest.map_structure(by_position, parts)
        # As a single batch, nested lists of numbers are accepted too.
        if batch_size is None:
            parts = tf.nest.map_structure(_tensor, parts)
        self.parts = parts
        self.samples = _length(parts)
        self.size = batch_size or self.samples
        self.count = math.ceil(self.samples / self.size)

    def __iter__(self):
        if self.count == 1:
            yield tf.nest.map_structure(_tensor, self.parts)
            return
        yield from self.beginning(0)

    def beginning(self, number):
        """Yield the batches from one of this number on."""
        for start in range(number * self.size, self.samples, self.size):
            stop = min(start + self.size, self.samples)
            yield tf.nest.map_structure(
                lambda part, a=start, b=stop: _tensor(_rows(part, a, b)),
                self.parts,
            )


class _OfDataset:
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

    def __iter__(self):
        return self.beginning(0)

    def beginning(self, number):
        """Yield the batches from one of this number on."""
        for batch in self.dataset.skip(number) if number else self.dataset:
            yield _whole(batch)


class _OfPyDataset:
    def __init__(self, dataset):
        self.dataset, self.count = dataset, len(dataset)
        if not self.count:
            raise ValueError("x must hold at least one batch. Received: none")

    def __iter__(self):
        return self.beginning(0)

    def beginning(self, number):
        """Yield the batches from one of this number on."""
        for place in range(number, self.count):
            batch = self.dataset[place]
            yield tf.nest.map_structure(_tensor, _whole(batch))


def _whole(batch):
    """Return a batch of one to three parts as (x, y, sample_weight)."""
    batch = batch if isinstance(batch, tuple) else (batch,)
    batch = (*batch, None, None)[:3]
    _length(batch)
    return batch


def _tensor(value):
    """Convert to a tensor; keep None and sparse or ragged tensors."""
    if value is None or is_composite(value):
        return value
    return tf.convert_to_tensor(value)


def _rows(part, start, stop):
    if part is None:
        return None
    if isinstance(part, tf.SparseTensor):
        inner = part.dense_shape[1:]
        begin = tf.concat([[tf.cast(start, tf.int64)], 0 * inner], 0)
        size = tf.concat([[tf.cast(stop - start, tf.int64)], inner], 0)
        return tf.sparse.slice(part, begin, size)
    return part[start:stop]


def _length(batch):
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
                "several inputs. Received: single numbers; a list of numbers "
                f"becomes an array by numpy.asarray({name})."
            )
    require_one_length(lengths)
    if not lengths or not lengths[0][1]:
        raise ValueError("x must hold at least one sample. Received: none")
    return lengths[0][1]
