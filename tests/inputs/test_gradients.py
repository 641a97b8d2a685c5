"""input_gradients against `tf.GradientTape.batch_jacobian`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.marks import few
from tests.uses.rules.exact import normal, stack

layers = keras.layers


def _jacobian(model, x):
    x = tf.convert_to_tensor(x)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = model(x, training=False)
    return tape.batch_jacobian(y, x, experimental_use_pfor=False).numpy()


def _dense(outputs=3):
    return stack(
        (4,), layers.Dense(5, activation="tanh"), layers.Dense(outputs)
    )


def _conv():
    return stack(
        (5, 5, 2),
        layers.Conv2D(3, 2, activation="tanh"),
        layers.BatchNormalization(),
        layers.Dropout(0.5),
        layers.Flatten(),
        layers.Dense(6, activation="softmax"),
    )


def _recurrent():
    return stack((3, 2), layers.LSTM(3), layers.Dense(5))


MODELS = {
    "dense": (_dense, (4,)),
    "conv": (_conv, (5, 5, 2)),
    "recurrent": (_recurrent, (3, 2)),
    "positions": (lambda: stack((3, 2), layers.Dense(2)), (3, 2)),
}


def _gradients(model, x, outputs=None, **how):
    return kpg.input_gradients(model, x, outputs=outputs, verbose=0, **how)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_the_jacobian_however_it_is_cut(batch_size):
    model, x = _dense(), normal(7, 4)
    found = _gradients(model, x, batch_size=batch_size)
    np.testing.assert_allclose(found, _jacobian(model, x), atol=1e-10)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", few(MODELS, ["conv", "positions"]))
def test_all_some_one_and_own_outputs(name):
    make, shape = MODELS[name]
    model, x = make(), normal(5, *shape)
    full = _jacobian(model, x)
    np.testing.assert_allclose(
        _gradients(model, x, batch_size=2), full, atol=1e-10
    )
    outputs = full.shape[1 : full.ndim - len(shape)]
    flat = full.reshape(5, -1, *shape)
    assert flat.shape[1] == np.prod(outputs)
    found = _gradients(model, x, [2, 0], batch_size=2)
    np.testing.assert_allclose(found, flat[:, [2, 0]], atol=1e-10)
    found = _gradients(model, x, 1, batch_size=2)
    np.testing.assert_allclose(found, flat[:, 1], atol=1e-10)
    own = np.array([0, 2, 1, 1, 0])
    found = _gradients(model, x, own, batch_size=2)
    np.testing.assert_allclose(found, flat[np.arange(5), own], atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_reductions():
    model, x = _dense(), normal(7, 4)
    full = _jacobian(model, x)
    for reduce, expected in {
        "sum": full.sum(0),
        "mean": full.mean(0),
        "mean_abs": np.abs(full).mean(0),
        "mean_square": np.square(full).mean(0),
        "norm": np.sqrt(np.square(full).sum(-1)),
    }.items():
        found = _gradients(model, x, batch_size=3, reduce=reduce)
        np.testing.assert_allclose(found, expected, atol=1e-10)


def test_float32_and_a_model_that_is_not_built():
    model = keras.Sequential([layers.Dense(3), layers.Dense(2)])
    x = normal(5, 4).astype("float64")
    found = _gradients(model, x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(
        found, _jacobian(model, x.astype("float32")), rtol=1e-5, atol=1e-6
    )


def _two_inputs():
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    joined = layers.Concatenate()([layers.Dense(2)(a), b])
    return keras.Model({"a": a, "b": b}, layers.Dense(2, "tanh")(joined))


@pytest.mark.usefixtures("float64")
def test_a_structure_of_inputs_gives_a_structure():
    model = _two_inputs()
    x = {"a": normal(5, 3), "b": normal(5, 2)}
    found = _gradients(model, x, batch_size=2)
    assert {k: v.shape for k, v in found.items()} == {
        "a": (5, 2, 3),
        "b": (5, 2, 2),
    }
    tensors = tf.nest.map_structure(tf.convert_to_tensor, x)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(tensors)
        y = model(tensors)
    for name, tensor in tensors.items():
        expected = tape.batch_jacobian(y, tensor, experimental_use_pfor=False)
        np.testing.assert_allclose(found[name], expected, atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_datasets():
    model, x = _dense(), normal(7, 4)
    y, expected = np.zeros(7), _jacobian(model, x)
    for data in (x, (x, y), (x, y, y)):
        dataset = tf.data.Dataset.from_tensor_slices(data).batch(2)
        found = _gradients(model, dataset, batch_size=3)
        np.testing.assert_allclose(found, expected, atol=1e-10)
    own = np.array([0, 1, 2, 0, 1, 2, 0])
    found = _gradients(model, dataset, own, batch_size=3)
    np.testing.assert_allclose(found, expected[np.arange(7), own], atol=1e-10)
    found = _gradients(model, dataset, reduce="mean")
    np.testing.assert_allclose(found, expected.mean(0), atol=1e-10)


def test_a_dataset_of_another_floating_type():
    model, x = _dense(), normal(5, 4).astype("float64")
    out = np.zeros((5, 4), "float32")
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(2)
    found = _gradients(model, data, 0, out=out)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, _gradients(model, x, 0), rtol=1e-6)


@pytest.mark.usefixtures("float64")
def test_token_ids_stand_for_their_embeddings():
    inputs = keras.Input((4,), dtype="int32")
    table = layers.Embedding(6, 3)
    head = keras.Sequential([layers.Flatten(), layers.Dense(2, "tanh")])
    model = keras.Model(inputs, head(table(inputs)))
    ids = np.array([[0, 1, 1, 5], [2, 2, 2, 2], [3, 4, 0, 0]])
    found = _gradients(model, ids, batch_size=2)
    assert found.shape == (3, 2, 4, 3)
    expected = _jacobian(head, table(ids))
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_embeddings_of_half_precision_give_floatx():
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((4,), dtype="int32")
    hidden = layers.Flatten()(layers.Embedding(6, 3)(inputs))
    model = keras.Model(inputs, layers.Dense(2)(hidden))
    found = _gradients(model, np.ones((3, 4), int), 0)
    assert found.dtype == np.float32
    assert found.any()


def _reads_ids(select):
    inputs = keras.Input((4,))
    hidden = layers.Flatten()(layers.Embedding(6, 3, name="e")(select(inputs)))
    return inputs, hidden


@pytest.mark.parametrize("select", [lambda x: x, lambda x: x[:, :2]])
def test_ids_of_a_floating_type_are_refused(select):
    inputs, hidden = _reads_ids(select)
    model = keras.Model(inputs, layers.Dense(2)(hidden))
    message = "holds floating numbers.*'e' reads as ids.*astype"
    with pytest.raises(ValueError, match=message):
        _gradients(model, np.array([[1.0, 2.0, 3.0, 4.0]]), 0)


def test_a_column_of_ids_among_numbers_is_a_constant():
    inputs, hidden = _reads_ids(lambda x: x[:, :1])
    hidden = layers.Concatenate()([hidden, inputs[:, 1:]])
    model = keras.Model(inputs, layers.Dense(2)(hidden))
    found = _gradients(model, np.array([[1.0, 2.0, 3.0, 4.0]]), 0)
    assert not found[:, 0].any()
    assert found[:, 1:].all()


def test_integers_that_no_single_embedding_reads():
    inputs = keras.Input((4,), dtype="int32")
    pixels = keras.Model(inputs, layers.Dense(2)(layers.Rescaling(0.1)(inputs)))
    x = np.zeros((3, 4), "int32")
    with pytest.raises(
        ValueError, match=r"input 0 holds integers.*Found: none"
    ):
        _gradients(pixels, x)
    joined = layers.Add()(
        [layers.Embedding(6, 3, name=name)(inputs) for name in "ab"]
    )
    with pytest.raises(ValueError, match="Found: 'a', 'b'"):
        _gradients(keras.Model(inputs, joined), x, 0)


def test_as_a_method_and_without_a_trace_of_itself():
    model = kpg.PerGradModel.from_model(_dense())
    x = normal(3, 4)
    np.testing.assert_array_equal(
        model.input_gradients(x, outputs=1, verbose=0), _gradients(model, x, 1)
    )
    assert not any("call" in vars(layer) for layer in model._flatten_layers())


def test_one_trace_serves_all_chunks():
    traces = []

    class Counting(layers.Layer):
        def call(self, x):
            if not tf.executing_eagerly():
                traces.append(x.shape)
            return 2 * x

    model = stack((4,), Counting(), layers.Dense(3))
    traces.clear()
    _gradients(model, normal(11, 4), batch_size=2)
    # The trial, the first chunk's size, then any size.
    assert len(traces) <= 3


def test_a_model_that_was_changed_is_asked_anew():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "softmax")])
    x = normal(2, 4)
    _gradients(model, x, 0)
    model.layers[-1].activation = keras.activations.linear
    for _ in range(2):
        expected = np.tile(model.layers[-1].kernel.numpy()[:, 0], (2, 1))
        np.testing.assert_allclose(_gradients(model, x, 0), expected, 1e-6)
        model.pop()
        model.add(layers.Dense(3))


def test_an_input_without_influence_has_gradient_zero():
    a, b = keras.Input((3,)), keras.Input((2,))
    model = keras.Model([a, b], layers.Dense(2)(a))
    found = _gradients(model, [normal(4, 3), normal(4, 2)])
    assert found[1].shape == (4, 2, 2)
    assert not found[1].any()
    assert found[0].any()


def test_the_bar_counts_chunks(capfd):
    kpg.input_gradients(_dense(), normal(7, 4), batch_size=3)
    assert "3/3" in capfd.readouterr().out
