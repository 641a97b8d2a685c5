"""The batches of arrays, frames, data sets and generators."""

import math

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.arguments import is_number, positive_integer
from keras_pergrad.common.assertions import only_if

TEXTS_TO_NUMBERS = (
    "Turn them into numbers before, by keras.layers.StringLookup (categories) "
    "or keras.layers.TextVectorization (sentences), as in dataset.map(); or "
    "put this layer into the model, behind keras.Input(..., dtype='string')."
)
TEXTS_AS_TARGETS = (
    "`y` expected numbers. Received: text. Number the classes: "
    "y = numpy.unique(y, return_inverse=True)[1]"
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


def as_tensors(batch):
    """Return a batch with tensors in place of the arrays of eager steps."""
    return tf.nest.map_structure(
        lambda t: tf.convert_to_tensor(t) if isinstance(t, np.ndarray) else t,
        batch,
    )


def first_tensor(x):
    """Return the tensor whose first axis counts the samples."""
    return next(t for t in tf.nest.flatten(x) if t is not None)


def sample_count(x):
    """Return the number of samples, as a tensor."""
    return _length(first_tensor(x))


def _length(tensor):
    sizes = tf.shape(tensor)
    if not tf.is_tensor(sizes) or not sizes.shape.num_elements():
        return sizes[0]
    # `tf.shape(tensor)[0]` would be five ops in the graph; this is two.
    return tf.unstack(sizes)[0]


def map_tensors(function, *batches):
    """Apply a function to the tensors of like structures; keep None."""
    return tf.nest.map_structure(
        lambda *t: None if t[0] is None else function(*t), *batches
    )


def tensors_of(batch):
    """Return the tensors of a structure, without None, as a tuple."""
    return tuple(t for t in tf.nest.flatten(batch) if t is not None)


def pack_like(batch, tensors):
    """Return the structure of a batch with other tensors in it."""
    tensors = iter(tensors)
    return map_tensors(lambda _: next(tensors), batch)


def with_checked_lengths(x, y, sample_weight):
    """Return a batch of parts of one length; raise ValueError otherwise."""
    # Lengths that are unknown while tracing are compared in each step.
    batch, names = (x, y, sample_weight), ("x", "y", "sample_weight")
    static_lengths, dynamic_tensors = [], []
    for name, part in zip(names, batch):
        for tensor in tf.nest.flatten(part):
            if tensor is None or tensor.shape.rank == 0:
                continue
            if tensor.shape.rank is None:
                raise ValueError(_NO_RANK.format(name=name))
            if tensor.shape[0] is not None:
                static_lengths.append((name, tensor.shape[0]))
            elif not is_composite(tensor):
                dynamic_tensors.append((name, tensor))
    require_equal_lengths(static_lengths)
    if not dynamic_tensors or len(static_lengths) + len(dynamic_tensors) < 2:
        return batch
    return _check_lengths_in_graph(batch, static_lengths, dynamic_tensors)


def require_equal_lengths(lengths):
    """Refuse arrays of different lengths, given as pairs (name, length)."""
    if len({length for _, length in lengths}) > 1:
        raise ValueError(
            f"{_EQUAL_LENGTHS} Received: "
            + ", ".join(f"{name} with {length}" for name, length in lengths)
            + ". If these are of one sample, make it a batch: x[None], "
            "y[None], or dataset.batch(32) for a data set."
        )


def _check_lengths_in_graph(batch, static_lengths, dynamic_tensors):
    """Return the batch, whose use fails if its lengths differ."""
    labelled_lengths = [
        [f"{name} with", _length(t)] for name, t in dynamic_tensors
    ]
    labelled_lengths += [
        [f"{name} with", length] for name, length in static_lengths[:1]
    ]
    lengths = [length for _, length in labelled_lengths]
    are_equal = tf.reduce_all(tf.equal(lengths, lengths[0]))
    received = [entry for pair in labelled_lengths for entry in pair]
    with only_if(are_equal, [f"{_EQUAL_LENGTHS} Received:", *received]):
        # XLA drops assertions, but cannot stack rows of different lengths.
        # The error shows the name of the op.
        zero = tf.constant(0.0)
        rows = tf.stack(
            [tf.fill([length], zero) for length in lengths],
            name="x_y_and_sample_weight_must_have_the_same_length",
        )
    begin, steps = tf.constant([0]), tf.constant([1])
    end = tf.shape(rows)[1:]
    tensors_to_cut = dynamic_tensors if static_lengths else dynamic_tensors[1:]

    def cut(tensor):
        if not any(tensor is candidate for _, candidate in tensors_to_cut):
            return tensor
        rows = tf.strided_slice(tensor, begin, end, steps)
        rows.set_shape(tensor.shape)
        return rows

    return tf.nest.map_structure(cut, batch)


_EQUAL_LENGTHS = (
    "x, y and sample_weight must have the same number of entries on their "
    "first axis, one for each sample."
)
_NO_RANK = (
    "`{name}` must have the same number of axes in every call of fit and "
    "train_on_batch, since the train function is traced for all. Received: "
    "an unknown number of axes, as for targets of shape (n,) in one call and "
    "(n, 1) in another. Give both the same shape, such as y[:, None], or call "
    "compile() again between."
)


def ranks(batch):
    """Return each tensor's number of axes, for the key of a traced function."""
    return tuple(
        None if t is None else t.shape.rank for t in tf.nest.flatten(batch)
    )


def has_composite(parts):
    """Whether one of several parts of a batch is sparse, ragged or the like."""
    return any(map(is_composite, parts))


def is_composite(tensor):
    """Whether a tensor is sparse or ragged."""
    return isinstance(tensor, (tf.SparseTensor, tf.RaggedTensor))


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


def require_arrays(x, y):
    """Refuse lists, texts and None in place of arrays."""
    for name, data in (("x", x), ("y", y)):
        first = data
        while isinstance(first, (list, tuple)) and first:
            first = first[0]
        is_list, is_text = first is not data, isinstance(first, (str, bytes))
        for array in tf.nest.flatten(data):
            _require_no_objects(name, array)
        make_array = f"numpy.asarray({name})"
        if is_text and name == "y":
            raise ValueError(TEXTS_AS_TARGETS)
        if is_text and is_list:
            advice = f"{TEXTS_TO_NUMBERS} Both take arrays: {make_array}"
            received = "a list of texts"
        elif is_text:
            received, advice = f"{data!r}", "Load it before, as by numpy.load"
        elif is_list and isinstance(first, (int, float, np.generic)):
            received = "a list of numbers"
            advice = f"Make it an array: {make_array}"
        elif data is None and name == "x":
            received, advice = "None", "Give the inputs of the samples"
        else:
            continue
        raise ValueError(
            f"`{name}` expected an array or a tensor, or a data set. "
            f"Received: {received}. {advice}."
        )


def _require_no_objects(name, array):
    """Refuse an array of Python objects that are no texts."""
    if not isinstance(array, np.ndarray) or array.dtype != object:
        return
    kinds = {type(entry).__name__ for entry in array.flat} - {"str", "bytes"}
    if not kinds:
        return
    advice = f"Convert it, {name}.astype('float32')"
    if kinds & {"list", "tuple", "ndarray"}:
        advice = (
            "Rows of different lengths become an array by "
            f"keras.utils.pad_sequences({name}, padding='post')"
        )
    raise ValueError(
        f"`{name}` expected an array of numbers. Received: an array of Python "
        f"objects (dtype object) of type {', '.join(sorted(kinds))}. {advice}."
    )


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


class _ArrayBatches:
    def __init__(self, parts, batch_size):
        parts = tf.nest.map_structure(frame_to_array, parts)
        # As a single batch, nested lists of numbers are accepted too.
        if batch_size is None:
            parts = tf.nest.map_structure(_tensor, parts)
        self.parts = parts
        self.samples = common_length(parts)
        self.size = batch_size or self.samples
        self.count = math.ceil(self.samples / self.size)

    def __iter__(self):
        if self.count == 1:
            yield tf.nest.map_structure(_tensor, self.parts)
            return
        yield from self.iterate_from(0)

    def iterate_from(self, number):
        """Yield the batches from the one of this number on."""
        for start in range(number * self.size, self.samples, self.size):
            stop = min(start + self.size, self.samples)
            yield tf.nest.map_structure(
                lambda part, a=start, b=stop: _tensor(_slice_rows(part, a, b)),
                self.parts,
            )


class _DatasetBatches:
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
        return self.iterate_from(0)

    def iterate_from(self, number):
        """Yield the batches from one of this number on."""
        for batch in self.dataset.skip(number) if number else self.dataset:
            yield _complete_batch(batch)


class _PyDatasetBatches:
    def __init__(self, dataset):
        self.dataset, self.count = dataset, len(dataset)
        if not self.count:
            raise ValueError("x must hold at least one batch. Received: none")

    def __iter__(self):
        return self.iterate_from(0)

    def iterate_from(self, number):
        """Yield the batches from one of this number on."""
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
