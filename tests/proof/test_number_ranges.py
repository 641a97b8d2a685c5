"""Ranges of numbers hold whatever the inputs, and are as narrow as told."""

import math
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.proof.intervals import number_range
from keras_pergrad.proof.numbers import OpenLengths
from keras_pergrad.proof.static_numbers import StaticNumbers
from keras_pergrad.proof.tensor_types import FREE
from keras_pergrad.proof.values import Values

INF = math.inf
WHOLE = -(2**31), 2**31 - 1
#: Functions of x (floats, 3 × 4) and k (whole numbers, 3 × 4), and the range.
CASES = {
    "any float": (lambda x, k: x, (-INF, INF)),
    "any whole number": (lambda x, k: k, WHOLE),
    "a constant": (lambda x, k: tf.constant([3, -2, 5]), (-2, 5)),
    "a constant of floats": (lambda x, k: tf.constant([0.5, -2]), (-2.0, 0.5)),
    "truth values": (lambda x, k: tf.cast(x > 0, "int32"), (0, 1)),
    "the largest's place": (lambda x, k: tf.argmax(x, 1), (0, 3)),
    "the smallest's place": (lambda x, k: tf.argmin(x, 0), (0, 2)),
    "places of the largest": (lambda x, k: tf.math.top_k(x, 2)[1], (0, 3)),
    "the largest": (lambda x, k: tf.math.top_k(k % 5, 2)[0], (0, 4)),
    "order": (lambda x, k: tf.argsort(x, 1), (0, 3)),
    "clipped": (lambda x, k: tf.clip_by_value(k, -1, 6), (-1, 6)),
    "clipped below": (lambda x, k: tf.maximum(k, 2), (2, 2**31 - 1)),
    "floor of clipped": (
        lambda x, k: tf.cast(tf.floor(tf.clip_by_value(x, 0.5, 3.5)), "int32"),
        (0, 3),
    ),
    "cast towards zero": (
        lambda x, k: tf.cast(tf.clip_by_value(x, -1.5, 2.5), "int32"),
        (-1, 2),
    ),
    "rounded": (
        lambda x, k: tf.round(tf.clip_by_value(x, -1.6, 2.5)),
        (-2, 2),
    ),
    "a rest": (lambda x, k: k % 7, (0, 6)),
    "a rest of floats": (lambda x, k: tf.math.floormod(x, 3.0), (0, 3.0)),
    "a rest of a size": (
        lambda x, k: tf.cast(tf.math.floormod(tf.abs(x), 3.0), "int32"),
        (0, 2),
    ),
    "a rest of a negative": (lambda x, k: k % -7, WHOLE),
    "sum of two": (lambda x, k: k % 7 + 10 * (k % 3), (0, 26)),
    "difference": (lambda x, k: k % 7 - tf.abs(k % 3), (-2, 6)),
    "negative": (lambda x, k: -(k % 7), (-6, 0)),
    "product": (lambda x, k: (k % 7 - 3) * (k % 3 - 1), (-3, 3)),
    "too large a product": (lambda x, k: (k % 7) * 2**29, WHOLE),
    "one more than any": (lambda x, k: k + 1, WHOLE),
    "size of any": (lambda x, k: tf.abs(k), WHOLE),
    "size": (lambda x, k: tf.abs(k % 7 - 5), (0, 5)),
    "size of what is above": (lambda x, k: tf.abs(k % 7 + 2), (2, 8)),
    "too large for its type": (
        lambda x, k: tf.cast(k % 300, "int8"),
        (-128, 127),
    ),
    "rounded up to a half type": (
        lambda x, k: tf.cast(tf.clip_by_value(x, 0.0, 3.999), "bfloat16"),
        (0.0, 4.0),
    ),
    "rounded up from whole numbers": (
        lambda x, k: tf.cast(tf.clip_by_value(k, 0, 511), "bfloat16"),
        (0, 512.0),
    ),
    "whole numbers as floats": (
        lambda x, k: tf.cast(k % 7, "float16") + 3,
        (3, 9),
    ),
    "rounded products": (
        lambda x, k: tf.floor(tf.cast(k % 2, "float32") * 0.1 * 10.0),
        (0, 1),
    ),
    "rounded sums": (
        lambda x, k: tf.cast(k % 2, "float16") + 2048,
        (2048.0, 2050.0),
    ),
    "number of true ones as floats": (
        lambda x, k: tf.reduce_sum(tf.cast(x > 0, "float32")),
        (0, 12),
    ),
    "a sum of tenths": (
        lambda x, k: tf.reduce_sum(0.1 * tf.cast(x > 0, "float32")),
        (0, 1.2000035),
    ),
    "a rest of half a type": (
        lambda x, k: tf.math.floormod(tf.abs(tf.cast(x, "float16")), 3),
        (0, 2.998046875),
    ),
    "number of true ones": (
        lambda x, k: tf.reduce_sum(tf.cast(x > 0, "int32"), 1),
        (0, 4),
    ),
    "sum": (lambda x, k: tf.reduce_sum(k % 7 - 3), (-36, 36)),
    "choice": (lambda x, k: tf.where(x > 0, k % 7, k % 3 - 4), (-4, 6)),
    "packed": (lambda x, k: tf.stack([k % 7, k % 3 - 4], 1), (-4, 6)),
    "joined": (lambda x, k: tf.concat([k % 7, k % 3 - 4], 1), (-4, 6)),
    "moved about": (
        lambda x, k: tf.gather(tf.transpose(k % 7)[1:, None], [1, 0]),
        (0, 6),
    ),
    "divided by what may be zero": (lambda x, k: x / (x - x), (-INF, INF)),
    "nothing from everything": (lambda x, k: x - x, (-INF, INF)),
    "zero of everything": (lambda x, k: 0.0 * x, (-INF, INF)),
    "unknown op": (lambda x, k: tf.sin(x), (-INF, INF)),
}
_EDGES = [-(2**31), 2**31 - 1, -1, 0, 1, 2, 6, 7, 299, -300, 5, 20]


