"""`per_sample_gradients` and `per_sample_norms` against the oracle."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.uses import function_cache
from tests import oracle

layers = keras.layers


class Affine(layers.Layer):
    """A custom layer without a rule."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), name="scale")
        self.shift = self.add_weight(shape=shape[1:], name="shift")

    def call(self, inputs):
        return inputs * (1 + self.scale) + self.shift


def _dense():
    return keras.Sequential(
        [keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(3)]
    )


def _dense_positions():
    return keras.Sequential(
        [keras.Input((4, 5)), layers.Dense(6, "gelu"), layers.Dense(3)]
    )


def _einsum_dense():
    return keras.Sequential(
        [
            keras.Input((4, 5)),
            layers.EinsumDense("abc,cde->abde", (4, 2, 3), bias_axes="e"),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def _conv():
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(3, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def _embedding():
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(7, 4),
            layers.GlobalAveragePooling1D(),
            layers.Dense(3),
        ]
    )


def _layer_normalization():
    return keras.Sequential(
        [
            keras.Input((4, 5)),
            layers.LayerNormalization(),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def _attention():
    inputs = keras.Input((5, 6))
    x = layers.MultiHeadAttention(2, 3)(inputs, inputs)
    return keras.Model(inputs, layers.Dense(3)(x))


def _lstm():
    return keras.Sequential(
        [keras.Input((5, 4)), layers.LSTM(3), layers.Dense(3)]
    )


def _custom():
    return keras.Sequential(
        [keras.Input((4, 5)), layers.Dense(5), Affine(), layers.Dense(3)]
    )


def _twice():
    shared = layers.Dense(5, "tanh")
    inputs = keras.Input((5,))
    return keras.Model(inputs, layers.Dense(3)(shared(shared(inputs))))


MODELS = {
    make.__name__[1:]: make
    for make in (
        _dense,
        _dense_positions,
        _einsum_dense,
        _conv,
        _embedding,
        _layer_normalization,
        _attention,
        _lstm,
        _custom,
        _twice,
    )
}


def _batch(model, n=5):
    rng = np.random.default_rng(1)
    shape = (n, *model.input_shape[1:])
    if model.inputs[0].dtype == "int32":
        x = rng.integers(0, 7, shape)
    else:
        x = rng.normal(size=shape).astype(keras.config.floatx())
    y = rng.normal(size=(n, *model.output_shape[1:]))
    return x, y.astype(keras.config.floatx())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_agrees_with_the_oracle(make):
    model = make()
    model.compile("sgd", "mse")
    x, y = _batch(model)
    right = oracle.per_sample_gradients(model, x, y, training=True)
    whole = oracle.batch_gradient(model, x, y, training=True)
    for method in ("vectorized", "per_sample"):
        found = kpg.per_sample_gradients(model, x, y, method=method)
        oracle.assert_agree(found, right)
        oracle.assert_agree([np.mean(g, 0) for g in found], whole)
        norms = kpg.per_sample_norms(
            model, x, y, method=method, per_variable=True
        )
        expected = [
            np.sqrt(np.sum(np.reshape(g, (len(g), -1)) ** 2, 1)) for g in found
        ]
        oracle.assert_agree(norms, expected)
        total = kpg.per_sample_norms(model, x, y, method=method)
        np.testing.assert_allclose(
            total, np.sqrt(np.sum(np.square(expected), 0)), rtol=1e-10
        )


@pytest.mark.usefixtures("float64")
def test_batch_of_one_and_sample_weights():
    model = _dense()
    model.compile("sgd", keras.losses.MeanSquaredError("sum"))
    x, y = _batch(model, 1)
    oracle.check(kpg.per_sample_gradients(model, x, y), model, x, y)
    x, y = _batch(model, 4)
    weights = np.array([0.0, 1.0, 2.0, 0.5])
    found = kpg.per_sample_gradients(model, x, y, weights)
    oracle.check(found, model, x, y, weights)
    assert not np.any(found[0][0])


def test_random_layers_repeat_the_batch():
    """The mean is the gradient of one forward pass with its own masks."""
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dropout(0.5, seed=1), Affine()]
    )
    model.compile("sgd", "mse")
    x, y = _batch(model, 6)
    found = {}
    for method in ("vectorized", "per_sample"):
        model.layers[0].seed_generator.state.assign([3, 3])
        found[method] = kpg.per_sample_gradients(model, x, y, method=method)
    model.layers[0].seed_generator.state.assign([3, 3])
    plain = oracle.batch_gradient(model, x, y, training=True)
    oracle.assert_agree(found["vectorized"], found["per_sample"])
    oracle.assert_agree([np.mean(g, 0) for g in found["vectorized"]], plain)


def test_unused_variable_has_no_gradient():
    inputs = keras.Input((5,))
    model = keras.Model(
        inputs, [layers.Dense(2)(inputs), layers.Dense(3)(inputs)]
    )
    model.compile("sgd", [None, "mse"])
    x, y = np.ones((3, 5), "float32"), np.ones((3, 3), "float32")
    found = kpg.per_sample_gradients(model, x, [None, y])
    assert [g is None for g in found] == [True, True, False, False]


def test_does_not_retrace_or_keep_the_model():
    model = _dense()
    model.compile("sgd", "mse")
    x, y = _batch(model)
    kpg.per_sample_norms(model, x, y)
    functions = function_cache._TRACED[model]
    for n in (5, 3, 4, 2):
        kpg.per_sample_norms(model, *_batch(model, n))
    assert len(functions) == 1
    ((function, _),) = functions.values()
    assert function.experimental_get_tracing_count() <= 2


def test_bad_input():
    model = _dense()
    x, y = _batch(model)
    with pytest.raises(ValueError, match="is not compiled"):
        kpg.per_sample_gradients(model, x, y)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="x with 5, y with 4"):
        kpg.per_sample_norms(model, x, y[:4])
    with pytest.raises(ValueError, match="`method` must be one of"):
        kpg.per_sample_norms(model, x, y, method="fast")
    with pytest.raises(ValueError, match="at least one sample"):
        kpg.per_sample_norms(model, x[:0], y[:0])
    with pytest.raises(TypeError, match=r"must be a keras\.Model"):
        kpg.per_sample_norms(lambda x: x, x, y)
    x[2, 0] = np.nan
    with pytest.raises(ValueError, match="samples 2 are not finite"):
        kpg.per_sample_gradients(model, x, y)
    with pytest.raises(ValueError, match="samples 2 are not finite"):
        kpg.per_sample_norms(model, x, y)
    model.trainable = False
    with pytest.raises(ValueError, match="no trainable variables"):
        kpg.per_sample_norms(model, x, y)


