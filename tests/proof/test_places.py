"""What follows the number of samples is refused where passes repeat."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle
from tests.proof.fits import fit, fit_privately
from tests.proof.mixing_cases import Apply, of_loss, stacked

pytestmark = pytest.mark.usefixtures("float64")


def _places(h, column):
    n = tf.shape(h)[0]
    rows = tf.range(n)[:, None] * [1, 0]
    return n, rows + tf.stack([0, column(n)])


def _scatter(h, column):
    _, places = _places(h, column)
    return tf.scatter_nd(places, h[:, 0], tf.shape(h))


def _gather(h, column):
    _, places = _places(h, column)
    return h * tf.gather_nd(h, places)[:, None]


def _own(h, column):
    n = tf.shape(h)[0]
    return tf.gather(tf.reshape(h, (-1,)), tf.range(n)[:, None] * 4 + column(n))


def _crop(h, column):
    """Boxes of samples in pictures that are the same for all."""
    n = tf.shape(h)[0]
    picture = tf.reshape(tf.range(16.0), (1, 4, 4, 1))
    pictures = tf.tile(picture, [n, 1, 1, 1])
    pictures *= tf.cast(tf.range(n), "float32")[:, None, None, None] + 1.0
    numbers = tf.range(n) * 0 + column(n)
    boxes = tf.cast(tf.sigmoid(h), "float32")
    found = tf.image.crop_and_resize(pictures, boxes, numbers, (2, 2))
    return h * tf.cast(tf.reduce_sum(found, (1, 2)), h.dtype)


ACTS = {"scatter": _scatter, "gather": _gather, "own": _own, "crop": _crop}


def _made(act):
    """A model of a function of (h, n), or of a loss over (targets, outputs)."""
    if act is _over_number:
        return of_loss(act)()

    def applied(h):
        found = act(h, tf.shape(h)[0])
        return tf.ensure_shape(found, [None, *found.shape[1:]])

    return stacked(Apply(applied))


def _fit(act, mode="accumulated"):
    fit(_made(act), mode)


@pytest.mark.parametrize("name", ACTS)
def test_places_that_follow_the_number_are_refused(name):
    # A remainder proves nothing of a place: the op that takes it is refused.
    with pytest.raises(
        ValueError, match=r"mixes the samples|takes a size that"
    ):
        _fit(lambda h, n: h + ACTS[name](h, lambda n: (n - 1) % 4))


@pytest.mark.parametrize("name", ["scatter", "gather"])
def test_places_that_only_count_the_samples_are_served(name):
    _fit(lambda h, n: h + ACTS[name](h, lambda n: 2))


def _over_number(y, p):
    squares = keras.ops.mean(keras.ops.square(y - p), -1)
    return squares / keras.ops.cast(keras.ops.shape(p)[0], "float64")


def _by_place(h, n):
    return h * tf.cast(tf.range(n), h.dtype)[:, None]


def _listed(tensor):
    """The entries of a list that holds a tensor."""
    held = tf.TensorArray(tensor.dtype, 1, element_shape=tensor.shape)
    return held.write(0, tensor).read(0)


def _of_product(h, n):
    ones = tf.ones_like(h)
    return h * tf.matmul(ones, ones, transpose_a=True)[:1]


def _first_one(h, n):
    return h * tf.concat([[[2.0]], tf.ones([n - 1, 1], h.dtype)], 0)


_TABLE = tf.constant(np.arange(300) * 7 % 13)
#: Numbers that follow the number of samples: functions of (h, n).
NUMBERS = {
    "one_more": lambda h, n: h / tf.cast(tf.cast(n + 1, "int64"), h.dtype),
    "packed": lambda h, n: h / tf.cast(tf.stack([n + 1, 3])[0], h.dtype),
    "looked_up": lambda h, n: h * tf.cast(tf.gather(_TABLE, n), h.dtype),
    "sliced": lambda h, n: h * tf.cast(_TABLE[n], h.dtype),
    "part": lambda h, n: h * tf.cast(tf.slice(_TABLE, [n], [1]), h.dtype),
    "rows": lambda h, n: h * tf.cast(_TABLE[:n, None], h.dtype),
    "split": lambda h, n: (
        h * tf.cast(tf.split(_TABLE, [n, 300 - n])[0], h.dtype)[:, None]
    ),
    "listed": lambda h, n: h / tf.reduce_sum(_listed(tf.ones([n], h.dtype))),
    "ones": lambda h, n: h * tf.reduce_sum(tf.ones([n], h.dtype)),
    "identity": lambda h, n: h * tf.reduce_sum(tf.eye(n, dtype=h.dtype)),
    "filled": lambda h, n: (
        h * tf.cast(tf.reduce_prod(tf.fill([n], 1.5)), h.dtype)
    ),
    "product": lambda h, n: (
        h * tf.tensordot(tf.ones([n], h.dtype), tf.ones([n], h.dtype), 1)
    ),
    "loop": lambda h, n: (
        h
        * tf.while_loop(
            lambda i, v: i < n,
            lambda i, v: (i + 1, 0.9 * v),
            (0, tf.ones([], h.dtype)),
        )[1]
    ),
    "repeated": lambda h, n: tf.reduce_sum(
        h[:, :, None] * tf.ones([n], h.dtype), -1
    ),
    "tiled": lambda h, n: tf.reduce_sum(
        tf.reshape(tf.tile(h, [1, n]), [n, -1, 4]), 1
    ),
    "contracted": lambda h, n: tf.einsum("ij,k->ij", h, tf.ones([n], h.dtype)),
    "padded": lambda h, n: tf.reduce_sum(
        tf.pad(h[:, :, None], [[0, 0], [0, 0], [0, n + 1]], constant_values=1),
        -1,
    ),
    "cut": lambda h, n: tf.concat([2 * h[:, :n], h[:, n:]], 1),
    "cut_plainly": lambda h, n: (
        h
        + tf.reduce_sum(
            tf.slice(h, [0, 0], [-1, tf.minimum(n, 4)]), 1, keepdims=True
        )
    ),
    "loss": _over_number,
    "layer": lambda h, n: h / tf.cast(n, h.dtype),
    "place": _by_place,
}
#: Those of functions of the inputs' shape alone.
OF_SHAPES = {
    "softmax": lambda h, n: h * tf.nn.softmax(tf.zeros_like(h[:, :1]), axis=0),
    "unique": lambda h, n: (
        h
        * tf.cast(tf.unique_with_counts(tf.zeros_like(h[:, 0]))[2][0], h.dtype)
    ),
    "norm": lambda h, n: tf.nn.l2_normalize(tf.ones_like(h[:, :1]), 0) * h,
    "cumulated": lambda h, n: (
        h * tf.math.cumulative_logsumexp(tf.zeros_like(h), 0)
    ),
    "product": _of_product,
    "first": _first_one,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_follow_the_number_are_refused(name):
    with pytest.raises(ValueError, match="number of samples"):
        _fit(NUMBERS[name])


@pytest.mark.parametrize("name", ["layer", "place"])
def test_they_are_refused_one_by_one(name):
    with pytest.raises(ValueError, match="number of samples"):
        _fit(NUMBERS[name], "per_sample")


@pytest.mark.parametrize("name", ["loss", "layer", "place", *OF_SHAPES])
def test_they_are_refused_by_private_training(name):
    act = {**NUMBERS, **OF_SHAPES}[name]
    methods = ["vectorized"] + ["per_sample"] * (name in NUMBERS)
    for method in methods:
        with pytest.raises(ValueError, match=r"number of samples|how many"):
            fit_privately(_made(act), method)


@pytest.mark.parametrize("name", [*NUMBERS])
def test_they_are_exact_in_one_pass(name):
    model, x, y = _made(NUMBERS[name])
    found = kpg.per_sample_gradients(model, x, y)
    expected = oracle.per_sample_gradients(model, x, y, None, True, alone=False)
    oracle.assert_agree(found, expected)


def test_a_number_that_must_be_known_is_refused_one_by_one():
    """What follows a number of Python does not show."""

    class Known(Apply):
        def call(self, x):
            return x / (0 + x.shape[0])  # fails where it is None

        def compute_output_shape(self, shape):
            return shape

    model, x, y = stacked(Known(None))
    with pytest.raises(ValueError, match="traced for the number of samples"):
        kpg.per_sample_gradients(model, x, y, method="per_sample")


def test_a_loss_over_the_number_is_exact_one_by_one():
    model, x, y = _made(_over_number)
    found = kpg.per_sample_gradients(model, x, y, method="per_sample")
    oracle.check(found, model, x, y=y, training=True)


def _of_ones_own(h, n):
    places = tf.cumsum(tf.ones_like(h), 1)
    return h * tf.nn.softmax(places, 1) * tf.reduce_sum(places, 1)[:, None]


def _of_positions(h, n):
    names = ["ones", "identity", "filled", "product", "loop"]
    for name in names:
        h = NUMBERS[name](h, tf.shape(h)[1])
    return h


SIZES = {
    "length": lambda h, n: h * tf.cast(_TABLE[: tf.shape(h)[1]], h.dtype),
    "whole": lambda h, n: tf.reshape(h[:n], [n, -1]),
    "ones": lambda h, n: h * tf.ones(tf.shape(h), h.dtype),
    # Its first carry, zeros for each sample, is kept in a list.
    "scan": lambda h, n: keras.ops.scan(
        lambda carry, row: (tf.tanh(carry + row), carry),
        tf.zeros_like(h),
        tf.stack([h, h * h]),
    )[0],
    "positions": _of_positions,
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_served(name):
    _fit(SIZES[name])


def test_numbers_of_ones_own_are_private():
    fit_privately(_made(_of_ones_own))
