"""Variables whose "gradient" is their next value, as in float8 layers."""

import functools

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


@functools.cache
def plain(layer=Largest):
    """The weights that Keras trains."""
    return trained(None, layer)


def assert_same(found, expected, rtol=1e-5):
    assert set(found) == set(expected)
    for name, value in expected.items():
        error = np.abs(found[name] - value).max()
        assert error <= rtol * np.abs(value).max() + 1e-7, name


@pytest.mark.parametrize("mode", MODES)
def test_passed_on_as_in_keras(mode):
    expected = plain()
    assert expected["seen"] == np.abs(X).max()
    assert_same(trained(MODES[mode]), expected)


@pytest.mark.parametrize("mode", ["vectorized", "per_sample"])
def test_eagerly_and_with_a_scaled_loss(mode):
    found = trained(MODES[f"{mode}, clipped"], run_eagerly=True)
    assert_same(found, plain())
    assert_same(trained(mode, loss_scale=128.0), plain())


@pytest.mark.parametrize("mode", ["vectorized", "per_sample, clipped"])
def test_float8(mode):
    expected = plain("float8")
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


def clipped_by_hand(clip, rate=0.1, epochs=3):
    """A float8 layer's weights: one sample after the other, by their path.

    What Keras overwrites comes from the whole batch and has no part in norms.
    """
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,))
    dense = keras.layers.Dense(3, name="dense")
    model = keras.Model(inputs, dense(inputs))
    dense.quantize("float8")
    model.compile("sgd", "mse")
    variables = model.trainable_variables
    own = [v for v in variables if v.overwrite_with_gradient]
    rest = [v for v in variables if not v.overwrite_with_gradient]

    @tf.function(autograph=False)
    def gradients(x, y, whole):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
            loss = loss if whole else loss / len(X)
        return tape.gradient(loss, [v.value for v in (own if whole else rest)])

    fractions = []
    for _ in range(epochs):
        overwritten, total, clipped = gradients(X, Y, True), [0, 0], 0
        for k in range(len(X)):
            row = tf.constant(X[k : k + 1]), tf.constant(Y[k : k + 1])
            found = [np.asarray(g) for g in gradients(*row, False)]
            norm = len(X) * np.sqrt(sum(np.sum(g**2) for g in found))
            clipped += norm > clip
            total = [t + min(1, clip / norm) * g for t, g in zip(total, found)]
        for variable, value in zip(own, overwritten):
            variable.assign(value)
        for variable, gradient in zip(rest, total):
            variable.assign_sub(rate * gradient)
        fractions.append(clipped / len(X))
    return {v.name: np.asarray(v) for v in variables}, fractions


@pytest.mark.parametrize("clips", [kpg.Vectorized, kpg.PerSample])
def test_float8_clipped_as_by_hand(clips):
    expected, fractions = clipped_by_hand(4.0)
    assert 0 < fractions[0] < 1
    found = trained(clips(kpg.ClippedMean(4.0)), layer="float8")
    assert_same(found, expected, rtol=0.02)


def test_check_gradients_leaves_them_out():
    inputs = keras.Input((5,))
    outputs = keras.layers.Dense(3)(Largest(name="largest")(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    how = {"gradient_modes": ["vectorized", "accumulated"], "repeats": 1}
    found = kpg.check_gradients(model, X, Y, settings=("graph",), **how)
    assert found.ok
    assert not found.refused
    assert "largest/seen' is overwritten with their" in found.notes[0]
    assert len(model.trainable_variables) == 3


def test_check_gradients_cannot_tell_in_float8():
    inputs = keras.Input((5,))
    dense = keras.layers.Dense(3)
    model = keras.Model(inputs, dense(inputs))
    dense.quantize("float8")
    model.compile("sgd", "mse")
    how = {
        "gradient_modes": ["vectorized"],
        "repeats": 1,
        "settings": ("graph",),
    }
    found = kpg.check_gradients(model, X, Y, **how)
    assert [row.verdict for row in found.rows] == ["cannot tell"]
    assert "and 5 more are overwritten" in found.notes[0]


@pytest.mark.quick
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
