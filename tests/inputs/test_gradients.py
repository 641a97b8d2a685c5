"""input_gradients against `tf.GradientTape.batch_jacobian`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.inputs.tapes import assert_close, gradients, jacobians, of_ids
from tests.marks import few
from tests.models.making import assert_equal, net
from tests.uses.rules.exact import normal, stack

layers = keras.layers


def _dense():
    return stack((4,), layers.Dense(5, activation="tanh"), layers.Dense(3))


def _conv():
    return stack(
        (5, 5, 2),
        layers.Conv2D(3, 2, activation="tanh"),
        layers.BatchNormalization(),
        layers.Dropout(0.5),
        layers.Flatten(),
        layers.Dense(6, activation="softmax"),
    )


MODELS = {
    "dense": _dense,
    "conv": _conv,
    "recurrent": lambda: stack((3, 2), layers.LSTM(3), layers.Dense(5)),
    "positions": lambda: stack((3, 2), layers.Dense(2)),
}


@pytest.mark.parametrize("name", few(MODELS, ["conv", "positions"]))
def test_all_some_one_and_own_outputs(float64, name):
    model = MODELS[name]()
    shape = model.input_shape[1:]
    x = normal(5, *shape)
    [full] = jacobians(model, x)
    flat = full.reshape(5, -1, *shape)
    assert flat.shape[1] == np.prod(model.output_shape[1:])
    own = np.array([0, 2, 1, 1, 0])
    for outputs, expected in (
        (None, full),
        ([2, 0], flat[:, [2, 0]]),
        (1, flat[:, 1]),
        (own, flat[np.arange(5), own]),
    ):
        assert_close(gradients(model, x, outputs, batch_size=2), expected)


def test_batches_reductions_and_datasets(float64):
    model, x = _dense(), normal(7, 4)
    [full] = jacobians(model, x)
    for batch_size in (1, 3, 7, 100):
        assert_close(gradients(model, x, batch_size=batch_size), full)
    for reduce, expected in {
        "sum": full.sum(0),
        "mean": full.mean(0),
        "mean_abs": np.abs(full).mean(0),
        "mean_square": np.square(full).mean(0),
        "norm": np.sqrt(np.square(full).sum(-1)),
    }.items():
        found = gradients(model, x, batch_size=3, reduce=reduce)
        assert_close(found, expected)
    y = np.zeros(7)
    for data in (x, (x, y), (x, y, y)):
        dataset = tf.data.Dataset.from_tensor_slices(data).batch(2)
        assert_close(gradients(model, dataset, batch_size=3), full)
    own = np.array([0, 1, 2, 0, 1, 2, 0])
    found = gradients(model, dataset, own, batch_size=3)
    assert_close(found, full[np.arange(7), own])
    assert_close(gradients(model, dataset, reduce="mean"), full.mean(0))


def test_data_of_another_floating_type_and_a_model_that_is_not_built():
    model = keras.Sequential([layers.Dense(3), layers.Dense(2)])
    x = normal(5, 4).astype("float64")
    found = gradients(model, x)
    [expected] = jacobians(model, x.astype("float32"))
    out = np.zeros((5, 4), "float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x)).batch(2)
    one = gradients(model, dataset, 0, out=out)
    assert found.dtype == one.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one, found[:, 0], rtol=1e-6)


def test_a_structure_of_inputs_gives_a_structure(float64):
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    joined = layers.Concatenate()([layers.Dense(2)(a), b])
    model = keras.Model({"a": a, "b": b}, layers.Dense(2, "tanh")(joined))
    x = {"a": normal(5, 3), "b": normal(5, 2)}
    found = gradients(model, x, batch_size=2)
    assert list(found) == ["a", "b"]
    assert_close(found, jacobians(model, x))
    out = tf.nest.map_structure(np.zeros_like, found)
    assert gradients(model, x, batch_size=2, out=out) is out
    assert_equal([*out.values()], [*found.values()])
    with pytest.raises(ValueError, match="structure of x"):
        gradients(model, x, out=out["a"])


def test_token_ids_stand_for_their_embeddings(float64):
    model, table, head = of_ids(2)
    ids = np.array([[0, 1, 1, 5], [2, 2, 2, 2], [3, 4, 0, 0]])
    found = gradients(model, ids, batch_size=2)
    assert found.shape == (3, 2, 4, 3)
    assert_close(found, jacobians(head, table(ids))[0])


def test_embeddings_of_half_precision_give_floatx():
    keras.config.set_dtype_policy("mixed_float16")
    parts = layers.Embedding(6, 3), layers.Flatten()
    model = net(*parts, shape=(4,), dtype="int32")
    found = gradients(model, np.ones((3, 4), int), 0)
    assert found.dtype == np.float32
    assert found.any()


def _reads_ids(select, rest=False):
    inputs = keras.Input((4,))
    hidden = layers.Flatten()(layers.Embedding(6, 3, name="e")(select(inputs)))
    if rest:
        hidden = layers.Concatenate()([hidden, inputs[:, 1:]])
    return keras.Model(inputs, layers.Dense(2)(hidden))


def test_what_a_single_embedding_does_not_read_is_refused():
    x = np.array([[1.0, 2.0, 3.0, 4.0]])
    message = "holds floating numbers.*'e' reads as ids.*astype"
    for select in (lambda x: x, lambda x: x[:, :2]):
        with pytest.raises(ValueError, match=message):
            gradients(_reads_ids(select), x, 0)
    # A column of ids among numbers is a constant.
    found = gradients(_reads_ids(lambda x: x[:, :1], rest=True), x, 0)
    assert not found[:, 0].any()
    assert found[:, 1:].all()
    x = np.zeros((3, 4), "int32")
    pixels = net(layers.Rescaling(0.1), shape=(4,), dtype="int32")
    message = r"input 0 holds integers.*Found: none"
    with pytest.raises(ValueError, match=message):
        gradients(pixels, x)
    inputs = keras.Input((4,), dtype="int32")
    rows = [layers.Embedding(6, 3, name=name)(inputs) for name in "ab"]
    with pytest.raises(ValueError, match="Found: 'a', 'b'"):
        gradients(keras.Model(inputs, layers.Add()(rows)), x, 0)


def test_as_a_method_and_without_a_trace_of_itself():
    model = kpg.PerGradModel.from_model(_dense())
    x = normal(3, 4)
    found = model.input_gradients(x, outputs=1, verbose=0)
    np.testing.assert_array_equal(found, gradients(model, x, 1))
    assert not any("call" in vars(layer) for layer in model._flatten_layers())


def test_one_trace_serves_all_chunks(capfd):
    traces = []

    class Counting(layers.Layer):
        def call(self, x):
            if not tf.executing_eagerly():
                traces.append(x.shape)
            return 2 * x

    model = stack((4,), Counting(), layers.Dense(3))
    traces.clear()
    kpg.input_gradients(model, normal(11, 4), batch_size=2)
    # The trial, the first chunk's size, then any size.
    assert len(traces) <= 3
    assert "6/6" in capfd.readouterr().out


def test_a_model_that_was_changed_is_asked_anew():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "softmax")])
    x = normal(2, 4)
    gradients(model, x, 0)
    model.layers[-1].activation = keras.activations.linear
    for _ in range(2):
        expected = np.tile(model.layers[-1].kernel.numpy()[:, 0], (2, 1))
        np.testing.assert_allclose(gradients(model, x, 0), expected, 1e-6)
        model.pop()
        model.add(layers.Dense(3))


def test_an_input_without_influence_has_gradient_zero():
    a, b = keras.Input((3,)), keras.Input((2,))
    model = keras.Model([a, b], layers.Dense(2)(a))
    found = gradients(model, [normal(4, 3), normal(4, 2)])
    assert found[1].shape == (4, 2, 2)
    assert not found[1].any()
    assert found[0].any()
