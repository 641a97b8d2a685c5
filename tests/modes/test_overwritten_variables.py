"""Weights that are overwritten with their gradient, as in float8 layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg

X = np.random.default_rng(0).normal(size=(8, 5)).astype("float32")
Y = X[:, :3] * 2
CLIPPED = kpg.ClippedMean(1.0)
MODES = {
    "vectorized": "vectorized",
    "per_sample": "per_sample",
    "accumulated": kpg.Accumulated(),
    "microbatches": kpg.Accumulated(microbatch_size=4),
    "vectorized, clipped": kpg.Vectorized(CLIPPED),
    "per_sample, clipped": kpg.PerSample(CLIPPED),
    "by sample": kpg.PerSample(updates="sample"),
}
REFUSED = {
    "float8": (
        r"Layer 'scaled' \(Dense, dtype policy 'float8_from_float32'\).*"
        r"'scaled/\w+', whose next value is found from the whole batch.*"
        "gradient_mode='batch' on one device.*dtype='mixed_bfloat16'"
    ),
    "own": r"Layer 'scaled' \(Largest, dtype policy 'float32'\).*'scaled/seen'",
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


def make(layer="float8", mode=None, **compiling):
    """A model with a layer "scaled", whose weights are overwritten."""
    keras.utils.set_random_seed(1)
    scaled = Largest(name="scaled")
    if layer != "own":
        dtypes = {"float8": "float8_from_float32"}
        dtype = dtypes.get(layer, layer)
        scaled = keras.layers.Dense(5, dtype=dtype, name="scaled")
    inputs = keras.Input((5,))
    outputs = keras.layers.Dense(3, dtype="float32")(scaled(inputs))
    model = keras.Model(inputs, outputs)
    if mode is not None:
        model = kpg.PerGradModel.from_model(model)
        compiling["gradient_mode"] = mode
    model.compile("sgd", "mse", jit_compile=False, **compiling)
    return model


def fit(model, *callbacks):
    how = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}
    model.fit(X, Y, callbacks=list(callbacks), **how)
    return [np.asarray(v) for v in model.trainable_variables]


@pytest.mark.quick
@pytest.mark.parametrize("layer", REFUSED)
def test_the_batch_mode_trains_as_keras(layer):
    expected = fit(make(layer))
    for mode in ("batch", None):
        found = fit(make(layer, mode))
        for value, twin in zip(found, expected, strict=True):
            np.testing.assert_array_equal(value, twin)
    if layer == "own":
        assert expected[0] == np.abs(X).max()


def test_quantized_after_it_was_built():
    model = make("float32", "vectorized")
    model.get_layer("scaled").quantize("float8")
    with pytest.raises(ValueError, match=REFUSED["float8"]):
        fit(model)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layer", REFUSED)
def test_every_other_mode_refuses_it_before_a_weight_changes(layer, mode):
    model = make(layer, MODES[mode], run_eagerly=mode == "vectorized")
    before = model.get_weights()
    with pytest.raises(ValueError, match=REFUSED[layer]):
        fit(model)
    for value, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, old)


@pytest.mark.quick
def test_private_training_refuses_it():
    private = kpg.PrivateTraining(
        samples=8,
        batch_size=4,
        steps=2,
        clip_norm=1.0,
        noise_multiplier=1.0,
        delta=1e-3,
    )
    model = make("float8", private.gradient_mode)
    with pytest.raises(ValueError, match=REFUSED["float8"]):
        model.fit(private.batches(X, Y), verbose=0, callbacks=[private])


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: kpg.per_sample_gradients(model, X, Y),
        lambda model: kpg.per_sample_norms(model, X, Y, method="per_sample"),
        lambda model: kpg.check_gradients(model, X, Y, verbose=0),
        lambda model: kpg.influence.Influence(model, X, Y).scores(X[:2], Y[:2]),
    ],
    ids=["gradients", "norms", "check", "influence"],
)
@pytest.mark.parametrize("layer", REFUSED)
def test_what_asks_for_single_samples_refuses_it(layer, ask):
    with pytest.raises(ValueError, match=REFUSED[layer]):
        ask(make(layer))


@pytest.mark.parametrize("layer", REFUSED)
def test_explain_says_so(layer):
    rows = {row.path: row for row in kpg.explain(make(layer), 8).rows}
    assert rows["scaled"].served_by == "refused"
    assert "overwritten with their gradient" in rows["scaled"].reason


def test_gradient_variance_measures_the_rest_of_the_batch():
    watch = kpg.callbacks.GradientVariance(probe=(X, Y))
    fit(make("own"), watch)
    last = watch.readings[-1]
    assert "overwritten with their gradient" in watch.messages[0]
    assert "gradient_variance" not in last.figures
    assert last.by_variable["norm"][0] == 0 < last.figures["gradient_norm"]


@pytest.mark.quick
def test_the_way_out():
    found = fit(make("mixed_bfloat16", kpg.Vectorized(CLIPPED)))
    assert np.isfinite(np.concatenate([w.ravel() for w in found])).all()
