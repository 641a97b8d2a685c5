"""Random access to examples, in any kind of container."""

import functools

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import is_composite, map_tensors, tensors_of
from keras_pergrad.common.data_batches import common_length, frame_to_array
from keras_pergrad.privacy.phase import checksum

#: How many examples a checksum is of, where not all are in memory.
_CHECKED = 16


def make_source(x, y=None, sample_weight=None):
    """Return a source for what `PrivateTraining.batches` takes."""
    for name, part in (("y", y), ("sample_weight", sample_weight)):
        if not all(map(_has_shape, keras.tree.flatten(part))):
            raise TypeError(
                f"Expected `{name}` as an array with an entry for each "
                f"example. Received: a {type(part).__name__}. A list becomes "
                f"one by np.asarray({name})."
            )
    is_single = y is None and sample_weight is None
    if isinstance(x, tf.data.Dataset):
        source = _dataset_source
    elif isinstance(x, keras.utils.PyDataset):
        source = _PyDatasetSource
    elif all(map(_has_shape, keras.tree.flatten(x))):
        return _ArraySource(x, y, sample_weight)
    elif hasattr(x, "__getitem__") and hasattr(x, "__len__"):
        source = _item_source
    else:
        raise TypeError(
            "Batches are drawn from data whose examples can be taken in any "
            "order. Expected arrays, an object with len() and [i], a "
            "keras.utils.PyDataset, or a tf.data.Dataset of single examples. "
            f"Received: {type(x).__name__}. Write the examples of a generator "
            "into arrays first, such as memory-mapped ones."
        )
    if not is_single:
        raise ValueError(
            f"A {type(x).__name__} contains its own targets and weights. "
            "Expected batches(data), or arrays: np.asarray(x). Received: y or "
            "sample_weight, too."
        )
    return source(x)


def require_examples(source, expected):
    """Refuse data whose number of examples is not the expected one."""
    if source.size != expected:
        raise ValueError(
            "The accounting is for a different number of examples. Expected "
            f"samples={expected}. Received: {source.size}{source.hint()}"
        )


def _has_shape(part):
    return part is None or hasattr(part, "shape")


class _Source:
    """Examples by number, from 0 to `size` - 1; `name` is that of the data."""

    name = "arrays"

    def take(self, rows):
        """Return the examples of some rows, a batch."""
        pieces = list(self._pieces(np.asarray(rows, int)))
        if not pieces:
            return map_tensors(lambda part: part[:0], self.take([0]))
        return map_tensors(
            lambda *parts: _cast_floats(
                parts[0] if len(parts) == 1 else np.concatenate(parts)
            ),
            *pieces,
        )

    def _pieces(self, rows):
        """Yield parts of the batch of some rows, in their order."""
        raise NotImplementedError

    def tensors(self):
        """Return all of the data if it is in memory anyway, else None."""
        return None

    def hint(self):
        """Return what may help if there are too many or too few examples."""
        return ". Give PrivateTraining(samples=...) the number of all examples."

    def checksum(self):
        """Return a text that changes if one of a few chosen examples does."""
        chosen = np.linspace(0, self.size - 1, _CHECKED).astype(int)
        return self._checksum_of(self.take(np.unique(chosen)))

    def _checksum_of(self, parts):
        return checksum([self.size, *tensors_of(parts)])

    def begin_epoch(self):
        """Prepare the data for an epoch, before its first batch is taken."""

    def end_epoch(self):
        """Let the data finish an epoch, after its last batch was taken."""


class _ArraySource(_Source):
    def __init__(self, x, y, sample_weight):
        parts = (x, y, sample_weight)
        if sample_weight is None:
            parts = (x,) if y is None else (x, y)
        self.given = tensors_of(parts)
        self.parts = map_tensors(
            _as_indexable, keras.tree.lists_to_tuples(parts)
        )
        self.size = common_length((*self.parts, None, None)[:3])

    def checksum(self):
        """Return a text that changes if an example in memory does."""
        if self._is_in_memory:
            return self._checksum_of(self.parts)
        return super().checksum()

    @property
    def _is_in_memory(self):
        return all(type(part) is np.ndarray for part in tensors_of(self.parts))

    def _pieces(self, rows):
        yield map_tensors(lambda part: part[rows], self.parts)

    def tensors(self):
        if not self._is_in_memory:
            return None
        return map_tensors(
            lambda part: tf.constant(_cast_floats(part)), self.parts
        )