def _graph(function):
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder("float32", (3, 4))
        k = tf.compat.v1.placeholder("int32", (3, 4))
        return graph, [x, k], tf.convert_to_tensor(function(x, k))


def _range(tensor):
    op = types.SimpleNamespace(
        value_of=StaticNumbers(Values()).of,
        type_of=lambda tensor: FREE,
        lengths=OpenLengths(),
    )
    return number_range(op, tensor)


def _values(graph, inputs, tensor):
    rng = np.random.default_rng(0)
    with tf.compat.v1.Session(graph=graph) as session:
        for scale in (1e-9, 1.0, 10.0, 1e12):
            x = scale * rng.normal(size=(3, 4))
            k = rng.permutation(_EDGES).reshape(3, 4)
            yield session.run(tensor, dict(zip(inputs, [x, k])))


@pytest.mark.parametrize("name", CASES)
def test_ranges_are_as_narrow_as_told_and_hold(name):
    function, expected = CASES[name]
    graph, inputs, tensor = _graph(function)
    low, high = _range(tensor)
    assert low == expected[0]
    assert high == pytest.approx(expected[1])
    for value in _values(graph, inputs, tensor):
        value = value.astype(float)
        value = value[np.isfinite(value)]
        assert (low <= value).all()
        assert (value <= high).all()


def test_long_chains_and_shared_terms_take_no_longer():
    def grown(x, k):
        for _ in range(100):
            k = k + k
        return k

    _, _, tensor = _graph(grown)
    assert _range(tensor) == WHOLE


def test_a_rest_of_what_is_just_below_zero_may_be_the_divisor():
    _, _, tensor = _graph(lambda x, k: tf.cast(x % 3.0, "int32"))
    assert _range(tensor) == (0, 3)
    assert tf.cast(tf.constant(-1e-9) % 3.0, "int32").numpy() == 3