def _norms(model, x):
    return kpg.per_sample_norms(model, x, np.ones((3, 2), "float32"))


def test_a_frozen_layer_is_seen():
    """BatchNormalization acts otherwise once it does not train."""
    norm = layers.BatchNormalization(center=False, scale=False)
    model = keras.Sequential([keras.Input((4,)), norm, layers.Dense(2)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    norm.trainable = False
    before = _norms(model, x)
    norm.trainable = True
    with pytest.raises(ValueError, match="depend on the whole batch"):
        _norms(model, x)
    norm.trainable = False
    np.testing.assert_array_equal(_norms(model, x), before)


def test_a_new_rule_is_seen():
    model = keras.Sequential([keras.Input((4,)), Affine(), layers.Dense(2)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    before = kpg.per_sample_gradients(model, x, np.ones((3, 2), "float32"))
    used = []

    @kpg.extending.register_rule(Affine)
    def affine(layer, inputs, dz):
        used.append(layer)
        yield layer.scale, kpg.extending.Product(inputs, dz)
        yield layer.shift, kpg.extending.Sum(dz)

    after = kpg.per_sample_gradients(model, x, np.ones((3, 2), "float32"))
    assert used
    oracle.assert_agree(after, before)


def test_a_new_loss_is_not_taken_for_one_that_is_gone(monkeypatch):
    """Python may give a new object the id of an old one."""
    monkeypatch.setattr(function_cache, "id", lambda _: 1, raising=False)
    model = _dense()
    x, y = np.ones((3, 5), "float32"), 3 * np.ones((3, 3), "float32")
    found = []
    for loss in ("mse", "mae"):
        model.compile("sgd", loss)
        found.append(kpg.per_sample_norms(model, x, y).numpy())
    assert not np.allclose(*found)


def _in_batches():
    keras.utils.set_random_seed(1)
    model = _dense()
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 5)), rng.normal(size=(7, 3))
    return model, x.astype("float32"), y.astype("float32")


def test_batches_and_datasets_give_what_one_batch_gives(capsys):
    model, x, y = _in_batches()
    weights = np.arange(1.0, 8.0, dtype="float32")
    right = kpg.per_sample_gradients(model, x, y, weights)
    norms = kpg.per_sample_norms(model, x, y, weights)
    dataset = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(2)
    assert "batch" not in capsys.readouterr().out
    for data in ((x, y, weights), (dataset,)):
        found = kpg.per_sample_gradients(model, *data, batch_size=3)
        oracle.assert_agree(found, right)
        assert re.search(r"3/(3|Unknown)", capsys.readouterr().out)
        found = kpg.per_sample_norms(model, *data, batch_size=3, verbose=0)
        np.testing.assert_allclose(found, norms, rtol=1e-5)
    assert not capsys.readouterr().out
    found = kpg.per_sample_norms(model, dataset, verbose=0)
    np.testing.assert_allclose(found, norms, rtol=1e-5)


@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
@pytest.mark.parametrize("per_variable", [False, True])
def test_statistics_over_batches_are_those_of_all_samples(per_variable, method):
    model, x, y = _in_batches()
    how = {"per_variable": per_variable, "verbose": 0}
    right = kpg.gradient_statistics(model, x, y, **how)
    how["method"] = method
    found = kpg.gradient_statistics(model, x, y, batch_size=3, **how)
    pairs = zip(found, right) if per_variable else [(found, right)]
    for ours, theirs in pairs:
        for name, value in vars(theirs).items():
            if value is not None:
                value = pytest.approx(value, rel=1e-4)
            assert getattr(ours, name) == value


def test_what_is_missing_or_too_much_is_said():
    model, x, y = _in_batches()
    with pytest.raises(ValueError, match="Expected `y`, or a dataset of"):
        kpg.per_sample_norms(model, x)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    with pytest.raises(ValueError, match=r"Batch it: x\.batch\(256\)"):
        kpg.per_sample_norms(model, dataset)
    with pytest.raises(ValueError, match="come with the dataset"):
        kpg.per_sample_norms(model, dataset.batch(2), y)
    with pytest.raises(ValueError, match="without an end"):
        kpg.per_sample_norms(model, dataset.batch(2).repeat())
    with pytest.raises(ValueError, match=r"`batch_size` .*positive"):
        kpg.per_sample_norms(model, x, y, batch_size=0)


def test_evaluation_is_offered_where_training_mixes_the_samples():
    model = keras.Sequential(
        [keras.Input((5,)), layers.BatchNormalization(), layers.Dense(3)]
    )
    model.compile("sgd", "mse")
    _, x, y = _in_batches()
    with pytest.raises(ValueError, match="you may also pass training=False"):
        kpg.per_sample_norms(model, x, y)
    assert kpg.per_sample_norms(model, x, y, training=False).shape == (7,)


def test_many_models_do_not_warn_of_retracing(caplog):
    _, x, y = _in_batches()
    for _ in range(7):
        model = keras.Sequential([keras.Input((5,)), layers.Dense(3)])
        model.compile("sgd", "mse")
        kpg.per_sample_norms(model, x, y)
        kpg.input_gradients(model, x, outputs=0, verbose=0)
    assert not [r for r in caplog.records if "retracing" in r.getMessage()]


@pytest.mark.parametrize(
    "weights", [np.array(["1", "2"]), np.array([None, 1]), [1, 2], "weights"]
)
def test_sample_weights_that_are_no_numbers_are_refused(weights):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((2, 3)), np.ones((2, 1))
    with pytest.raises(ValueError, match="real numbers, one for each sample"):
        kpg.per_sample_norms(model, x, y, sample_weight=weights)


def test_stateful_layers_are_refused_one_by_one():
    inputs = keras.Input(batch_shape=(4, 3, 2))
    outputs = layers.LSTM(2, stateful=True)(inputs)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    x, y = np.ones((4, 3, 2)), np.ones((4, 2))
    with pytest.raises(ValueError, match=r"\(LSTM\) is stateful, made for ba"):
        kpg.per_sample_norms(model, x, y, method="per_sample")


def made_for_four(model_class):
    inputs = keras.Input((3, 2), batch_size=4)
    outputs = layers.Dense(2)(keras.ops.reshape(inputs, (4, 6)))
    return model_class(inputs, outputs)


def test_a_model_whose_ops_hold_one_batch_size_is_refused_by_name():
    x, y = np.ones((4, 3, 2)), np.ones((4, 2))
    model = made_for_four(kpg.PerGradModel)
    model.compile("sgd", "mse", gradient_mode="per_sample")
    only = "takes batches of 4 only"
    with pytest.raises(ValueError, match=only):
        model.fit(x, y, batch_size=4, verbose=0)
    model = made_for_four(keras.Model)
    model.compile("sgd", "mse")
    assert kpg.explain(model).batch_size == 4
    assert kpg.explain(model).verdict == "proved"
    for call in (
        lambda: kpg.explain(model, 32),
        lambda: kpg.diagnose.what_fits(model, memory="1GB"),
        lambda: kpg.input_gradients(model, x, verbose=0),
        lambda: kpg.check_gradients(model, x, y),
    ):
        with pytest.raises(ValueError, match=only):
            call()
    assert kpg.per_sample_norms(model, x, y).shape == (4,)


def test_inputs_that_name_a_batch_size_take_any_where_the_ops_do():
    x, y = np.ones((7, 3)), np.ones((7, 1))
    called = keras.Sequential([layers.Dense(2), layers.Dense(1)])
    called(np.ones((100, 3)))  # Keras keeps the 100
    inputs = keras.Input((3,), batch_size=100, name="a")
    named = keras.Model({"a": inputs}, layers.Dense(1)(inputs))
    for model, data in ((called, x), (named, {"a": x})):
        model.compile("sgd", "mse")
        norms = kpg.per_sample_norms(model, data, y, method="per_sample")
        assert norms.shape == (7,)
        own = kpg.PerGradModel.from_model(model)
        own.compile("sgd", "mse", gradient_mode="per_sample")
        own.fit(data, y, batch_size=3, verbose=0)


@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_weights_of_two_types_have_norms_in_the_wider_one(method):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(3, "tanh", dtype="float64"),
            keras.layers.Dense(3, dtype="float32"),
        ]
    )
    model.compile("sgd", "mse")
    x, y = np.random.default_rng(0).normal(size=(2, 5, 6))
    kwargs = {"method": method, "verbose": 0}
    found = kpg.per_sample_gradients(model, x, y[:, :3], **kwargs)
    squares = [np.square(g).reshape(5, -1).sum(1) for g in found]
    norms = kpg.per_sample_norms(model, x, y[:, :3], **kwargs)
    assert norms.dtype == "float64"
    np.testing.assert_allclose(norms, np.sqrt(np.sum(squares, 0)), rtol=1e-6)
    statistics = kpg.gradient_statistics(model, x, y[:, :3], **kwargs)
    assert statistics.mean_squared_norm == pytest.approx(
        np.mean(np.sum(squares, 0)), rel=1e-6
    )