class _SingleExampleSource(_Source):
    """Examples that are given one at a time, by `example(row)`."""

    def __init__(self, example, size, name):
        self._example, self.size, self.name = example, size, name

    def _pieces(self, rows):
        for row in rows:
            item = self._example(int(row))
            item = item if isinstance(item, tuple) else (item,)
            yield map_tensors(
                lambda part: np.asarray(part)[None],
                # A tf.data.Dataset takes a list for one tensor.
                keras.tree.lists_to_tuples(item),
            )

    def hint(self):
        first = tensors_of(next(self._pieces([0])))
        shapes = " and ".join(str(part.shape[1:]) for part in first)
        return (
            f", the first of which is of shape {shapes}. If these are "
            f"batches: {_BATCHED_HINT}"
        )


def _item_source(items):
    name = type(items).__name__
    return _SingleExampleSource(items.__getitem__, len(items), name)


def _dataset_source(dataset):
    size = int(dataset.cardinality())
    if size < 0:
        raise ValueError(
            "Batches are drawn from data of known size. Received: a "
            "tf.data.Dataset of unknown or infinite size. Give arrays, or "
            "leave out .repeat(), .filter() and generators; if you "
            "know the size, declare it by "
            ".apply(tf.data.experimental.assert_cardinality(n))."
        )
    example = functools.partial(tf.data.experimental.at, dataset)
    try:
        example(0)
    except tf.errors.OpError as error:
        raise ValueError(
            "Batches are drawn from data whose examples can be taken in "
            "any order, which this tf.data.Dataset does not allow "
            f"({error.message.splitlines()[0]}). Expected one made by "
            "from_tensor_slices(), .map() and the like. Give arrays, such "
            "as memory-mapped ones, instead."
        ) from error
    return _SingleExampleSource(example, size, "tf.data.Dataset")


class _PyDatasetSource(_Source):
    """A PyDataset of batches; it reads the batches that are needed."""

    def __init__(self, dataset):
        self.dataset, self.name = dataset, type(dataset).__name__
        count = dataset.num_batches
        if not count:
            raise ValueError(
                "Batches are drawn from data of known size. Received: a "
                f"{type(dataset).__name__} without a number of batches. "
                "Define __len__()."
            )
        # The hook may prepare what `dataset[0]` needs: this is its call for
        # the first epoch.
        dataset.on_epoch_begin()
        self._is_prepared = True
        first = keras.tree.lists_to_tuples(dataset[0])
        self.batch_length = self._batch_length(first)
        last = first if count == 1 else dataset[count - 1]
        self.size = (count - 1) * self.batch_length + self._batch_length(last)
        # Not at each `fit`: the hooks may have to be called around it.
        self._first_checksum = self._checksum_of(map_tensors(np.asarray, first))

    def checksum(self):
        return self._first_checksum

    def begin_epoch(self):
        if not self._is_prepared:
            self.dataset.on_epoch_begin()
        self._is_prepared = False

    def end_epoch(self):
        self.dataset.on_epoch_end()

    def _pieces(self, rows):
        numbers, places = np.divmod(rows, self.batch_length)
        for number in np.unique(numbers):
            batch = keras.tree.lists_to_tuples(self.dataset[int(number)])
            chosen = places[numbers == number]
            if self._batch_length(batch) <= chosen.max():
                raise ValueError(
                    "All batches of a PyDataset but the last must be of one "
                    f"size. Expected {self.batch_length} examples in batch "
                    f"{number}. Received: {self._batch_length(batch)}"
                )
            yield map_tensors(lambda a, c=chosen: a[c], batch)

    def hint(self):
        return f", in batches of {self.batch_length}"

    def _batch_length(self, batch):
        return len(tensors_of(batch)[0])


def batch_spec(source):
    """Return the `tf.TensorSpec`s of batches of any size."""
    return map_tensors(
        lambda part: tf.TensorSpec([None, *part.shape[1:]], part.dtype),
        source.take(np.arange(1)),
    )


#: What to do if batches were given instead of examples.
_BATCHED_HINT = (
    "expected single examples, from which batches are drawn here. Give the "
    "data as they are before .batch(), or arrays."
)


def _as_indexable(part):
    """Return what can be indexed by an array of rows."""
    part = frame_to_array(part)
    if isinstance(part, np.ndarray):
        return part
    if is_composite(part):
        raise ValueError(
            "Batches are drawn from dense arrays. Received: a "
            f"{type(part).__name__}. Densify it first."
        )
    if tf.is_tensor(part) or not hasattr(part, "__getitem__"):
        return np.asarray(part)
    return part


def _cast_floats(part):
    """Return an array in the float type that Keras casts data to."""
    part = np.asarray(part)
    if part.dtype == np.float64:
        return part.astype(keras.config.floatx())
    return part
