"""The passes over training data at checkpoints, in one order."""

import contextlib
import hashlib
import json
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.numbers import weights_checksum
from keras_pergrad.factors import wide
from keras_pergrad.factors.base import norm_type
from keras_pergrad.functions.data_passes import run_passes, with_progress
from keras_pergrad.keras_internals.models.parts import layers_of
from keras_pergrad.keras_internals.state.model import (
    ModelState,
    preserve_variables,
)
from keras_pergrad.modes.inspection import require_finite


class Checkpoints:
    """Weights of a model, which it can be given for a while.

    Args:
        model: a built model.
        paths: weights files of `save_weights`, or None for its weights now,
            which then must stay as they are.
    """

    def __init__(self, model, paths):
        self._model = model
        self._saved = [None]
        self._checksum = weights_checksum(model)
        if paths is not None:
            self._saved = [self._read(path) for path in paths]

    def __len__(self):
        return len(self._saved)

    @contextlib.contextmanager
    def at(self, index):
        """Give the model the weights of one checkpoint; restore its own."""
        weights = self._saved[index]
        if weights is None:
            if weights_checksum(self._model) != self._checksum:
                raise ValueError(
                    f"The weights of model {self._model.name!r} have changed "
                    "since this Influence was made for them. Expected the same "
                    "weights. Make a new one, or pass checkpoints=[...] of "
                    "files from model.save_weights."
                )
            yield
            return
        with preserve_variables([v.value for v in self._model.weights]):
            for variable, value in zip(self._model.weights, weights):
                variable.assign(value)
            yield

    def checksum(self, index):
        """Return a text that changes with the weights of a checkpoint."""
        with self.at(index):
            return weights_checksum(self._model)

    def _read(self, path):
        with ModelState(self._model):
            self._model.load_weights(path)
            return [v.numpy() for v in self._model.weights]


# Batches of a data set, which must be the same in each pass over it.


class FixedOrderBatches:
    """The batches of a data set; another order in a later pass is refused.

    Samples are numbered by their places, which another order would mix up.

    Args:
        batches: from `batches_of`.
        name: of the argument that they come from.
    """

    def __init__(self, batches, name):
        self._batches, self._name = batches, name
        self.count = batches.count
        self._checksums = {}
        # The first batch is read now, so that even a single later pass is
        # compared with something.
        next(iter(self))

    def __iter__(self):
        return self.iterate_from(0)

    def iterate_from(self, number):
        """Yield the batches from one of this number on."""
        for index, batch in enumerate(
            self._batches.iterate_from(number), number
        ):
            checksum = _checksum(batch)
            if self._checksums.setdefault(index, checksum) != checksum:
                raise ValueError(
                    f"The data set of `{self._name}` must give the same "
                    "batches in the same order each time. Received: another "
                    f"batch number {index} than before, as after "
                    "shuffle() or random changes in map(). Give arrays, "
                    "shuffle(..., reshuffle_each_iteration=False), or cache() "
                    "behind what is random."
                )
            yield batch


def _checksum(batch):
    checksum = 0
    for part in tf.nest.flatten(batch, expand_composites=True):
        if part is not None:
            array = np.asarray(part)
            is_text = array.dtype == object
            data = b"\0".join(array.reshape(-1)) if is_text else array.tobytes()
            checksum = zlib.crc32(data, checksum)
    return checksum


def count_and_checksum(batches):
    """Return how many samples all batches have, and a number of their values.

    They are read once.
    """
    samples, checksum = 0, 0
    for batch in batches:
        samples += len(tf.nest.flatten(batch[0])[0])
        text = str(_checksum(batch)).encode()
        checksum = zlib.crc32(text, checksum)
    return samples, checksum


