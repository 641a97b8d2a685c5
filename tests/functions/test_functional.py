"""Gradients, norms and products of single samples against the oracle."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.uses import function_cache
from tests import oracle
from tests.models.making import assert_equal, compiled, integers, net, normal

layers = keras.layers
METHODS = ("vectorized", "per_sample")
X, Y = normal(7, 5), normal(7, 3, seed=1)


class Affine(layers.Layer):
    """A custom layer without a rule."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), name="scale")
        self.shift = self.add_weight(shape=shape[1:], name="shift")

    def call(self, inputs):
        return inputs * (1 + self.scale) + self.shift


def _dense(seed=None):
    return net(layers.Dense(4, "tanh"), seed=seed)


MODELS = {
    "dense": _dense,
    "dense_positions": lambda: net(layers.Dense(6, "gelu"), shape=(4, 5)),
    "einsum_dense": lambda: net(
        layers.EinsumDense("abc,cde->abde", (4, 2, 3), bias_axes="e"),
        layers.Flatten(),
        shape=(4, 5),
    ),
    "conv": lambda: net(
        layers.Conv2D(3, 3, activation="relu"),
        layers.Flatten(),
        shape=(6, 6, 2),
    ),
    "embedding": lambda: net(
        layers.Embedding(7, 4),
        layers.GlobalAveragePooling1D(),
        shape=(6,),
        dtype="int32",
    ),
    "layer_normalization": lambda: net(
        layers.LayerNormalization(), layers.Flatten(), shape=(4, 5)
    ),
    "attention": lambda: net(
        lambda x: layers.MultiHeadAttention(2, 3)(x, x), shape=(5, 6)
    ),
    "lstm": lambda: net(layers.LSTM(3), shape=(5, 4)),
    "custom": lambda: net(layers.Dense(5), Affine(), shape=(4, 5)),
    "twice": lambda: net(*[layers.Dense(5, "tanh")] * 2),
}


def _batch(model, n=5):
    shape = (n, *model.input_shape[1:])
    of_ids = model.inputs[0].dtype == "int32"
    x = integers(7, *shape) if of_ids else normal(*shape)
    return x, normal(n, *model.output_shape[1:], seed=1)


