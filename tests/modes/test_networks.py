"""Whole networks train in vectorized mode with the oracle's gradients."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests import oracle, zoo

pytestmark = pytest.mark.slow

layers = keras.layers


class StochasticDepth(layers.Layer):
    """Leaves a residual branch out, sample by sample."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, branch, training=None):
        if not training or not self.rate:
            return branch
        shape = (keras.ops.shape(branch)[0],) + (1,) * (len(branch.shape) - 1)
        kept = keras.random.uniform(shape, seed=self.seeds) >= self.rate
        return branch * keras.ops.cast(kept, branch.dtype) / (1 - self.rate)


class LayerScale(layers.Layer):
    """A small trainable factor for each channel; it has no rule."""

    def build(self, shape):
        self.gamma = self.add_weight((shape[-1],), "ones", name="gamma")

    def call(self, inputs):
        return inputs * self.gamma


def _encoder(rate):
    """BERT-like: two embeddings, attention blocks, a pooled class."""
    words = keras.Input((6,), dtype="int32")
    places = keras.ops.arange(6)[None]
    table = layers.Embedding(12, 8, mask_zero=True)
    x = table(words) + layers.Embedding(6, 8)(places + 0 * words)
    x = layers.Dropout(rate, seed=2)(layers.LayerNormalization()(x))
    for seed in (3, 4):
        attention = layers.MultiHeadAttention(2, 4, dropout=rate, seed=seed)
        x = layers.LayerNormalization()(x + attention(x, x))
        hidden = layers.Dense(16, "gelu")(x)
        hidden = layers.Dropout(rate, seed=seed)(layers.Dense(8)(hidden))
        x = layers.LayerNormalization()(x + hidden)
    outputs = layers.Dense(3, "softmax")(layers.Dense(8, "tanh")(x[:, 0]))
    return words, outputs


def _convnext(rate):
    """Depthwise blocks with LayerScale and stochastic depth."""
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 2, strides=2)(inputs)
    x = layers.LayerNormalization()(x)
    for width in (4, 6):
        if width != x.shape[-1]:
            x = layers.LayerNormalization()(x)
            x = layers.Conv2D(width, 2, strides=2)(x)
        branch = layers.DepthwiseConv2D(3, padding="same")(x)
        branch = layers.LayerNormalization()(branch)
        branch = layers.Dense(2 * width, "gelu")(branch)
        branch = LayerScale()(layers.Dense(width)(branch))
        x = x + StochasticDepth(rate)(branch)
    x = layers.LayerNormalization()(layers.GlobalAveragePooling2D()(x))
    return inputs, layers.Dense(3, "softmax")(x)


def _language_model(rate):
    """GRU; the table of the words gives the logits, too."""
    words = keras.Input((5,), dtype="int32")
    table = layers.Embedding(9, 6)
    x = layers.Dropout(rate, seed=2)(table(words))
    x = layers.GRU(7, return_sequences=True)(x)
    logits = zoo.TiedLogits(table)(layers.Dense(6)(x))
    return words, layers.Softmax()(logits)


def _model(make, rate=0.0, **arguments):
    keras.utils.set_random_seed(4)
    model = kpg.PerGradModel(*make(rate))
    rng = np.random.default_rng(6)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) * 0.4)
    model.compile(
        keras.optimizers.Adam(0.02),
        "sparse_categorical_crossentropy",
        jit_compile=False,
        **arguments,
    )
    return model


def _batch(model, n=4):
    rng = np.random.default_rng(8)
    shape = (n, *model.input_shape[1:])
    if model.inputs[0].dtype == "int32":
        x = rng.integers(1, 9, shape).astype("int32")
        x[:, -2:] = np.where(x[:, -2:] > 4, 0, x[:, -2:])
    else:
        x = rng.normal(size=shape).astype(keras.config.floatx())
    y = rng.integers(0, 3, (n, *model.output_shape[1:-1]))
    return x, y


MAKERS = pytest.mark.parametrize("make", [_encoder, _convnext, _language_model])


@pytest.mark.usefixtures("float64")
@MAKERS
def test_gradients_are_the_oracles(make):
    model = _model(make)
    x, y = _batch(model)
    found = kpg.per_sample_gradients(model, x, y)
    oracle.check(found, model, x, y=y, training=True)
    norms = kpg.per_sample_norms(model, x, y)
    squares = sum(np.square(g).reshape(len(g), -1).sum(1) for g in found)
    np.testing.assert_allclose(norms, np.sqrt(squares), rtol=1e-10)


@pytest.mark.usefixtures("float64")
@MAKERS
def test_random_parts_are_the_batchs_own(make):
    """The draws are those of the batch, of which they are means."""
    model = _model(make, rate=0.3)
    x, y = _batch(model)
    state = [(v, v.numpy()) for v in model.variables]

    def again():
        for variable, value in state:
            variable.assign(value)

    found = kpg.per_sample_gradients(model, x, y)
    again()
    plain = oracle.batch_gradient(model, x, y, training=True)
    oracle.assert_agree([np.mean(g, 0) for g in found], plain)
    calm = kpg.per_sample_gradients(model, x, y, training=False)
    assert not np.allclose(found[0], calm[0], rtol=1e-3)


@MAKERS
def test_trains(make):
    mode = kpg.Vectorized(kpg.ClippedMean(5.0), statistics=True)
    model = _model(make, rate=0.1, gradient_mode=mode)
    x, y = _batch(model, 12)
    history = model.fit(x, y, batch_size=4, epochs=4, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert all(np.isfinite(history["gradient_variance"]))
    served = {row.served_by for row in kpg.explain(model, 4)}
    assert served <= {"rule", "ops"}
