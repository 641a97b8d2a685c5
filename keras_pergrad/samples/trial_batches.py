"""Batches of a few samples to try a model on: the user's, or made up."""

import contextlib
import contextvars
import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.batches import is_composite
from keras_pergrad.samples import messages
from keras_pergrad.samples.motion import OTHER_SAMPLES, SAMPLES

_FIRST = contextvars.ContextVar("first batch", default=None)
#: The size for an axis if the model takes any size.
UNKNOWN = 32


@dataclasses.dataclass(frozen=True)
class Batches:
    """Batches, (x, y, sample_weight) each, to try a model on.

    Attributes:
        some: some samples.
        exchanged: pairs of the number of a sample and the batch with other
            values for it.
        more: more samples; None if the model takes only one number.
        blanked: the number of a sample, and `some` with zeros in the second
            half of its integers, like padding; None if there are no integers.
    """

    some: tuple
    exchanged: list
    more: tuple | None
    blanked: tuple | None = None


@contextlib.contextmanager
def first_batch(batch):
    """Let models be tried on the first samples of this batch inside.

    Args:
        batch: (x, y, sample_weight); if they are not arrays or eager
            tensors, this changes nothing.
    """
    token = _FIRST.set(_rows(batch))
    try:
        yield
    finally:
        _FIRST.reset(token)


def _rows(batch):
    """Return a few rows of each part of a batch; None if one has no rows."""
    flat = tf.nest.flatten(batch)
    for part in flat:
        # Ragged and sparse tensors have no rows of one kind.
        is_array = isinstance(part, np.ndarray) or (
            isinstance(part, tf.Tensor) and hasattr(part, "numpy")
        )
        if part is not None and not is_array:
            return None
    rows = [t if t is None or not t.ndim else t[:OTHER_SAMPLES] for t in flat]
    return tf.nest.pack_sequence_as(batch, rows)


def spec(tensor):
    """Return the type of a part of the batch, for any number of samples."""
    if tensor is None:
        return None
    if is_composite(tensor):
        raise ValueError(messages.COMPOSITE)
    if tensor.shape.rank in (None, 0):
        return tf.TensorSpec(tensor.shape, tensor.dtype)
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def of_number(one, number):
    """Return the type of a part of the batch for a number of samples."""
    if one.shape.rank in (None, 0):
        return one
    return tf.TensorSpec([number, *one.shape[1:]], one.dtype)


def batches(specs, number=None, sizes_of_outputs=None):
    """Yield `Batches` of some samples.

    The later ones are for models that refuse the values of the first. When a
    sample is exchanged, only x changes. Masks, weights and the denominators
    of the loss stay the same.

    Args:
        specs: the types, (x, y, sample_weight).
        number: how many samples a batch must have; None: any.
        sizes_of_outputs: a function from inputs to the sizes of the model's
            outputs, for targets of unknown sizes.
    """
    x, y, sample_weight = specs
    counts = (SAMPLES, OTHER_SAMPLES) if number is None else (number,)
    count = max(counts)
    given = _given(specs, count)
    if given is not None:
        yield _batches(given, _exchanged(given[0]), counts)
    kinds = unpacked(x)
    whole = [k for k, s in enumerate(kinds) if s.dtype.is_integer]
    choices = [(1, 2)] * len(kinds)
    tried = [tuple(choices)]
    for size in range(1, len(whole) + 1):
        for some in itertools.combinations(whole, size):
            tried.append(
                tuple(
                    (0, 1) if k in some else choice
                    for k, choice in enumerate(choices)
                )
            )
            if len(tried) > 64:
                break
    sizes = None
    # Few models have one class, while many take flags beside ids.
    for classes, numbers in itertools.product((2, 1), tried):
        rng = np.random.default_rng(0)
        first, second = [], []
        for one, pair in zip(kinds, numbers):
            a, b = _pair(one, count, rng, pair)
            first.append(a)
            second.append(b)
        made = packed(x, first)
        kinds_of_y = tf.nest.flatten(y)
        if sizes_of_outputs is not None and not all(map(_is_sized, kinds_of_y)):
            # They are the same for all values that the model takes.
            sizes = sizes or sizes_of_outputs(made)
            kinds_of_y = _sized(kinds_of_y, sizes)
        targets = [_fixed(s, count, rng, classes) for s in kinds_of_y]
        weights = [
            _ones(s, count)
            for s in _sized(
                tf.nest.flatten(sample_weight),
                [() if t is None else t.shape for t in targets],
            )
        ]
        batch = (
            made,
            tf.nest.pack_sequence_as(y, targets),
            tf.nest.pack_sequence_as(sample_weight, weights),
        )
        yield _batches(batch, packed(x, second), counts)


def _is_sized(one):
    return one is None or None not in list(one.shape or [])[1:]


def _sized(kinds, shapes):
    """Return these types, with unknown sizes taken from these shapes."""
    if len(kinds) != len(shapes):
        return kinds
    found = []
    for one, shape in zip(kinds, shapes):
        if one is not None and not _is_sized(one):
            sizes = [*shape, *[None] * one.shape.rank][: one.shape.rank]
            known = [a or b for a, b in zip(one.shape[1:], sizes[1:])]
            one = tf.TensorSpec([None, *known], one.dtype)
        found.append(one)
    return found


def unpacked(structure):
    """List the parts of a structure, without its None."""
    return [t for t in tf.nest.flatten(structure) if t is not None]


def packed(structure, parts):
    """Return the parts in a structure, which keeps its None."""
    parts = iter(parts)
    return tf.nest.map_structure(
        lambda s: None if s is None else next(parts), structure
    )