def _rows(gradients):
    return [np.reshape(g, (len(g), -1)) for g in gradients]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_agrees_with_the_oracle(make):
    model = compiled(make())
    x, y = _batch(model)
    right = oracle.per_sample_gradients(model, x, y, training=True)
    whole = oracle.batch_gradient(model, x, y, training=True)
    rng = np.random.default_rng(4)
    direction = [rng.normal(size=v.shape) for v in model.trainable_variables]
    norms = [np.sqrt(np.square(g).sum(1)) for g in _rows(right)]
    dots = [g @ np.ravel(d) for g, d in zip(_rows(right), direction)]
    for method in METHODS:
        how = {"method": method}
        found = kpg.per_sample_gradients(model, x, y, **how)
        oracle.assert_agree(found, right)
        oracle.assert_agree([np.mean(g, 0) for g in found], whole)
        each = {"per_variable": True, **how}
        oracle.assert_agree(kpg.per_sample_norms(model, x, y, **each), norms)
        total = kpg.per_sample_norms(model, x, y, **how)
        np.testing.assert_allclose(
            total, np.sqrt(np.sum(np.square(norms), 0)), rtol=1e-10
        )
        how["direction"] = each["direction"] = direction
        oracle.assert_agree(kpg.per_sample_dots(model, x, y, **each), dots)
        total = kpg.per_sample_dots(model, x, y, **how)
        np.testing.assert_allclose(total, sum(dots), rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_batch_of_one_and_sample_weights():
    model = compiled(_dense(), loss=keras.losses.MeanSquaredError("sum"))
    x, y = _batch(model, 1)
    oracle.check(kpg.per_sample_gradients(model, x, y), model, x, y=y)
    x, y = _batch(model, 4)
    weights = np.array([0.0, 1.0, 2.0, 0.5])
    found = kpg.per_sample_gradients(model, x, y, weights)
    oracle.check(found, model, x, y=y, sample_weight=weights)
    assert not np.any(found[0][0])


def test_random_layers_repeat_the_batch():
    """The mean is the gradient of one forward pass with its own masks."""
    drop = layers.Dropout(0.5, seed=1)
    model = compiled(net(drop, Affine(), units=None))
    x, y = _batch(model, 6)
    drop.seed_generator.state.assign([3, 3])
    found = kpg.per_sample_gradients(model, x, y)
    drop.seed_generator.state.assign([3, 3])
    plain = oracle.batch_gradient(model, x, y, training=True)
    oracle.assert_agree([np.mean(g, 0) for g in found], plain)


@pytest.mark.usefixtures("float64")
def test_random_layers_draw_for_each_sample_of_the_loop():
    """Each has a mask of its own, and the exact gradient under it."""
    drop, dense = layers.Dropout(0.5, seed=1), layers.Dense(2)
    model = compiled(net(drop, dense, units=None))
    x, y = np.ones((64, 5)), normal(64, 2)
    drop.seed_generator.state.assign([3, 3])
    found, again = (
        kpg.per_sample_gradients(model, x, y, method="per_sample")
        for _ in range(2)
    )
    assert_equal(found, again)  # The seed is as it was before.
    drop.seed_generator.state.assign([3, 4])
    other = kpg.per_sample_gradients(model, x, y, method="per_sample")
    assert not np.allclose(found[0], other[0])
    kernels, slopes = map(np.asarray, found)
    # The gradient of the kernel is the product of what is left and of slopes.
    left = kernels[:, :, 0] / slopes[:, :1]
    np.testing.assert_allclose(left, 2 * np.round(left / 2), atol=1e-9)
    assert 0.35 < left.mean() / 2 < 0.65
    assert len(set(map(tuple, np.round(left)))) > 16
    weights, bias = model.get_weights()
    np.testing.assert_allclose(slopes, left @ weights + bias - y, rtol=1e-9)
    products = left[:, :, None] * slopes[:, None]
    np.testing.assert_allclose(kernels, products, rtol=1e-9, atol=1e-12)


def test_does_not_retrace_or_keep_the_model():
    model = compiled(_dense())
    for n in (5, 5, 3, 4, 2):
        kpg.per_sample_norms(model, *_batch(model, n))
    ((function, _),) = function_cache._TRACED[model].values()
    assert function.experimental_get_tracing_count() <= 2


def test_a_frozen_layer_is_seen():
    """BatchNormalization acts otherwise once it does not train."""
    norm = layers.BatchNormalization(center=False, scale=False)
    model = compiled(net(norm))
    norm.trainable = False
    before = kpg.per_sample_norms(model, X, Y)
    norm.trainable = True
    with pytest.raises(ValueError, match="depend on the whole batch") as error:
        kpg.per_sample_norms(model, X, Y)
    assert "you may also pass training=False" in str(error.value)
    assert kpg.per_sample_norms(model, X, Y, training=False).shape == (7,)
    norm.trainable = False
    after = kpg.per_sample_norms(model, X, Y)
    np.testing.assert_array_equal(after, before)


def test_a_new_rule_is_seen():
    model = compiled(net(Affine()))
    before = kpg.per_sample_gradients(model, X, Y)
    used = []

    @kpg.extending.register_rule(Affine)
    def affine(layer, inputs, dz):
        used.append(layer)
        yield layer.scale, kpg.extending.Product(inputs, dz)
        yield layer.shift, kpg.extending.Sum(dz)

    after = kpg.per_sample_gradients(model, X, Y)
    assert used
    oracle.assert_agree(after, before)


def test_a_new_loss_is_not_taken_for_one_that_is_gone(monkeypatch):
    """Python may give a new object the id of an old one."""
    monkeypatch.setattr(function_cache, "id", lambda _: 1, raising=False)
    model = _dense()
    one, other = (
        kpg.per_sample_norms(compiled(model, loss=loss), X, 3 + Y)
        for loss in ("mse", "mae")
    )
    assert not np.allclose(one, other)


def test_batches_and_datasets_give_what_one_batch_gives(capsys):
    model = compiled(_dense(seed=1))
    weights = np.arange(1.0, 8.0, dtype="float32")
    right = kpg.per_sample_gradients(model, X, Y, weights)
    norms = kpg.per_sample_norms(model, X, Y, weights)
    dataset = tf.data.Dataset.from_tensor_slices((X, Y, weights)).batch(2)
    assert "batch" not in capsys.readouterr().out
    for data in ((X, Y, weights), (dataset,)):
        found = kpg.per_sample_gradients(model, *data, batch_size=3)
        oracle.assert_agree(found, right)
        assert re.search(r"3/(3|Unknown)", capsys.readouterr().out)
        found = kpg.per_sample_norms(model, *data, batch_size=3, verbose=0)
        np.testing.assert_allclose(found, norms, rtol=1e-5)
    assert not capsys.readouterr().out
    found = kpg.per_sample_norms(model, dataset, verbose=0)
    np.testing.assert_allclose(found, norms, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("per_variable", [False, True])
def test_statistics_over_batches_are_those_of_all_samples(per_variable, method):
    model = compiled(_dense(seed=1))
    how = {"per_variable": per_variable, "verbose": 0}
    right = kpg.gradient_statistics(model, X, Y, **how)
    how["method"] = method
    found = kpg.gradient_statistics(model, X, Y, batch_size=3, **how)
    pairs = zip(found, right) if per_variable else [(found, right)]
    for ours, theirs in pairs:
        for name, value in vars(theirs).items():
            if value is not None:
                value = pytest.approx(value, rel=1e-4)
            assert getattr(ours, name) == value


def test_what_is_missing_or_wrong_or_too_much_is_said():
    model = _dense()
    with pytest.raises(ValueError, match="is not compiled"):
        kpg.per_sample_gradients(model, X, Y)
    compiled(model)
    kpg.per_sample_norms(model, X, Y)  # Later calls may be traced for any size.
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    broken = X.copy()
    broken[2, 0] = np.nan
    no_numbers = np.array(["1", "2"]), np.array([None, 1]), [1, 2], "weights"
    for data, how, said in (
        ((X,), {}, "Expected `y`, or a dataset of"),
        ((X, Y[:4]), {}, "x with 7, y with 4"),
        ((X[:0], Y[:0]), {}, "at least one sample"),
        ((X[:, :3], Y), {}, r"\(None, 5\). Received: \(7, 3"),
        ((broken, Y), {}, "samples 2 are not finite"),
        ((X, Y), {"method": "fast"}, "`method` expected one of"),
        ((X, Y), {"batch_size": 0}, "`batch_size` .*positive"),
        ((dataset,), {}, r"Batch it: x\.batch\(256\)"),
        ((dataset.batch(2), Y), {}, "come with the dataset"),
        ((dataset.batch(2).repeat(),), {}, "without an end"),
        *(
            ((X[:2], Y[:2], weight), {}, "real numbers, one for each sample")
            for weight in no_numbers
        ),
    ):
        with pytest.raises(ValueError, match=said):
            kpg.per_sample_norms(model, *data, **how)
    with pytest.raises(ValueError, match="samples 2 are not finite"):
        kpg.per_sample_gradients(model, broken, Y)
    with pytest.raises(ValueError, match=r"\(None, 5\). Received: \(7, 3"):
        kpg.gradient_statistics(model, X[:, :3], Y)
    with pytest.raises(TypeError, match=r"must be a keras\.Model"):
        kpg.per_sample_norms(lambda x: x, X, Y)
    model.trainable = False
    with pytest.raises(ValueError, match="no trainable variables"):
        kpg.per_sample_norms(model, X, Y)


def test_many_models_do_not_warn_of_retracing(caplog):
    for _ in range(7):
        model = compiled(net())
        kpg.per_sample_norms(model, X, Y)
        kpg.input_gradients(model, X, outputs=0, verbose=0)
    assert not [r for r in caplog.records if "retracing" in r.getMessage()]


def test_stateful_layers_are_refused_one_by_one():
    model = keras.Sequential([layers.LSTM(2, stateful=True)])
    compiled(model).build((4, 3, 2))
    x, y = np.ones((4, 3, 2)), np.ones((4, 2))
    with pytest.raises(ValueError, match=r"\(LSTM\) is stateful, made for ba"):
        kpg.per_sample_norms(model, x, y, method="per_sample")


def made_for_four(model_class):
    inputs = keras.Input((3, 2), batch_size=4)
    outputs = layers.Dense(2)(keras.ops.reshape(inputs, (4, 6)))
    return model_class(inputs, outputs)


@pytest.mark.quick
def test_a_model_whose_ops_hold_one_batch_size_is_refused_by_name():
    x, y = np.ones((4, 3, 2)), np.ones((4, 2))
    model = compiled(made_for_four(kpg.PerGradModel), "per_sample")
    only = "takes batches of 4 only"
    with pytest.raises(ValueError, match=only):
        model.fit(x, y, batch_size=4, verbose=0)
    model = compiled(made_for_four(keras.Model))
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
        compiled(model)
        norms = kpg.per_sample_norms(model, data, y, method="per_sample")
        assert norms.shape == (7,)
        compiled(model, "per_sample").fit(data, y, batch_size=3, verbose=0)


@pytest.mark.parametrize("method", METHODS)
def test_weights_of_two_types_have_norms_in_the_wider_one(method):
    wide, narrow = (
        layers.Dense(3, activation, dtype=dtype)
        for activation, dtype in (("tanh", "float64"), (None, "float32"))
    )
    model = compiled(net(wide, narrow, units=None))
    kwargs = {"method": method, "verbose": 0}
    found = kpg.per_sample_gradients(model, X, Y, **kwargs)
    squares = sum(np.square(g).sum(1) for g in _rows(found))
    norms = kpg.per_sample_norms(model, X, Y, **kwargs)
    assert norms.dtype == "float64"
    np.testing.assert_allclose(norms, np.sqrt(squares), rtol=1e-6)
    statistics = kpg.gradient_statistics(model, X, Y, **kwargs)
    assert statistics.mean_squared_norm == pytest.approx(
        np.mean(squares), rel=1e-6
    )


def test_many_samples_go_in_passes(capsys):
    seen = []

    class Seen(layers.Layer):
        def call(self, x):
            seen.append(x.shape[0])
            return x

    x, y = normal(300, 3), normal(300, 1, seed=1)
    model = compiled(net(Seen(), shape=(3,), units=1))
    gradients = kpg.per_sample_gradients(model, x, y)
    assert "2/2" in capsys.readouterr().out
    direction = [np.ones(v.shape) for v in model.trainable_variables]
    dots = kpg.per_sample_dots(model, x, y, direction=direction)
    assert "2/2" in capsys.readouterr().out
    norms = kpg.per_sample_norms(model, x, y, verbose=0)
    variance = kpg.gradient_statistics(model, x, y, verbose=0).variance
    assert 300 not in seen
    one = {"batch_size": 300}
    whole = kpg.per_sample_gradients(model, x, y, **one)
    assert not capsys.readouterr().out
    oracle.assert_agree(gradients, whole)
    products = sum(g.sum(1) for g in _rows(whole))
    np.testing.assert_allclose(dots, products, rtol=1e-4, atol=1e-5)
    right = kpg.per_sample_norms(model, x, y, **one)
    np.testing.assert_allclose(norms, right, rtol=1e-5)
    right = kpg.gradient_statistics(model, x, y, **one).variance
    np.testing.assert_allclose(variance, right, rtol=1e-4)
    # A sum counts n times in a batch of n: it stays one batch.
    del seen[:]
    compiled(model, loss=keras.losses.MeanSquaredError(reduction="sum"))
    kpg.per_sample_norms(model, x, y, verbose=0)
    assert 300 in seen


def test_single_samples_and_classes_as_text_are_refused_with_the_way_out():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = compiled(net(), "vectorized", loss)
    singles = tf.data.Dataset.from_tensor_slices((X, np.arange(7) % 3))
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"of one sample. Batch the data set"):
        model.fit(singles, verbose=0, shuffle=False)
    assert_equal(before, model.get_weights())
    with pytest.raises(ValueError, match=r"Number the classes: y = numpy"):
        kpg.per_sample_norms(model, X, np.array([*"abcabca"]))
