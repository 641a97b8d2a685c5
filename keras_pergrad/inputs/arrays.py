"""Arrays of any size: those that are read, and those that are written."""

import concurrent.futures

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.data_batches import batches_of, frame_to_array


class Chunks:
    """Chunks (x, y, sample_weight) of tensors; the next one is read ahead.

    Attributes:
        samples: how many there are; None, of a dataset, is not known yet.
        count: how many chunks there are, or None.
    """

    def __init__(self, x, y, sample_weight, *, batch_size):
        arrays = x, y, sample_weight
        if not isinstance(x, tf.data.Dataset):
            for array in tf.nest.flatten(x):
                _require_array(frame_to_array(array))
            arrays = x, _joined_numbers(y), _joined_numbers(sample_weight)
            arrays = tf.nest.map_structure(_as_array, arrays)
        self._batches = batches_of(*arrays, batch_size=batch_size)
        self.samples = getattr(self._batches, "samples", None)
        self.count = self._batches.count

    def __iter__(self):
        batches = iter(self._batches)
        # One chunk is read while another is computed; never more than two.
        with concurrent.futures.ThreadPoolExecutor(1) as reader:
            chunk = self._read(batches)
            while chunk is not None:
                next_chunk = reader.submit(self._read, batches)
                yield chunk
                chunk = next_chunk.result()

    def _read(self, batches):
        """Return the next chunk in Keras's float type, None at the end."""
        batch = next(batches, None)
        return batch and tf.nest.map_structure(_in_floatx, batch)


class GatheredRows:
    """One row a sample, written to the caller's arrays (`out`) or to its own.

    Attributes:
        rows: how many have been written.
    """

    def __init__(self, out, samples):
        self.rows = 0
        self._out = out
        self._samples = samples
        self._structure = None
        self._arrays = None
        self._chunks = []

    def write(self, gradients, count):
        flat_gradients = [g.numpy() for g in tf.nest.flatten(gradients)]
        if self._structure is None:
            self._structure = gradients
            self._arrays = self._open(gradients, flat_gradients)
        stop = self.rows + count
        if self._arrays is None:
            self._chunks.append(flat_gradients)
        elif stop > len(self._arrays[0]):
            raise ValueError(
                f"`out` has {len(self._arrays[0])} rows, but x has more "
                f"samples. The first {self.rows} are written."
            )
        for array, flat_gradient in zip(self._arrays or (), flat_gradients):
            array[self.rows : stop] = flat_gradient
        self.rows = stop

    def _open(self, gradients, flat_gradients):
        # Of a dataset of unknown length the parts are joined at the end.
        n = self._samples
        if self._out is not None:
            return _checked_out(self._out, gradients, flat_gradients, samples=n)
        if n is None:
            return None
        return [np.empty((n, *p.shape[1:]), p.dtype) for p in flat_gradients]

    def result(self):
        arrays = self._arrays
        if arrays is None:
            arrays = [np.concatenate(parts) for parts in zip(*self._chunks)]
        elif self.rows < len(arrays[0]):
            raise ValueError(
                f"`out` has {len(arrays[0])} rows, but x has only {self.rows} "
                "samples. They are written."
            )
        if self._out is not None:
            return self._out
        return tf.nest.pack_sequence_as(self._structure, arrays)


class Total:
    """The sum or the mean over all samples.

    Attributes:
        rows: how many samples went into it.
    """

    def __init__(self, mean):
        self.rows = 0
        self._mean = mean
        self._total = None

    def write(self, sums, count):
        sums = tf.nest.map_structure(lambda t: t.numpy(), sums)
        if self._total is None:
            self._total = sums
        else:
            self._total = tf.nest.map_structure(np.add, self._total, sums)
        self.rows += count

    def result(self):
        divisor = self.rows if self._mean else 1
        return tf.nest.map_structure(lambda t: t / divisor, self._total)


