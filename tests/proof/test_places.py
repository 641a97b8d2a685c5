"""Indices that follow a sample's place: refused where passes repeat."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.proof.mixing_cases import Apply, stacked

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


def _fit(act, column):
    def applied(h):
        found = act(h, column)
        return h + tf.ensure_shape(found, [None, found.shape[1]])

    model, x, y = stacked(Apply(applied))
    loss = model.loss
    model = kpg.PerGradModel.from_model(model)
    mode = kpg.Accumulated(microbatch_size=2)
    model.compile("sgd", loss, gradient_mode=mode)
    model.fit(x, y, batch_size=len(y), shuffle=False, verbose=0)


@pytest.mark.parametrize("name", ACTS)
def test_places_that_follow_the_number_are_refused(name):
    # A remainder proves nothing of a place: the op that takes it is refused.
    with pytest.raises(
        ValueError, match=r"mixes the samples|takes a size that"
    ):
        _fit(ACTS[name], lambda n: (n - 1) % 4)


@pytest.mark.parametrize("name", ["scatter", "gather"])
def test_places_that_only_count_the_samples_are_served(name):
    _fit(ACTS[name], lambda n: 2)


NUMBERS = {
    "one_more": lambda h, n: h / tf.cast(tf.cast(n + 1, "int64"), h.dtype),
    "packed": lambda h, n: h / tf.cast(tf.stack([n + 1, 3])[0], h.dtype),
    "looked_up": lambda h, n: h * tf.cast(tf.gather(_TABLE, n), h.dtype),
    "sliced": lambda h, n: h * tf.cast(_TABLE[n], h.dtype),
    "part": lambda h, n: h * tf.cast(tf.slice(_TABLE, [n], [1]), h.dtype),
    "rows": lambda h, n: h * tf.cast(_TABLE[:n, None], h.dtype),
    "listed": lambda h, n: h / tf.reduce_sum(_listed(tf.ones([n], h.dtype))),
}


def _listed(tensor):
    """The entries of a list that holds a tensor."""
    held = tf.TensorArray(tensor.dtype, 1, element_shape=tensor.shape)
    return held.write(0, tensor).read(0)


_TABLE = tf.constant(np.arange(300) * 7 % 13)


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_follow_the_number_are_refused(name):
    act = NUMBERS[name]
    with pytest.raises(ValueError, match="number of samples"):
        _fit(lambda h, _: act(h, tf.shape(h)[0]), None)


SIZES = {
    "length": lambda h: h * tf.cast(_TABLE[: tf.shape(h)[1]], h.dtype),
    "whole": lambda h: tf.reshape(h[: tf.shape(h)[0]], [tf.shape(h)[0], -1]),
    "ones": lambda h: h * tf.ones(tf.shape(h), h.dtype),
    # Its first carry, zeros for each sample, is kept in a list.
    "scan": lambda h: keras.ops.scan(
        lambda carry, row: (tf.tanh(carry + row), carry),
        tf.zeros_like(h),
        tf.stack([h, h * h]),
    )[0],
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_served(name):
    _fit(lambda h, _: SIZES[name](h), None)
