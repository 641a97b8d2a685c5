"""Variables whose "gradient" is their next value, as in float8 layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg

X = np.random.default_rng(0).normal(size=(8, 5)).astype("float32")
Y = X[:, :3] * 2
FAR = kpg.ClippedMean(1e9)
MODES = {
    "vectorized": "vectorized",
    "per_sample": "per_sample",
    "accumulated": kpg.Accumulated(),
    "vectorized, clipped": kpg.Vectorized(FAR),
    "per_sample, clipped": kpg.PerSample(FAR),
    "accumulated, clipped": kpg.Accumulated(inner=kpg.Vectorized(FAR)),
    "by variable": kpg.Vectorized(kpg.ClippedMean(1e9, per="variable")),
}


@tf.custom_gradient
def largest(x, seen):
    """Return x; the "gradient" of `seen` is the largest |x| of the batch."""
    return tf.identity(x), lambda dy: (dy, tf.reduce_max(tf.abs(x)))


class Largest(keras.layers.Layer):
    """Keeps the largest input of the last batch in a "trainable" weight."""

    def build(self, shape):
        self.seen = self.add_weight(name="seen", shape=(), initializer="ones")
        self.seen.overwrite_with_gradient = True

    def call(self, x):
        return largest(x, tf.convert_to_tensor(self.seen))


def trained(mode, layer=Largest, loss_scale=None, **arguments):
    """The weights after three epochs of whole batches, by their path."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,))
    h = layer(name="largest")(inputs) if layer is Largest else inputs
    dense = keras.layers.Dense(3, name="dense")
    model = keras.Model(inputs, dense(h))
    if layer == "float8":
        dense.quantize("float8")
    if mode is not None:
        model = kpg.PerGradModel.from_model(model)
        arguments["gradient_mode"] = mode
    optimizer = keras.optimizers.SGD(0.1, loss_scale_factor=loss_scale)
    model.compile(optimizer, "mse", jit_compile=False, **arguments)
    model.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return {v.name: np.asarray(v) for v in model.trainable_variables}


def assert_same(found, expected, rtol=1e-5):
    assert set(found) == set(expected)
    for name, value in expected.items():
        error = np.abs(found[name] - value).max()
        assert error <= rtol * np.abs(value).max() + 1e-7, name


@pytest.mark.parametrize("mode", MODES)
def test_passed_on_as_in_keras(mode):
    expected = trained(None)
    assert expected["seen"] == np.abs(X).max()
    assert_same(trained(MODES[mode]), expected)


@pytest.mark.parametrize("mode", ["vectorized", "per_sample"])
def test_eagerly_and_with_a_scaled_loss(mode):
    found = trained(MODES[f"{mode}, clipped"], run_eagerly=True)
    assert_same(found, trained(None))
    assert_same(trained(mode, loss_scale=128.0), trained(None))


@pytest.mark.parametrize("mode", ["vectorized", "per_sample, clipped"])
def test_float8(mode):
    expected = trained(None, layer="float8")
    assert len(expected) == 8
    # Eight bits: a value at the edge of two steps may round either way.
    assert_same(trained(MODES[mode], layer="float8"), expected, rtol=0.02)


@pytest.mark.parametrize("clips", [kpg.Vectorized, kpg.PerSample])
def test_no_part_of_the_norms(clips):
    """Clipped as without the layer, which passes its input on."""
    mode = clips(kpg.ClippedMean(0.1))
    found, expected = trained(mode), trained(mode, layer=None)
    assert found.pop("seen") == np.abs(X).max()
    assert_same(found, expected)


def test_online_updates_see_batches_of_one():
    found = trained(kpg.PerSample(updates="sample"))
    assert found["seen"] == np.abs(X[-1]).max()


def test_the_functions_leave_them_out():
    inputs = keras.Input((5,))
    h = keras.layers.Dense(3)(Largest()(inputs))
    model = keras.Model(inputs, h)
    model.compile("sgd", "mse")
    twin = keras.Model(inputs, h)
    twin.compile("sgd", "mse")
    for method in ("vectorized", "per_sample"):
        found = kpg.per_sample_gradients(model, X, Y, method=method)
        assert [g is None for g in found] == [True, False, False]
    norms = kpg.per_sample_norms(model, X, Y)
    squares = [np.square(g).reshape(8, -1).sum(1) for g in found[1:]]
    np.testing.assert_allclose(norms, np.sqrt(sum(squares)), rtol=1e-5)
    watch = kpg.callbacks.GradientVariance(probe=(X, Y))
    model.fit(X, Y, verbose=0, callbacks=[watch])
    assert watch.measurements[-1].norms[0] == 0 < watch.measurements[-1].norm


@pytest.mark.parametrize(
    "mode", [kpg.Accumulated(steps=2), kpg.Accumulated(microbatch_size=4)]
)
def test_batches_that_are_taken_apart_are_refused(mode):
    with pytest.raises(ValueError, match=r"largest/.* whole batch.*Received"):
        trained(mode)
