"""Norms for clipping where a GPU multiplies in TensorFloat-32."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.factors import convolution_method, join
from keras_pergrad.factors.base import round_up_gradient_norms
from keras_pergrad.keras_internals.tensorflow import settings
from keras_pergrad.modes import vectorized
from tests.tensor_float import short_products


@pytest.fixture(params=["nearest", "cut off"])
def nearest(request, monkeypatch):
    """A card that has it."""
    monkeypatch.setattr(settings, "may_use_tf32", lambda: True)
    return request.param == "nearest"


def _cancelling(rng, positions, inputs, outputs):
    """The worst: all but the last of ten bits cancels, until it is weighted."""
    x = np.ones((positions, inputs)) * rng.uniform(1, 2, inputs)
    dz = np.where(np.arange(positions) % 2, -1 - 2.0**-10, 1)
    return x, np.repeat(dz[:, None], outputs, 1)


def _any(rng, positions, inputs, outputs):
    sides = (positions, inputs), (positions, outputs)
    return [rng.normal(size=side) for side in sides]


def _shifted(rng, positions, inputs, outputs):
    """What all positions have in common cancels."""
    x, dz = _any(rng, positions, inputs, outputs)
    return x + 1e3, dz - dz.mean(0)


def _single(tensor, *shape):
    return tf.reshape(tf.cast(tensor, tf.float32), [1, *shape])


def _outer(method):
    def make(draw):
        x, dz = draw(400, 6, 5)
        x, dz = _single(x, 400, 6), _single(dz, 400, 5)
        return kpg.extending.Outer(x, dz, method=method)

    return make


def _one_position(draw):
    x, dz = draw(2, 5, 6)
    return kpg.extending.Outer(_single(x[:1], 5), _single(dz[:1], 6))


def _blocks(draw):
    x, dz = draw(400, 10, 12)
    return kpg.factors.Blocks(_single(x, 2, 400, 5), _single(dz, 2, 400, 6))


def _convolution(method, groups=1):
    def make(draw):
        windows = kpg.factors.Windows.of((400,), (3,), (1,), (1,), "same")
        x, dz = draw(400, 4 * groups, 6)
        with convolution_method(method):
            x, dz = _single(x, 400, 4 * groups), _single(dz, 400, 6)
            return kpg.factors.Patches(x, dz, windows, (3, 4, 6), groups)

    return make


def _strided_pixels(draw):
    windows = kpg.factors.Windows.of((400,), (1,), (2,), (1,), "valid")
    x, _ = draw(400, 4, 6)
    _, dz = draw(200, 4, 6)
    return kpg.factors.Patches(
        _single(x, 400, 4), _single(dz, 200, 6), windows, (1, 4, 6)
    )


def _tied(draw):
    ids = tf.constant([[k % 5 for k in range(400)]])
    x, dz = draw(400, 5, 6)
    _, at_ids = draw(400, 5, 6)
    table = kpg.extending.Rows(ids, _single(-at_ids, 400, 6), (5, 6))
    x, dz = _single(x, 400, 5), _single(dz, 400, 6)
    return join([table, kpg.extending.Outer(x, dz, method="gram")])


FACTORS = {
    "one position": _one_position,
    "gram": _outer("gram"),
    "held": _outer("full"),
    "blocks": _blocks,
    "taps": _convolution("taps"),
    "tap norms": _convolution("tap_norms"),
    "patch gram": _convolution("patch_gram"),
    "pixel gram": _convolution("pixel_gram"),
    "groups": _convolution("tap_norms", 2),
    "strided pixels": _strided_pixels,
    "tied": _tied,
}


def _kept(make, draw, seeds, nearest, rounded_up=True):
    """The norms that one sample keeps in sums that clip it to 1."""

    @tf.function(autograph=False)
    def total(drawn):
        pairs = iter(drawn)
        factor = make(lambda *sizes: next(pairs))
        with short_products(nearest):
            with settings.norms_rounded_up(rounded_up):
                norms = tf.sqrt(factor.squared_norms())
                norms = round_up_gradient_norms(norms)
            weights = 1 / tf.maximum(norms, 1e-30)
            return tf.convert_to_tensor(factor.weighted_sum(weights))

    kept = []
    for seed in range(seeds):
        drawn, rng = [], np.random.default_rng(seed)

        def noting(*sizes, drawn=drawn, rng=rng):
            drawn.append(tuple(map(tf.constant, draw(rng, *sizes))))
            return drawn[-1]

        make(noting)
        kept.append(np.linalg.norm(np.float64(total(drawn)).ravel()))
    return np.array(kept)


@pytest.mark.parametrize("draw", [_any, _shifted, _cancelling])
@pytest.mark.parametrize("name", FACTORS)
def test_no_sample_keeps_more_than_the_bound(nearest, name, draw):
    kept = _kept(FACTORS[name], draw, 3, nearest)
    assert (kept <= 1 + 1e-6).all()
    if draw is _any:
        # Random products cancel a little.
        assert (kept > 0.7).all()


def test_norms_as_they_are_would_let_too_much_through(nearest):
    kept = _kept(FACTORS["gram"], _cancelling, 16, nearest, rounded_up=False)
    assert kept.max() > 1.2


@pytest.mark.parametrize("per", ["model", "variable"])
def test_a_step_moves_the_weights_no_further(nearest, per, monkeypatch):
    inputs = keras.Input((64, 8))
    x = keras.layers.Dense(12, use_bias=False)(inputs)
    x = keras.layers.LayerNormalization(axis=1, center=False, scale=False)(x)
    x = keras.layers.Conv1D(4, 3, activation="tanh")(x)
    x = keras.layers.Flatten()(x)
    net = kpg.PerGradModel(inputs, keras.layers.Dense(2)(x))
    mode = kpg.Vectorized(kpg.ClippedMean(0.1, per=per))
    net.compile(keras.optimizers.SGD(1.0), "mse", gradient_mode=mode)
    for name in ("sample_norms", "_weighted"):
        original = getattr(vectorized, name)

        def shortened(*args, _original=original):
            with short_products(nearest):
                return _original(*args)

        monkeypatch.setattr(vectorized, name, shortened)
    start, rng = net.get_weights(), np.random.default_rng(0)
    for _ in range(5):
        net.set_weights(start)
        x = 1e3 + rng.normal(size=(1, 64, 8))
        net.train_on_batch(x.astype("float32"), rng.normal(size=(1, 2)))
        pairs = zip(net.get_weights(), start)
        moved = sum(np.square(a - b).sum(dtype="float64") for a, b in pairs)
        assert 0 < np.sqrt(moved) <= 0.1 * (1 + 1e-4)


class _Asks(keras.callbacks.Callback):
    """Whether products are short, in the steps and after an error."""

    def __init__(self, stops=False):
        super().__init__()
        self.found, self.stops = [], stops

    def on_train_batch_end(self, batch, logs=None):
        asks = tf.config.experimental.tensor_float_32_execution_enabled
        self.found.append(asks())
        if self.stops:
            raise RuntimeError("stopped")


@pytest.mark.usefixtures("ten_bits")
@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("mode", [kpg.PerSample, kpg.Vectorized])
def test_training_with_noise_has_all_digits(mode, noise, monkeypatch):
    asks = tf.config.experimental.tensor_float_32_execution_enabled
    monkeypatch.setattr(settings, "may_use_tf32", asks)
    inputs = keras.Input((4,))
    net = kpg.PerGradModel(inputs, keras.layers.Dense(2)(inputs))
    aggregation = kpg.ClippedMean(1.0, noise_multiplier=noise)
    net.compile("sgd", "mse", gradient_mode=mode(aggregation))
    x, y = np.ones((4, 4)), np.ones((4, 2))
    callback = _Asks()
    assert asks()
    net.fit(x, y, verbose=0, callbacks=[callback])
    assert callback.found == [not noise]
    assert asks()
    with pytest.raises(RuntimeError, match="stopped"):
        net.fit(x, y, verbose=0, callbacks=[_Asks(stops=True)])
    assert asks()
    seen = []
    step = net.train_function
    net.train_function = lambda data: (seen.append(asks()), step(data))[1]
    net.train_on_batch(x, y)
    assert seen == [not noise]
    assert asks()
