"""Models with several outputs, and second derivatives, against tapes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.uses.rules.exact import normal, stack

layers = keras.layers


def _gradients(model, x, outputs=None, **how):
    return kpg.input_gradients(model, x, outputs=outputs, verbose=0, **how)


def _jacobians(model, x):
    """One for each of the flat outputs."""
    x = tf.convert_to_tensor(x)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        outputs = tf.nest.flatten(model(x, training=False))
    return [
        tape.batch_jacobian(y, x, experimental_use_pfor=False).numpy()
        for y in outputs
    ]


def _two(kind):
    inputs = keras.Input((4,))
    hidden = layers.Dense(5, "tanh")(inputs)
    first = layers.Dense(3, "tanh", name="first")(hidden)
    grid = layers.Reshape((2, 3), name="grid")(layers.Dense(6)(hidden))
    outputs = [first, grid]
    if kind == "dict":
        outputs = {"grid": grid, "first": first}
    return keras.Model(inputs, outputs)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["list", "dict"])
def test_all_of_them_in_their_structure(kind):
    model, x = _two(kind), normal(5, 4)
    ours = _gradients(model, x, batch_size=2)
    assert isinstance(ours, dict if kind == "dict" else list)
    if kind == "dict":
        ours = [ours["first"], ours["grid"]]
    assert [g.shape for g in ours] == [(5, 3, 4), (5, 2, 3, 4)]
    for one, right in zip(ours, _jacobians(model, x)):
        np.testing.assert_allclose(one, right, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["list", "dict"])
def test_some_of_them_by_name(kind):
    model, x = _two(kind), normal(5, 4)
    first, grid = _jacobians(model, x)
    own = np.array([0, 2, 1, 1, 0])
    ours = _gradients(model, x, {"grid": [5, 0], "first": own}, batch_size=2)
    assert list(ours) == ["grid", "first"]
    grid = grid.reshape(5, 6, 4)
    np.testing.assert_allclose(ours["grid"], grid[:, [5, 0]], rtol=1e-10)
    np.testing.assert_allclose(
        ours["first"], first[np.arange(5), own], rtol=1e-10
    )
    ours = _gradients(model, x, {"first": None}, batch_size=2, reduce="norm")
    np.testing.assert_allclose(
        ours["first"], np.linalg.norm(first, axis=-1), rtol=1e-10
    )


def test_out_has_the_structure_of_the_result():
    model, x = _two("list"), normal(5, 4)
    expected = _gradients(model, x)
    out = [np.zeros_like(g) for g in expected]
    assert _gradients(model, x, batch_size=2, out=out) is out
    for one, right in zip(out, expected):
        np.testing.assert_allclose(one, right, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match=r"structure of x.*several outputs"):
        _gradients(model, x, out=out[0])


def test_a_subclass_names_its_outputs_by_their_places():
    class Both(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x):
            return self.dense(x), tf.sin(x)

    model, x = Both(), normal(3, 4)
    ours = _gradients(model, x, {1: 2})
    assert list(ours) == [1]
    expected = np.zeros((3, 4))
    expected[:, 2] = np.cos(x[:, 2])
    np.testing.assert_allclose(ours[1], expected, rtol=1e-5, atol=1e-6)
    assert isinstance(_gradients(model, x), tuple)


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
        _gradients(_two("dict"), normal(3, 4), outputs)


def _smooth():
    return stack(
        (4, 3),
        layers.Conv1D(3, 2, activation="tanh"),
        layers.Flatten(),
        layers.Dense(6, activation="softplus"),
        layers.Dense(2),
    )


def _diagonals(model, x):
    """The diagonal of the Hessian of each output, (n, outputs, *input)."""
    x = tf.convert_to_tensor(x)
    size = int(np.prod(x.shape[1:]))
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape(persistent=True) as inner:
            inner.watch(x)
            outputs = tf.unstack(model(x), axis=1)
        slopes = [inner.gradient(y, x) for y in outputs]
    full = [
        outer.batch_jacobian(s, x, experimental_use_pfor=False) for s in slopes
    ]
    full = [np.reshape(h, (-1, size, size)) for h in full]
    diagonals = [np.diagonal(h, axis1=1, axis2=2) for h in full]
    return np.stack([d.reshape(x.shape) for d in diagonals], 1)


@pytest.mark.usefixtures("float64")
def test_the_diagonal_of_the_hessian():
    model, x = _smooth(), normal(5, 4, 3)
    expected = _diagonals(model, x)
    assert np.abs(expected).max() > 1e-2
    ours = _gradients(model, x, order=2, batch_size=2)
    np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-10)
    own = np.array([0, 1, 1, 0, 1])
    ours = _gradients(model, x, own, order=2, batch_size=2)
    right = expected[np.arange(5), own]
    np.testing.assert_allclose(ours, right, rtol=1e-10, atol=1e-10)
    total = _gradients(model, x, 0, order=2, reduce="mean")
    np.testing.assert_allclose(total, expected[:, 0].mean(0), atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_in_a_loop_over_many_outputs_and_for_several_inputs():
    a, b = keras.Input((2,)), keras.Input((3,))
    hidden = layers.Dense(4, "tanh")(layers.Concatenate()([a, b]))
    model = keras.Model([a, b], layers.Dense(6, "tanh")(hidden))
    x = [normal(5, 2), normal(5, 3)]
    whole = keras.Input((5,))
    joined = keras.Model(whole, model([whole[:, :2], whole[:, 2:]]))
    expected = _diagonals(joined, np.concatenate(x, 1))
    ours = _gradients(model, x, order=2, batch_size=2)
    joined = np.concatenate(ours, -1)
    np.testing.assert_allclose(joined, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_the_laplacian_of_a_known_function():
    class Known(keras.Model):
        def call(self, x):
            a, b = x[:, :1], x[:, 1:]
            return tf.exp(a) * tf.sin(2 * b) + a * b

    x = normal(6, 2)
    laplacian = _gradients(Known(), x, 0, order=2).sum(-1)
    expected = -3 * np.exp(x[:, 0]) * np.sin(2 * x[:, 1])
    np.testing.assert_allclose(laplacian, expected, rtol=1e-10)


@pytest.mark.usefixtures("float64")
def test_second_derivatives_of_what_has_none_are_zero():
    model = stack((4,), layers.Dense(5, "relu"), layers.Dense(2))
    assert not _gradients(model, normal(3, 4), order=2).any()


@pytest.mark.usefixtures("float64")
def test_through_a_loop():
    model = stack((3, 2), layers.LSTM(2), layers.Dense(1))
    x = normal(2, 3, 2)
    ours = _gradients(model, x, order=2)
    np.testing.assert_allclose(ours, _diagonals(model, x), atol=1e-10)


@pytest.mark.parametrize("order", [0, 3, 1.5, True, "2"])
def test_orders_that_are_not_given(order):
    with pytest.raises(ValueError, match=r"must be 1 or 2\..*nest tf\.Gradie"):
        _gradients(_smooth(), normal(2, 4, 3), order=order)
