"""The parts of a batch: their tensors, their lengths, their numbers."""

import numpy as np
import tensorflow as tf

TEXTS_TO_NUMBERS = (
    "Turn them into numbers before, by keras.layers.StringLookup (categories) "
    "or keras.layers.TextVectorization (sentences), as in dataset.map(); or "
    "put this layer into the model, behind keras.Input(..., dtype='string')."
)
TEXTS_AS_TARGETS = (
    "`y` expected numbers. Received: text. Number the classes: "
    "y = numpy.unique(y, return_inverse=True)[1]"
)


def as_tensors(batch):
    """Return a batch with tensors in place of the arrays of eager steps."""
    return tf.nest.map_structure(
        lambda t: tf.convert_to_tensor(t) if isinstance(t, np.ndarray) else t,
        batch,
    )


#: The keys of inputs that have the number of each sample beside them.
_NUMBERS, _X = "keras_pergrad_numbers", "x"


def with_numbers(x, numbers):
    """Return the inputs together with the number of each sample."""
    return {_NUMBERS: numbers, _X: x}


def is_numbered(x):
    """Whether inputs have numbers beside them."""
    return isinstance(x, dict) and set(x) == {_NUMBERS, _X}


def split_numbers(x):
    """Return the model's own inputs, and the samples' numbers or None."""
    return (x[_X], x[_NUMBERS]) if is_numbered(x) else (x, None)


def without_numbers(batch):
    """Return a batch (x, ...) or x with the inputs as the model takes them."""
    if isinstance(batch, (tuple, list)) and batch and is_numbered(batch[0]):
        return (split_numbers(batch[0])[0], *batch[1:])
    return split_numbers(batch)[0]


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


def only_if(condition, data):
    """Return a context whose ops run only if a condition holds.

    Otherwise they fail with an `InvalidArgumentError` that shows `data`, a list
    of texts and tensors. XLA leaves assertions out, so that what runs inside
    must not give a plausible number where the condition does not hold.
    """
    # Eagerly `Assert` raises by itself and returns None.
    check = tf.debugging.Assert(condition, data)
    return tf.control_dependencies([] if check is None else [check])


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