def _checked_out(out, gradients, flat_gradients, *, samples):
    """Return the arrays of `out` after checking that they fit."""
    try:
        tf.nest.assert_same_structure(out, gradients)
    except (TypeError, ValueError):
        raise ValueError(
            "`out` must have the structure of x: one array for each input "
            "(for several outputs a list or dict of such structures). "
            f"Received: out={type(out).__name__}"
        ) from None
    arrays = tf.nest.flatten(out)
    for array, flat_gradient in zip(arrays, flat_gradients):
        if not isinstance(array, np.ndarray):
            raise TypeError(
                "`out` must be a NumPy array or a memory-mapped one "
                "(numpy.lib.format.open_memmap). Received: "
                f"{type(array).__name__}"
            )
        n = samples or (len(array) if array.ndim else 0)
        shape = (n, *flat_gradient.shape[1:])
        if array.shape != shape or array.dtype != flat_gradient.dtype:
            raise ValueError(
                f"`out` must have shape {shape} and dtype "
                f"{flat_gradient.dtype}. "
                f"Received: shape {array.shape}, dtype {array.dtype}"
            )
        if not array.flags.writeable:
            raise ValueError(
                "`out` is read-only. Open a memory-mapped file with "
                'mode="r+" (or "w+" to make it).'
            )
    return arrays


def require_batch(model, x):
    """Refuse single samples where batches are expected."""
    for tensor, expected in _expected_shapes(model, x):
        # Keras adds a last axis of length 1 itself.
        if tensor.shape.rank == len(expected) - 1 and expected[-1] != 1:
            raise ValueError(
                "x must hold batches of samples. Expected, for model "
                f"{model.name!r}: arrays of shape {tuple(expected)}. Received: "
                f"shape {tuple(tensor.shape)}, as of single samples. Batch a "
                "dataset, x.batch(256), or give an array an axis, x[None]."
            )


def _expected_shapes(model, x):
    """Return pairs of a tensor and the shape the model expects, if known."""
    inputs = getattr(model, "inputs", None)
    if inputs is None:
        shape = (model.get_build_config() or {}).get("input_shape")
        if not isinstance(shape, (tuple, list)) or not tf.is_tensor(x):
            return []
        is_known = all(d is None or type(d) is int for d in shape)
        return [(x, shape)] if is_known else []
    if isinstance(x, dict):
        shapes_by_name = {t.name: t.shape for t in inputs}
        return [(x[k], shapes_by_name[k]) for k in x if k in shapes_by_name]
    flat = tf.nest.flatten(x)
    shapes = [t.shape for t in inputs]
    return list(zip(flat, shapes)) if len(flat) == len(shapes) else []


def _require_array(value):
    advice = ""
    if isinstance(value, (list, tuple, int, float, str, bytes)):
        received = f"a {type(value).__name__} in it"
        advice = ". Use numpy.asarray(...) first."
    elif not _is_array(value):
        received = f"{value!r} of type {type(value).__name__}"
    elif len(value.shape):
        return
    else:
        raise ValueError(
            "the first axis of x must be the sample. Received: a number "
            "without axes"
        )
    raise TypeError(
        "x must be an array, a memory-mapped array, a structure of them or a "
        f"tf.data.Dataset. Received: {received}{advice}"
    )


def _is_array(value):
    return hasattr(value, "shape") and hasattr(value, "__getitem__")


def _joined_numbers(y):
    """Return nested lists of numbers as one array; others are structures."""
    numbers = any(isinstance(v, (int, float)) for v in tf.nest.flatten(y))
    return np.asarray(y) if numbers else y


def _as_array(value):
    """Return an array as it is read, so a mapped one not as a whole."""
    value = frame_to_array(value)
    is_ready = value is None or (_is_array(value) and not tf.is_tensor(value))
    return value if is_ready else np.asarray(value)


def _in_floatx(tensor):
    """Convert as `fit` and `predict` do."""
    if tensor is None or not tensor.dtype.is_floating:
        return tensor
    return tf.cast(tensor, keras.config.floatx())
