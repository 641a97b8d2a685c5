"""Models with several outputs, and second derivatives, against tapes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.inputs.tapes import assert_close, diagonals, gradients, jacobians
from tests.uses.rules.exact import normal, stack

layers = keras.layers


def _two(kind):
    inputs = keras.Input((4,))
    hidden = layers.Dense(5, "tanh")(inputs)
    first = layers.Dense(3, "tanh", name="first")(hidden)
    grid = layers.Reshape((2, 3), name="grid")(layers.Dense(6)(hidden))
    outputs = [first, grid]
    if kind == "dict":
        outputs = {"grid": grid, "first": first}
    return keras.Model(inputs, outputs)


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_all_and_some_of_them_in_their_structure(float64, kind):
    model, x = _two(kind), normal(5, 4)
    found = jacobians(model, x)
    # A dictionary is flattened in the order of its keys.
    first, grid = found
    assert [g.shape for g in found] == [(5, 3, 4), (5, 2, 3, 4)]
    ours = gradients(model, x, batch_size=2)
    assert isinstance(ours, dict if kind == "dict" else list)
    assert_close(ours, found)
    out = tf.nest.map_structure(np.zeros_like, ours)
    assert gradients(model, x, batch_size=2, out=out) is out
    assert_close(out, found)
    with pytest.raises(ValueError, match=r"structure of x.*several outputs"):
        gradients(model, x, out=tf.nest.flatten(out)[0])
    own = np.array([0, 2, 1, 1, 0])
    ours = gradients(model, x, {"grid": [5, 0], "first": own}, batch_size=2)
    assert list(ours) == ["grid", "first"]
    assert_close(ours["grid"], grid.reshape(5, 6, 4)[:, [5, 0]])
    assert_close(ours["first"], first[np.arange(5), own])
    ours = gradients(model, x, {"first": None}, batch_size=2, reduce="norm")
    assert_close(ours, {"first": np.linalg.norm(first, axis=-1)})


def test_a_subclass_names_its_outputs_by_their_places():
    class Both(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x):
            return self.dense(x), tf.sin(x)

    model, x = Both(), normal(3, 4)
    ours = gradients(model, x, {1: 2})
    assert list(ours) == [1]
    expected = np.zeros((3, 4))
    expected[:, 2] = np.cos(x[:, 2])
    np.testing.assert_allclose(ours[1], expected, rtol=1e-5, atol=1e-6)
    assert isinstance(gradients(model, x), tuple)


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (0, r"several outputs: \['grid', 'first'\].*outputs=\{'grid': 0\}"),
        ({"second": 0}, r"\['grid', 'first'\]\. Received: \['second'\]"),
        ({}, r"must name outputs.*Received: \[\]"),
        ({"first": 3}, r"from 0 to 2.*Received: 3"),
        (np.zeros(3, int), r"Received: outputs=an array of shape \(3,\)$"),
    ],
)
def test_outputs_that_are_not_there(outputs, said):
    with pytest.raises(ValueError, match=said):
        gradients(_two("dict"), normal(3, 4), outputs)


def _smooth():
    convolution = layers.Conv1D(3, 2, activation="tanh")
    dense = layers.Dense(6, activation="softplus"), layers.Dense(2)
    return stack((4, 3), convolution, layers.Flatten(), *dense)


def test_the_diagonal_of_the_hessian(float64):
    model, x = _smooth(), normal(5, 4, 3)
    expected = diagonals(model, x)
    assert np.abs(expected).max() > 1e-2
    assert_close(gradients(model, x, order=2, batch_size=2), expected)
    own = np.array([0, 1, 1, 0, 1])
    ours = gradients(model, x, own, order=2, batch_size=2)
    assert_close(ours, expected[np.arange(5), own])
    total = gradients(model, x, 0, order=2, reduce="mean")
    assert_close(total, expected[:, 0].mean(0))


def test_in_a_loop_over_many_outputs_and_for_several_inputs(float64):
    a, b = keras.Input((2,)), keras.Input((3,))
    hidden = layers.Dense(4, "tanh")(layers.Concatenate()([a, b]))
    model = keras.Model([a, b], layers.Dense(6, "tanh")(hidden))
    x = [normal(5, 2), normal(5, 3)]
    whole = keras.Input((5,))
    joined = keras.Model(whole, model([whole[:, :2], whole[:, 2:]]))
    expected = diagonals(joined, np.concatenate(x, 1))
    ours = gradients(model, x, order=2, batch_size=2)
    assert_close(np.concatenate(ours, -1), expected)


@pytest.mark.quick
def test_the_laplacian_of_a_known_function(float64):
    class Known(keras.Model):
        def call(self, x):
            a, b = x[:, :1], x[:, 1:]
            return tf.exp(a) * tf.sin(2 * b) + a * b

    x = normal(6, 2)
    laplacian = gradients(Known(), x, 0, order=2).sum(-1)
    expected = -3 * np.exp(x[:, 0]) * np.sin(2 * x[:, 1])
    np.testing.assert_allclose(laplacian, expected, rtol=1e-10)


def test_second_derivatives_of_what_has_none_are_zero(float64):
    model = stack((4,), layers.Dense(5, "relu"), layers.Dense(2))
    assert not gradients(model, normal(3, 4), order=2).any()


def test_through_a_loop(float64):
    model = stack((3, 2), layers.LSTM(2), layers.Dense(1))
    x = normal(2, 3, 2)
    assert_close(gradients(model, x, order=2), diagonals(model, x))


@pytest.mark.parametrize("order", [0, 3, 1.5, True, "2"])
def test_orders_that_are_not_given(order):
    with pytest.raises(ValueError, match=r"one of 1, 2\..*nest tf\.Gradie"):
        gradients(_smooth(), normal(2, 4, 3), order=order)
