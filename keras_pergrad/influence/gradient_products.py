"""Gradients of samples, and their products with other samples' directions.

Gradients of m samples are a list with an array (m, *shape) for each trainable
variable, or None where the loss does not depend on it.
"""

import numpy as np
import tensorflow as tf

from keras_pergrad.factors import wide
from keras_pergrad.functions.data_passes import run_passes, with_progress
from keras_pergrad.modes.inspection import require_finite

#: Per-sample gradients of a variable with more entries are not materialized.
MAX_MATERIALIZED = 2**17


def gradients_of(model, batch, first_row=0):
    """Return the gradients of a batch's samples, widened.

    `first_row` is the row of its first sample, for errors.
    """
    return [
        None if g is None else require_finite_rows(wide(g).numpy(), first_row)
        for g in pass_of("gradients", model, batch)
    ]


def pass_of(quantity, model, batch, *tensors):
    """Return what `run_passes` yields of one batch, in inference."""
    (parts,) = run_passes(
        quantity,
        model,
        (*batch, None, 0),
        *tensors,
        method="vectorized",
        training=False,
    )
    return parts


def dots(model, batches, directions, *, verbose=0):
    """Return the products of all samples with m directions, (m, n)."""
    used_directions = [
        None if d is None else tf.convert_to_tensor(d) for d in directions
    ]
    blocks, first_row = [], 0
    for batch in with_progress(
        batches, verbose, "Scores of the training samples"
    ):
        parts = pass_of(_DOT_PRODUCTS, model, batch, used_directions)
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