def model_checksum(model):
    """Return a text that changes with a model's layers and its loss.

    Names of layers do not matter: Keras numbers them in each process.
    """
    layers = layers_of(model)
    indices = {layer.name: k for k, layer in enumerate(layers)}
    compiled = model.get_compile_config() or {}
    parts = [[type(layer).__name__, _config_of(layer)] for layer in layers]
    parts += [compiled.get("loss"), compiled.get("loss_weights")]
    text = json.dumps(_without_names(parts, indices), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _config_of(part):
    try:
        saved: Any = keras.saving.serialize_keras_object(part)
        return saved["config"]
    except (NotImplementedError, TypeError, ValueError, KeyError):
        return None  # A class of the user's that cannot be saved.


def _without_names(config, indices):
    if isinstance(config, dict):
        return {
            str(key): _without_names(value, indices)
            for key, value in sorted(config.items(), key=str)
            if value is not None
        }
    if isinstance(config, list | tuple):
        return [_without_names(value, indices) for value in config]
    is_name = isinstance(config, str) and config in indices
    return f"layer {indices[config]}" if is_name else config


# Gradients of samples, and their products with other samples' directions.
#
# Gradients of m samples are a list with an array (m, *shape) for each
# trainable variable, or None where the loss does not depend on it.


#: Per-sample gradients of a variable with more entries are not materialized.
MAX_MATERIALIZED = 2**17


def gradients_of(model, batch, first_row=0):
    """Return the gradients of a batch's samples, widened.

    `first_row` is the row of its first sample, for errors.
    """
    (gradients,) = run_passes(
        "gradients", model, (*batch, None, 0), "vectorized", False
    )
    return [
        None if g is None else require_finite_rows(wide(g).numpy(), first_row)
        for g in gradients
    ]


def dots(model, batches, directions, verbose=0):
    """Return the products of all samples with m directions, (m, n)."""
    used_directions = [
        None if d is None else tf.convert_to_tensor(d) for d in directions
    ]
    blocks, first_row = [], 0
    for batch in with_progress(
        batches, verbose, "Scores of the training samples"
    ):
        data = (*batch, None, 0)
        (parts,) = run_passes(
            _DOT_PRODUCTS, model, data, "vectorized", False, used_directions
        )
        products = [p.numpy() for p in parts if p is not None]
        total = np.sum([p.astype("float64") for p in products], 0)
        blocks.append(np.transpose(require_finite_rows(total, first_row)))
        first_row += len(total)
    return np.concatenate(blocks, 1)


def flatten_gradients(gradients):
    """Return gradients of m samples as float64, (m, all entries in use)."""
    rows = [np.reshape(g, [len(g), -1]) for g in gradients if g is not None]
    return np.concatenate(rows, 1).astype("float64")


def unflatten_gradients(rows, templates):
    """Return rows like those of `flatten_gradients` in the form before it."""
    parts, begin = [], 0
    for template in templates:
        if template is None:
            parts.append(None)
            continue
        size = int(np.prod(template.shape[1:], dtype=int))
        part = rows[:, begin : begin + size].astype(template.dtype)
        parts.append(np.reshape(part, [len(rows), *template.shape[1:]]))
        begin += size
    return parts


class _DotProducts:
    """A pass over the data: products of gradients with m directions."""

    def of_factors(self, factors, n, directions):
        """Return the products of each variable, (n, m)."""
        return [
            None if f is None or d is None else _products(f, d, n)
            for f, d in zip(factors, directions, strict=True)
        ]


_DOT_PRODUCTS = _DotProducts()


def _products(factor, directions, n):
    scale = tf.cast(n, directions.dtype)
    size = directions.shape[1:].num_elements()
    if size is not None and size <= MAX_MATERIALIZED:
        rows = tf.reshape(wide(factor.materialize()), [n, size])
        others = tf.reshape(directions, [-1, size])
        products = tf.matmul(rows, tf.cast(others, rows.dtype), False, True)
        return products * tf.cast(n, products.dtype)
    spec = tf.TensorSpec([None], directions.dtype)

    def dot(direction):
        return tf.cast(factor.dot(direction), directions.dtype)

    products = tf.map_fn(dot, directions, fn_output_signature=spec)
    return tf.transpose(products) * scale


def require_finite_rows(rows, first_row):
    """Return the samples' rows; refuse any that are not finite, by number."""
    sizes = np.abs(rows.reshape(len(rows), -1)).sum(1)
    if not np.isfinite(sizes).all():
        require_finite(np.concatenate([np.zeros(first_row), sizes]))
    return rows


# What is zero but for rounding.

#: Eigenvalues below so many rounding units of the largest one are rounding.
_ROUNDING_UNITS = 8


def rounding_share(variables):
    """Return below which share of the largest an eigenvalue is rounding."""
    dtype: Any = norm_type(list(variables)).as_numpy_dtype
    return _ROUNDING_UNITS * float(np.finfo(dtype).eps)


def is_definite(matrix, share):
    """Whether a symmetric matrix is positive definite beyond rounding."""
    # The largest entry of the diagonal is no more than the largest eigenvalue.
    margin = share * np.diagonal(matrix).max(initial=0.0)
    try:
        np.linalg.cholesky(matrix - margin * np.eye(len(matrix)))
    except np.linalg.LinAlgError:
        return False
    return True
