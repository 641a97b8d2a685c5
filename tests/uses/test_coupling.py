"""What couples samples is refused by name; what only looks so is exact."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle

layers = keras.layers
MODES = ["per_sample", "vectorized"]


def _images(n=4):
    rng = np.random.default_rng(2)
    x = rng.uniform(size=(n, 4, 4, 3)).astype("float32")
    return x, rng.uniform(size=(n, 3)).astype("float32")


def _around(layer, cls=kpg.PerGradModel):
    inputs = keras.Input((4, 4, 3))
    x = layers.Flatten()(layer(layers.Dense(3)(inputs)))
    return cls(inputs, layers.Dense(3)(x))


def _assert_refused(model, x, y, match):
    before = model.get_weights()
    with pytest.raises(ValueError, match=match):
        model.fit(x, y, verbose=0)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mode", MODES)
def test_a_refusal_moves_no_weight(mode):
    model = _around(layers.MixUp())
    model.compile("sgd", "mse", jit_compile=False, gradient_mode=mode)
    match = r"\(MixUp\) mixes the images of a batch"
    _assert_refused(model, *_images(), match)


def _assert_refused_by_each(model, x, y, match):
    for method in MODES:
        with pytest.raises(ValueError, match=match):
            kpg.per_sample_norms(model, x, y, method=method)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: layers.Softmax(axis=0), r"\(Softmax\) mixes the samples"),
        (lambda: layers.Softmax(axis=(1, -4)), r"\(Softmax\) mixes the sam"),
        (
            lambda: layers.UnitNormalization(axis=0),
            r"\(UnitNormalization\) mixes the samples",
        ),
        (
            lambda: layers.Pipeline([layers.Rescaling(2.0), layers.MixUp()]),
            r"\(MixUp\) mixes the images",
        ),
    ],
)
def test_weightless_layers_that_mix_samples(make, match):
    model = _around(make(), keras.Model)
    model.compile("sgd", "mse")
    _assert_refused_by_each(model, *_images(), match)


@pytest.mark.parametrize(
    "name", ["AugMix", "CutMix", "Equalization", "RandAugment"]
)
def test_image_layers_that_mix_samples(name):
    if not hasattr(layers, name):
        pytest.skip(f"this Keras has no {name}")

    class Net(kpg.PerGradModel):
        def __init__(self):
            super().__init__()
            self.mixer = getattr(layers, name)()
            self.out = layers.Dense(3)

        def call(self, x):
            x = keras.ops.cast(self.mixer(x), "float32")
            return self.out(keras.ops.reshape(x, (-1, 48)))

    model = Net()
    x, y = _images()
    model.compile("sgd", "mse", run_eagerly=True, gradient_mode="vectorized")
    with pytest.raises(ValueError, match=rf"\({name}\)"):
        model.fit(x, y, verbose=0)


def test_concatenating_batches_is_refused():
    inputs = keras.Input((4,))
    dense = layers.Dense(3)
    both = layers.Concatenate(axis=0)([dense(inputs), dense(inputs)])
    model = kpg.PerGradModel(inputs, layers.Dense(3)(both))
    model.compile("sgd", "mse", gradient_mode="vectorized")
    x, y = np.ones((4, 4)), np.ones((4, 3))
    _assert_refused(model, x, y, "none that were tried fit all its ops")


def test_mixers_rest_outside_training():
    model = _around(layers.MixUp(), keras.Model)
    model.compile("sgd", "mse")
    x, y = _images()
    found = kpg.per_sample_gradients(model, x, y, training=False)
    oracle.check(found, model, x, y, training=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: "dice",
        lambda: keras.losses.Dice(axis=(0, 1)),
        lambda: keras.losses.Tversky(),
        lambda: keras.losses.Circle(),
    ],
)
def test_losses_that_compare_samples(make):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(3, "sigmoid")(inputs))
    model.compile("sgd", make())
    circle = isinstance(model.loss, keras.losses.Circle)
    y = np.arange(4) % 2 if circle else np.ones((4, 3), "float32")
    x = np.random.default_rng(0).normal(size=(4, 4)).astype("float32")
    _assert_refused_by_each(model, x, y, "compares the samples of a batch")


def test_an_overlap_of_each_sample_is_served():
    if "axis" not in keras.losses.Dice().get_config():
        pytest.skip("Dice has no axes in this Keras")
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(3, "sigmoid")(inputs))
    model.compile("sgd", keras.losses.Dice(axis=(1,)))
    x = np.random.default_rng(0).normal(size=(4, 4)).astype("float32")
    y = np.eye(4, 3, dtype="float32")
    oracle.check(kpg.per_sample_gradients(model, x, y), model, x, y)


class Noisy(layers.Layer):
    """Dropout and noise inside, between uses of its weight."""

    def __init__(self):
        super().__init__()
        self.dropout = layers.Dropout(0.5, seed=1)
        self.noise = layers.GaussianNoise(0.3, seed=2)

    def build(self, shape):
        self.scale = self.add_weight((shape[-1],), "ones")

    def call(self, x, training=None):
        x = self.dropout(x * self.scale, training=training)
        return self.noise(keras.ops.tanh(x), training=training) * self.scale


@pytest.mark.usefixtures("float64")
def test_random_parts_of_a_layer_are_the_batchs_own():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(3)(Noisy()(inputs)))
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 4)), rng.normal(size=(5, 3))
    state = [(v, v.numpy()) for v in model.variables]
    found = []
    for method in ("vectorized", "per_sample", None):
        for variable, value in state:
            variable.assign(value)
        if method:
            found.append(kpg.per_sample_gradients(model, x, y, method=method))
        else:
            plain = oracle.batch_gradient(model, x, y, training=True)
    oracle.assert_agree(*found)
    oracle.assert_agree([np.mean(g, 0) for g in found[0]], plain)


@pytest.mark.usefixtures("float64")
def test_a_weight_of_the_model_itself_is_exact():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def build(self, shape):
            self.scale = self.add_weight((shape[-1],), "ones", name="scale")
            self.dense.build(shape)

        def call(self, x):
            return self.dense(keras.ops.tanh(x * self.scale)) + self.scale[:3]

    model = Net()
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 4)), rng.normal(size=(5, 3))
    found = kpg.per_sample_gradients(model, x, y)
    oracle.check(found, model, x, y)
    table = kpg.explain(model, 5, x=x)
    assert {r.type: r.served_by for r in table} == {
        "Net": "ops",
        "Dense": "ops",
    }


def _with_regularised_kernel(**compiling):
    """A model, and a loss that reads its regularised kernel."""
    inputs = keras.Input((4,))
    dense = layers.Dense(3, kernel_regularizer="l2")
    model = kpg.PerGradModel(inputs, dense(inputs))

    def loss(y, y_pred):
        value = keras.ops.mean((y - y_pred) ** 2, -1)
        return value + keras.ops.sum(dense.kernel**4)

    model.compile("sgd", loss, **compiling)
    return model


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_a_loss_that_adds_a_weight_to_every_sample_is_exact(method):
    model = _with_regularised_kernel()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 4)), rng.normal(size=(4, 3))
    singles = [
        oracle.batch_gradient(model, x[i : i + 1], y[i : i + 1])
        for i in range(4)
    ]
    expected = [np.stack(g) for g in zip(*singles)]
    found = kpg.per_sample_gradients(model, x, y, method=method)
    oracle.assert_agree(found, expected)


class Towers(kpg.PerGradModel):
    """A model whose loss calls a layer of its own, with dropout."""

    def __init__(self, reduce):
        super().__init__()
        self.reduce = reduce
        self.query = layers.Dense(3)
        self.candidate = layers.Dense(3, kernel_regularizer="l2")
        self.dropout = layers.Dropout(0.5, seed=1)

    def call(self, x):
        return self.query(x)

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        found = self.dropout(self.candidate(y), training=training)
        loss = keras.ops.sum((y_pred * found - y) ** 2, -1)
        return self.reduce(loss, y) + sum(self.candidate.losses)


def _trained_towers(reduce, mode, **how):
    keras.utils.set_random_seed(1)
    model = Towers(reduce)
    model.compile(keras.optimizers.SGD(0.1), gradient_mode=mode, **how)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 4)), rng.normal(size=(6, 3))
    model.fit(x, y, batch_size=6, verbose=0)
    return model.get_weights()


@pytest.mark.usefixtures("float64")
@pytest.mark.filterwarnings("ignore:`build:UserWarning")
@pytest.mark.parametrize("how", ["graph", "eager", "xla"])
def test_a_layer_of_the_loss_is_clipped_one_by_one(how):
    how = {"run_eagerly": how == "eager", "jit_compile": how == "xla"}

    def mean(loss, y):
        return keras.ops.mean(loss)

    clipped = kpg.ClippedMean(0.5)
    found = _trained_towers(mean, kpg.PerSample(clipped), **how)
    expected = _trained_towers(mean, kpg.Vectorized(clipped), **how)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def _over_root(loss, y):
    return keras.ops.sum(loss) / keras.ops.shape(y)[0] ** 0.5


def _over_mask(loss, y):
    mask = keras.ops.cast(y[:, 0] > 0, loss.dtype)
    return keras.ops.sum(loss * mask) / keras.ops.sum(mask)


@pytest.mark.filterwarnings("ignore:`build:UserWarning")
@pytest.mark.parametrize(
    ("reduce", "match"),
    [(_over_root, "neither a sum nor a mean"), (_over_mask, "divides by")],
)
def test_a_loss_that_no_sample_has_alone_is_refused(reduce, match):
    errors = ValueError, tf.errors.InvalidArgumentError
    with pytest.raises(errors, match=match):
        _trained_towers(reduce, "per_sample")


@pytest.mark.parametrize("mode", MODES)
def test_a_regulariser_is_as_before_after_a_step(mode):
    inputs = keras.Input((4,))
    dense = layers.Dense(3, kernel_regularizer="l2")
    model = kpg.PerGradModel(inputs, dense(inputs))
    model.compile("sgd", "mse", gradient_mode=mode)
    regularizer = dense.kernel.regularizer
    x, y = np.ones((4, 4), "float32"), np.ones((4, 3), "float32")
    model.fit(x, y, verbose=0)
    assert dense.kernel.regularizer is regularizer


def test_an_output_without_an_entry_for_each_sample():
    inputs = keras.Input((4,))
    outputs = keras.ops.reshape(layers.Dense(4)(inputs), (-1, 2))
    model = kpg.PerGradModel(inputs, outputs)
    model.compile("sgd", "mse", gradient_mode="vectorized")
    x, y = np.ones((3, 4), "float32"), np.ones((6, 2), "float32")
    with pytest.raises(ValueError, match="x with 3, y with 6"):
        model.train_on_batch(x, y)
