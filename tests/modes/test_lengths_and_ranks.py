"""Batches whose parts do not fit, or fit otherwise than the batch before."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = X.sum(1)
MODES = {
    "vectorized": lambda: "vectorized",
    "per_sample": lambda: "per_sample",
    "online": lambda: kpg.PerSample(updates="sample"),
    "accumulated": lambda: kpg.Accumulated(microbatch_size=4),
    "whole": kpg.Accumulated,
    "virtual": lambda: kpg.Accumulated(
        microbatch_size=4, inner=kpg.Vectorized(kpg.ClippedMean(1.0))
    ),
}


def make(**arguments):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    model = kpg.PerGradModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", **arguments)
    return model


def batch(x, y):
    """A data set of one batch, whose lengths only the data tell."""
    return tf.data.Dataset.from_generator(
        lambda: iter([(X[:x], Y[:y, None])]),
        output_signature=(
            tf.TensorSpec((None, 4)),
            tf.TensorSpec((None, 1)),
        ),
    )


def _assert_lengths_are_refused(model, lengths, match):
    before = model.get_weights()
    for x, y in lengths:
        with pytest.raises(tf.errors.InvalidArgumentError, match=match):
            model.fit(batch(x, y), shuffle=False, verbose=0, steps_per_epoch=1)
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mode", MODES)
def test_different_lengths_are_refused(mode):
    model = make(gradient_mode=MODES[mode](), jit_compile=False)
    said = r"same number of entries.*one for each sample"
    _assert_lengths_are_refused(model, [(8, 6), (6, 8), (8, 1)], said)


def test_different_lengths_are_refused_by_xla():
    """It drops assertions; rows beyond an array's end would be the last."""
    model = make(gradient_mode=MODES["accumulated"](), jit_compile=True)
    said = "must_have_the_same_length|must match"
    _assert_lengths_are_refused(model, [(8, 6), (8, 1)], said)


@pytest.mark.parametrize("mode", ["vectorized", "online", "accumulated"])
def test_equal_lengths_are_served(mode):
    found, expected = (
        make(gradient_mode=MODES[mode](), jit_compile=False) for _ in range(2)
    )
    found.fit(batch(7, 7), shuffle=False, verbose=0, steps_per_epoch=1)
    expected.fit(X[:7], Y[:7, None], batch_size=7, shuffle=False, verbose=0)
    for a, b in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("mode", ["vectorized", "per_sample", "accumulated"])
def test_targets_of_another_rank_in_fit(mode):
    """Keras's train function forgets the rank; its own loss fails, too."""
    model = make(gradient_mode=MODES[mode](), jit_compile=False)
    model.fit(X, Y, verbose=0)
    with pytest.raises(ValueError, match=r"`y` must have .* number of axes"):
        model.fit(X, Y[:, None], verbose=0)


@pytest.mark.parametrize("mode", ["vectorized", "per_sample"])
def test_targets_of_another_rank_in_eager_steps(mode):
    model = make(gradient_mode=mode, run_eagerly=True)
    losses = [model.train_on_batch(X, y) for y in (Y, Y[:, None], Y)]
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_targets_of_another_rank_in_functions(method):
    model = make()
    first, second, third = (
        kpg.per_sample_norms(model, X, y, method=method)
        for y in (Y, Y[:, None], Y)
    )
    np.testing.assert_allclose(first, second, rtol=1e-6)
    np.testing.assert_array_equal(first, third)