def _batches(batch, other, counts):
    """Return the `Batches` of arrays; `other` has other values for x."""

    def cut(count):
        return tf.nest.map_structure(
            lambda t: (
                t
                if t is None or np.ndim(t) == 0
                else tf.convert_to_tensor(t[:count])
            ),
            batch,
        )

    def swapped(k):
        def swap(a, b):
            if a is None or np.ndim(a) == 0:
                return a
            a = np.array(a[: counts[0]])
            a[k] = b[k]
            return tf.convert_to_tensor(a)

        return tf.nest.map_structure(swap, batch[0], other)

    some = cut(counts[0])
    # Of many samples, the first two and the last.
    chosen = sorted({0, 1, counts[0] - 1})
    exchanged = [(k, (swapped(k), *some[1:])) for k in chosen]
    more = cut(counts[1]) if len(counts) > 1 else None
    blanked = None
    if any(map(_may_blank, tf.nest.flatten(some[0]))):
        x = tf.nest.map_structure(_blank_second, some[0])
        blanked = 1, (x, *some[1:])
    return Batches(some, exchanged, more, blanked)


def _may_blank(tensor):
    return (
        tensor is not None
        and tensor.shape.rank > 1
        and len(tensor) > 1
        and (tensor.dtype.is_integer or tensor.dtype.is_bool)
    )


def _blank_second(tensor):
    """Return the tensor with zeros in the second half of sample 1."""
    if not _may_blank(tensor):
        return tensor
    array = np.array(tensor)
    array[1, array.shape[1] // 2 :] = 0
    return tf.convert_to_tensor(array)


def _shape(one, count):
    return [count, *(UNKNOWN if s is None else s for s in one.shape[1:])]


def _pair(one, count, rng, numbers):
    """Return two arrays that differ in every entry."""
    if one.shape.rank in (None, 0):
        value = np.zeros([], one.dtype.as_numpy_dtype)
        return value, value
    shape = _shape(one, count)
    if one.dtype.is_floating or one.dtype.is_complex:
        both = rng.uniform(size=(2, *shape))
        return tuple(both.astype(one.dtype.as_numpy_dtype))
    chosen = rng.integers(0, 2, shape)
    if one.dtype == tf.string:
        words = np.array(["a", "b"], object)
        return words[chosen], words[1 - chosen]
    numbers = np.array(numbers).astype(one.dtype.as_numpy_dtype)
    return numbers[chosen], numbers[1 - chosen]


def _fixed(one, count, rng, classes):
    """Return targets: the first classes in turn.

    With two classes, a loss that compares samples has something to compare.
    Every model has one class.
    """
    if one is None:
        return None
    if one.shape.rank in (None, 0):
        return np.zeros([], one.dtype.as_numpy_dtype)
    if one.dtype == tf.string:
        return np.full(_shape(one, count), "a", object)
    if one.dtype.is_floating:
        values = rng.uniform(size=_shape(one, count))
        return values.astype(one.dtype.as_numpy_dtype)
    shape = _shape(one, count)
    chosen = (np.arange(count) % classes).reshape(-1, *[1] * (len(shape) - 1))
    return np.broadcast_to(chosen, shape).astype(one.dtype.as_numpy_dtype)


def _ones(one, count):
    if one is None:
        return None
    shape = [] if one.shape.rank in (None, 0) else _shape(one, count)
    return np.ones(shape, one.dtype.as_numpy_dtype)


def _given(specs, count):
    """Return the first samples of the user's batch, as arrays, or None."""
    batch = _FIRST.get()
    if batch is None:
        return None
    try:
        tf.nest.assert_same_structure(batch, specs, check_types=False)
    except (ValueError, TypeError):
        return None
    flat, kinds = tf.nest.flatten(batch), tf.nest.flatten(specs)
    found = []
    for value, one in zip(flat, kinds):
        if one is None:
            found.append(None)
            continue
        if value is None:
            # Weights of the classes come after the data.
            found.append(_ones(one, count))
            continue
        value = np.asarray(value)
        if value.ndim != one.shape.rank:
            return None
        if value.ndim:
            if not len(value):
                return None
            rows = np.arange(count) % len(value)
            value = value[rows]
        if one.dtype != tf.string:
            value = value.astype(one.dtype.as_numpy_dtype)
        found.append(value)
    return tf.nest.pack_sequence_as(specs, found)


def _exchanged(x):
    """Return other values for every sample of x, with the same zeros.

    Zeros stay, since they may be masked. Flags (0 and 1) stay too, if there
    is something else to exchange.
    """
    flat = unpacked(x)
    only_flags = all(_is_flags(t) for t in flat)
    rng = np.random.default_rng(0)
    return tf.nest.map_structure(
        lambda t: None if t is None else _other(t, rng, only_flags), x
    )


def _is_flags(array):
    if array.dtype.kind in "fc" or array.dtype == object:
        return False
    return array.size == 0 or array.max() <= 1


def _other(array, rng, flip):
    if array.ndim == 0 or array.dtype == object or not array.size:
        return array
    if _is_flags(array):
        if not flip:
            return array
        return np.logical_not(array).astype(array.dtype)
    if array.dtype.kind in "iu":
        most = array.max()
        step = rng.integers(1, most, array.shape) if most > 1 else 0
        other = (array - 1 + step) % most + 1
        return np.where(array > 0, other, array).astype(array.dtype)
    # Far from the old values, so that another sample may be the largest.
    least = -2.0 if array.min() < 0 else 0.0
    factors = rng.uniform(least, 2.0, array.shape)
    return (array * factors).astype(array.dtype)