def test_gradients_and_products_of_many_samples_go_in_passes(capsys):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 3)), rng.normal(size=(300, 1))
    gradients = kpg.per_sample_gradients(model, x, y)
    assert "2/2" in capsys.readouterr().out
    whole = kpg.per_sample_gradients(model, x, y, batch_size=300)
    assert not capsys.readouterr().out
    oracle.assert_agree(gradients, whole)
    direction = [np.ones(v.shape) for v in model.trainable_variables]
    dots = kpg.per_sample_dots(model, x, y, direction=direction)
    assert "2/2" in capsys.readouterr().out
    products = [np.reshape(g, (300, -1)).sum(1) for g in whole]
    np.testing.assert_allclose(dots, sum(products), rtol=1e-4, atol=1e-5)


def test_norms_of_many_samples_go_in_passes(monkeypatch):
    seen = []

    class Seen(keras.layers.Layer):
        def call(self, x):
            seen.append(x.shape[0])
            return x

    def compiled(loss):
        model = keras.Sequential(
            [keras.Input((3,)), Seen(), keras.layers.Dense(1)]
        )
        model.compile("sgd", loss)
        return model

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 3)), rng.normal(size=(300, 1))
    model = compiled("mse")
    norms = kpg.per_sample_norms(model, x, y, verbose=0)
    whole = kpg.per_sample_norms(model, x, y, batch_size=300, verbose=0)
    np.testing.assert_allclose(norms, whole, rtol=1e-5)
    pairs = [
        kpg.gradient_statistics(model, x, y, batch_size=size, verbose=0)
        for size in (None, 300)
    ]
    np.testing.assert_allclose(*[p.variance for p in pairs], rtol=1e-4)
    del seen[:]
    kpg.per_sample_norms(compiled("mse"), x, y, verbose=0)
    assert 300 not in seen
    # A sum counts n times in a batch of n: it stays one batch.
    del seen[:]
    sums = compiled(keras.losses.MeanSquaredError(reduction="sum"))
    kpg.per_sample_norms(sums, x, y, verbose=0)
    assert 300 in seen


def _classifier():
    inputs = keras.Input((10,))
    model = kpg.PerGradModel(inputs, keras.layers.Dense(3)(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, gradient_mode="vectorized")
    return model


def test_what_is_no_batch_of_the_models_inputs_is_refused():
    model, x, y = _classifier(), np.ones((6, 10), "float32"), np.arange(6) % 3
    kpg.per_sample_norms(model, x, y)  # Later calls may be traced for any size.
    for function in (kpg.per_sample_norms, kpg.gradient_statistics):
        with pytest.raises(ValueError, match=r"\(None, 10\). Received: \(6, 5"):
            function(model, x[:, :5], y)
    singles = tf.data.Dataset.from_tensor_slices((x, y))
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"of one sample. Batch the data set"):
        model.fit(singles, verbose=0, shuffle=False)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_classes_as_text_are_refused_with_the_way_out():
    model, x = _classifier(), np.ones((6, 10), "float32")
    with pytest.raises(ValueError, match=r"Number the classes: y = numpy"):
        kpg.per_sample_norms(model, x, np.array(["a", "b", "c"] * 2))
