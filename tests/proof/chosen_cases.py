"""Entries that each sample chooses by its values: mixing beside sound."""

import functools

import numpy as np
import tensorflow as tf

from tests.proof.mixing_cases import (
    Apply,
    layer_pair,
    pair,
    stacked,
    transposed,
    varied,
)


def _order(h):
    """Columns in the order of each row's values."""
    return tf.argsort(h, 1)


def _samples(h, step):
    """The number of each sample, or of the one `step` later, (n, 1)."""
    n = tf.shape(h)[0]
    return (tf.range(n)[:, None] + step) % n


def _packed(h, step):
    columns = _order(h)
    rows = tf.broadcast_to(_samples(h, step), tf.shape(columns))
    return tf.stack([rows, columns], -1)


def _packed_first(h, step):
    columns = _order(h)
    rows = tf.tile(_samples(h, step), [1, 4])
    return tf.transpose(tf.stack([rows, columns]), [1, 2, 0])


def _joined(h, step):
    columns = tf.cast(_order(h), "int64")[..., None]
    rows = tf.repeat(_samples(h, step), 4, 1)[..., None]
    return tf.concat([tf.cast(rows, "int64"), columns], 2)


def _flat(h, step):
    return tf.reshape(_packed(h, step), (-1, 2))


def _back(h, flat):
    return tf.reshape(flat, tf.shape(h))


_GATHERS = {
    "packed": (_packed, tf.gather_nd),
    "packed_first": (_packed_first, tf.gather_nd),
    "joined": (_joined, tf.gather_nd),
    "flat": (_flat, lambda h, ids: _back(h, tf.gather_nd(h, ids))),
}
for _name, (_made, _act) in _GATHERS.items():
    layer_pair(
        f"chosen_{_name}",
        lambda h, made=_made, act=_act: h + act(h, made(h, 1)),
        lambda h, made=_made, act=_act: h + act(h, made(h, 0)),
    )
_SCATTERS = {
    "new": lambda h, ids: tf.scatter_nd(ids, h, tf.shape(h)),
    "same": lambda h, ids: tf.scatter_nd(ids, tf.ones_like(h), tf.shape(h)),
    "added": lambda h, ids: tf.tensor_scatter_nd_add(0.3 * h, ids, tf.sin(h)),
    "largest": lambda h, ids: tf.tensor_scatter_nd_max(0.3 * h, ids, h),
    "updated": lambda h, ids: tf.tensor_scatter_nd_update(h, ids, tf.sin(h)),
}
for _name, _act in _SCATTERS.items():
    layer_pair(
        f"chosen_places_{_name}",
        *varied(lambda h, step, act=_act: h + act(h, _packed(h, step)), 1, 0),
    )


def _last(h, step):
    """The entry of the last positive one, as of the last step of a text."""
    length = tf.reduce_sum(tf.cast(h > 0, "int32"), 1)
    place = tf.maximum(length - 1, 0)
    rows = _samples(h, step)[:, 0]
    return h * tf.gather_nd(h, tf.stack([rows, place], 1))[:, None]


layer_pair("last_step", *varied(_last, 1, 0))


def _neighbours(h, most):
    """Entries on both sides of a place, of samples in one long row."""
    n, places = tf.shape(h)[0], tf.stop_gradient(2 + 2 * h)
    begins = tf.reshape(tf.repeat(tf.range(n) * 4, 4), (-1,))
    left = tf.cast(tf.reshape(tf.floor(places), (-1,)), "int32")
    found = tf.zeros([], h.dtype)
    for step in (0, 1):
        place = tf.clip_by_value(left + step, 0, most)
        found += tf.gather(tf.reshape(h, (-1,)), begins + place)
    return h + _back(h, found)


# A place too far is the next sample's first.
layer_pair("neighbours_in_one_row", *varied(_neighbours, 4, 3))


