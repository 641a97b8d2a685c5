"""Loops through the samples: pairs of one that mixes them and a sound one."""

import keras
import tensorflow as tf


def _each(x, turn, *start):
    """Goes through the samples: turn(i, given, found, *others)."""
    n = tf.shape(x)[0]
    given = tf.TensorArray(x.dtype, size=n, clear_after_read=False).unstack(x)
    found = tf.TensorArray(x.dtype, size=n)
    return tf.while_loop(
        lambda i, *_: i < n,
        lambda i, found, *others: (i + 1, *turn(i, given, found, *others)),
        (0, found, *start),
    )


def _others(x, place):
    """Each sample times the one at a place that follows the turn."""
    n = tf.shape(x)[0]
    return _each(
        x,
        lambda i, given, found: (
            found.write(i, given.read(i) * given.read(place(i, n))),
        ),
    )[1].stack()


def _in_reverse(x):
    n = tf.shape(x)[0]
    return _each(
        x,
        lambda i, given, found: (found.write(n - 1 - i, given.read(i)),),
    )[1].stack()


def _with_the_last(x):
    return _each(
        x,
        lambda i, given, found, last: (
            found.write(i, given.read(i) * last),
            given.read(i),
        ),
        tf.ones_like(x[0]),
    )[1].stack()


def _times_the_sum(x):
    total = _each(
        x,
        lambda i, given, found, total: (found, total + given.read(i)),
        tf.zeros_like(x[0]),
    )[2]
    return x * total


def _fades(x):
    """Each sample less as the turns go on: by its place."""
    return _each(
        x,
        lambda i, given, found, by: (
            found.write(i, given.read(i) * by),
            by * 0.9 + 0.01 * tf.reduce_sum(given.read(i)),
        ),
        tf.ones((), x.dtype),
    )[1].stack()


def _for_as_long(x):
    """A loop of its own for each sample, as long as its values say."""
    return tf.map_fn(
        lambda row: tf.while_loop(
            lambda k, v: tf.logical_and(k < 5, tf.reduce_sum(v * v) > 0.1),
            lambda k, v: (k + 1, 0.7 * tf.sin(v)),
            (0, row),
        )[1],
        x,
    )


def _branches(x):
    return tf.map_fn(
        lambda row: tf.cond(
            tf.reduce_sum(row) > 0, lambda: tf.tanh(row), lambda: 2 * row
        ),
        x,
    )


def _with_state(function):
    """A function that finds a variable beside its input."""
    seen = tf.Variable(1.0, dtype="float64", trainable=False)
    return lambda x: function(x, seen)


def _branch_on_state(x, seen):
    """A branch of one sample that others find in a variable."""

    def one(row):
        tf.cond(
            tf.reduce_sum(row) > 0,
            lambda: seen.assign_add(1.0),
            lambda: seen.assign_add(0.0),
        )
        return row * seen

    return tf.map_fn(one, x)


def _kept_for_the_next(x, seen):
    def one(row):
        before = seen.read_value()
        with tf.control_dependencies([before]):
            done = seen.assign(tf.reduce_sum(row))
        with tf.control_dependencies([done]):
            return row * before

    return tf.map_fn(one, x)


def _counted(by):
    """A counter that all samples together move, or not."""

    def function(x, seen):
        by(tf.reduce_mean(x), lambda: seen.assign_add(1.0))
        return x * seen

    return _with_state(function)


def _in_a_branch(mean, count):
    tf.cond(mean > 0, count, lambda: tf.zeros_like(mean))


def _in_a_loop(mean, count):
    tf.while_loop(
        lambda k: tf.logical_and(k < 3, mean > 0),
        lambda k: (tf.cast(count() * 0, k.dtype) + k + 1,),
        (0,),
    )


def _mixing_backward(x):
    """In the way back each sample's gradient meets a sum over all."""

    @tf.custom_gradient
    def same(x):
        def back(dy):
            mean = tf.reduce_mean(dy, 0)
            return tf.map_fn(lambda row: row - mean, dy)

        return tf.map_fn(tf.identity, x), back

    return same(x)


def _own_gradient(x):
    @tf.custom_gradient
    def same(x):
        return tf.map_fn(tf.sin, x), lambda dy: tf.map_fn(tf.tanh, dy * 3)

    return same(x)


def _several(x):
    """Several lists in, several out, and one loop behind another."""
    a, b = tf.map_fn(
        lambda rows: (rows[0] * rows[1], tf.reduce_sum(rows[1])),
        (x, tf.sin(x)),
        fn_output_signature=(x.dtype, x.dtype),
    )
    return keras.ops.map(tf.tanh, a) + b[:, None]


def _within(x):
    """Loops over each sample's own positions, forward and back."""
    return tf.map_fn(
        lambda row: tf.scan(
            lambda before, e: tf.tanh(before + e), tf.map_fn(tf.sin, row)
        ),
        x,
    )


#: name → (one that mixes, a sound one): functions of (n, features).
LOOPS = {
    "the_next_in_a_loop": (
        lambda x: _others(x, lambda i, n: tf.minimum(i + 1, n - 1)),
        lambda x: _others(x, lambda i, n: i),
    ),
    "the_first_in_a_loop": (lambda x: _others(x, lambda i, n: 0), _several),
    "loop_writes_in_reverse": (_in_reverse, _within),
    "the_last_turn": (_with_the_last, _for_as_long),
    "times_the_sum_of_a_loop": (_times_the_sum, _branches),
    "fades_by_others": (
        _fades,
        lambda x: _each(
            x, lambda i, given, found: (found.write(i, given.read(i)),)
        )[1].stack(),
    ),
    "scan_over_the_samples": (
        lambda x: tf.scan(lambda before, row: before * 0.5 + row, x),
        lambda x: keras.ops.map(lambda row: tf.cumsum(row), x),
    ),
    "map_sees_all": (
        lambda x: tf.map_fn(lambda row: row - tf.reduce_mean(x, 0), x),
        lambda x: tf.map_fn(lambda row: row - tf.reduce_mean(row), x),
    ),
    "map_in_reverse": (
        lambda x: tf.reverse(tf.map_fn(tf.sin, x), [0]),
        lambda x: tf.reverse(tf.map_fn(tf.sin, x), [1]),
    ),
    "map_mixes_on_the_way_back": (_mixing_backward, _own_gradient),
    "map_with_a_branch_on_state": (_with_state(_branch_on_state), _branches),
    "counter_in_a_branch_of_all": (_counted(_in_a_branch), _several),
    "counter_in_a_loop_of_all": (_counted(_in_a_loop), _within),
    "map_keeps_for_the_next": (
        _with_state(_kept_for_the_next),
        lambda x: tf.map_fn(lambda row: row * tf.reduce_max(row), x),
    ),
}
