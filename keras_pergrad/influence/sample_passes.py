"""Gradients of samples, and their products with other samples' directions.

Gradients of m samples are a list with an array (m, *shape) for each trainable
variable, or None where the loss does not depend on it.
"""

import numpy as np
import tensorflow as tf

from keras_pergrad.data_passes import run, shown
from keras_pergrad.factors import wide
from keras_pergrad.keras_internals.inspection_checks import require_finite
from keras_pergrad.keras_internals.overwritten import is_overwritten

#: A sample's gradient of a variable with more entries is not held.
HELD = 2**17


def gradients_of(model, batch, first=0):
    """Return the gradients of a batch's samples, widened; `first`: its row."""
    (found,) = run("gradients", model, (*batch, None, 0), "vectorized", False)
    return [
        None if g is None else finite(wide(g).numpy(), first) for g in found
    ]


def dots(model, batches, directions, verbose=0):
    """Return the products of all samples with m directions, (m, n)."""
    more = [
        None if d is None else tf.convert_to_tensor(d)
        for v, d in zip(model.trainable_variables, directions)
        if not is_overwritten(v)
    ]
    found, first = [], 0
    for batch in shown(batches, verbose):
        data = (*batch, None, 0)
        (parts,) = run(_DIRECTIONS, model, data, "vectorized", False, more)
        known = [p.numpy() for p in parts if p is not None]
        total = np.sum([p.astype("float64") for p in known], 0)
        found.append(np.transpose(finite(total, first)))
        first += len(total)
    return np.concatenate(found, 1)


def flat(gradients):
    """Return gradients of m samples as float64, (m, all entries in use)."""
    rows = [np.reshape(g, [len(g), -1]) for g in gradients if g is not None]
    return np.concatenate(rows, 1).astype("float64")


def as_before(rows, like):
    """Return what `flat` gave, or is in its place, in the form before it."""
    parts, begin = [], 0
    for one in like:
        if one is None:
            parts.append(None)
            continue
        size = int(np.prod(one.shape[1:], dtype=int))
        part = rows[:, begin : begin + size].astype(one.dtype)
        parts.append(np.reshape(part, [len(rows), *one.shape[1:]]))
        begin += size
    return parts


class _Directions:
    """What a pass makes of factors: products with m directions each."""

    def of_factors(self, factors, n, directions):
        """Return the products of each variable, (n, m)."""
        return [
            None if f is None or d is None else _products(f, d, n)
            for f, d in zip(factors, directions, strict=True)
        ]


_DIRECTIONS = _Directions()


def _products(factor, directions, n):
    scale = tf.cast(n, directions.dtype)
    size = directions.shape[1:].num_elements()
    if size is not None and size <= HELD:
        rows = tf.reshape(wide(factor.materialize()), [n, size])
        others = tf.reshape(directions, [-1, size])
        products = tf.matmul(rows, tf.cast(others, rows.dtype), False, True)
        return products * tf.cast(n, products.dtype)
    spec = tf.TensorSpec([None], directions.dtype)

    def one(direction):
        return tf.cast(factor.dot(direction), directions.dtype)

    products = tf.map_fn(one, directions, fn_output_signature=spec)
    return tf.transpose(products) * scale


def finite(rows, first):
    """Return samples' numbers; refuse those that are not finite by row."""
    sizes = np.abs(rows.reshape(len(rows), -1)).sum(1)
    if not np.isfinite(sizes).all():
        require_finite(np.concatenate([np.zeros(first), sizes]))
    return rows