def _pooled(reduce, h, size):
    """Entries of one kind of each sample together, as of nodes of graphs."""
    n = tf.shape(h)[0]
    kinds = tf.cast(tf.math.floormod(tf.abs(4 * h), float(size)), "int32")
    ids = tf.reshape(kinds + 2 * tf.range(n)[:, None], (-1,))
    found = reduce(tf.reshape(tf.tanh(h), (-1,)), ids, 2 * n + size - 2)
    found = tf.reshape(found[: 2 * n], (-1, 2))
    return h + tf.reduce_sum(tf.clip_by_value(found, -1.0, 1.0), 1)[:, None]


for _name in ("sum", "max", "min", "prod"):
    _act = getattr(tf.math, f"unsorted_segment_{_name}")
    _act = functools.partial(_pooled, _act)
    layer_pair(f"pooled_by_kind_{_name}", *varied(_act, 3, 2))


def _solved(h):
    """A solution for each column."""
    matrix = tf.constant(
        [[3.0, 1, 0, 0], [0, 2, 1, 0], [0, 0, 3, 1], [1, 0, 0, 2]], h.dtype
    )
    both = tf.linalg.solve(matrix, h)
    return both + tf.linalg.triangular_solve(matrix, h, lower=False)


layer_pair("columns_of_a_system", _solved, transposed(_solved))


def _wide(h, sum_type, held_type="int32"):
    """An entry of each sample's eighty; 320 are more than a byte counts."""
    wide, n = tf.repeat(h, 20, 1), tf.shape(h)[0]
    place = tf.cast(tf.argmax(wide, 1), sum_type)
    ids = tf.cast(80 * tf.range(n), sum_type) + place
    ids = tf.cast(tf.cast(ids, held_type), "int32")
    return h * tf.gather(tf.reshape(wide, (-1,)), ids)[:, None]


layer_pair("places_added_as_bytes", *varied(_wide, "uint8", "int16"))
layer_pair(
    "places_held_as_bytes",
    lambda h: _wide(h, "int32", "uint8"),
    lambda h: _wide(h, "int32", "uint16"),
)


def _in_order_of_time(h, values):
    """Entries (time, sample), each put where it is."""
    nothing = tf.clip_by_value(tf.cast(tf.transpose(h), "int32"), 0, 0)
    ids = tf.range(tf.size(h)) + tf.reshape(nothing, (-1,))
    found = tf.scatter_nd(ids[:, None], tf.reshape(values, (-1,)), [tf.size(h)])
    return h + tf.transpose(tf.reshape(found, tf.shape(tf.transpose(h))))


layer_pair(
    "places_in_order_of_time",
    lambda h: _in_order_of_time(h, h),
    lambda h: _in_order_of_time(h, tf.transpose(h)),
)


def _looked_up(h, flat):
    place = tf.cast(3 * tf.abs(h), "int32")
    own = tf.gather(h, place, batch_dims=1)
    begins = 4 * tf.range(tf.shape(h)[0])[:, None]
    # The look-up that would refuse a place too far is left out of the step.
    return h + (
        tf.gather(tf.reshape(h, (-1,)), begins + place) if flat else own
    )


layer_pair("looked_up_for_nothing", *varied(_looked_up, True, False))


def _of_half(h, most):
    """The entry of a number that is rounded to few digits."""
    number = tf.cast(tf.clip_by_value(h, 0, most), "bfloat16")
    place = tf.cast(tf.floor(number), "int32")
    begins = 4 * tf.range(tf.shape(h)[0])[:, None]
    return h + tf.gather(tf.reshape(h, (-1,)), begins + place)


layer_pair("rounded_up_to_the_next", *varied(_of_half, 3.999, 3.5))


def _of_many(held_type):
    """The last of each of 130 samples, by a number of some type."""

    def last(h):
        rows = tf.range(tf.shape(h)[0])
        place = tf.cast(h[:, 0] > 0, "int32")
        ids = tf.cast(tf.stack([rows, place], 1), held_type)
        return h * tf.gather_nd(h, tf.cast(ids, "int32"))[:, None]

    model, x, y = stacked(Apply(last))
    return model, np.resize(x, (130, 5)), np.resize(y, (130, 3))


pair(
    "numbers_of_samples_as_bytes",
    lambda: _of_many("int8"),
    lambda: _of_many("int16"),
)
