"""Batches whose parts do not fit, or fit otherwise than the batch before."""

import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import (
    assert_equal,
    compiled,
    net,
    trained,
    unchanged,
)

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


def make(mode=None, **how):
    return compiled(net(shape=(4,), units=1, seed=1), mode, rate=0.01, **how)


def batch(x, y):
    """A data set of one batch, whose lengths only the data tell."""
    kinds = tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1))
    return tf.data.Dataset.from_generator(
        lambda: iter([(X[:x], Y[:y, None])]), output_signature=kinds
    )


@pytest.mark.parametrize(
    ("mode", "jit"), [*((m, False) for m in MODES), ("accumulated", True)]
)
def test_different_lengths_are_refused(mode, jit):
    model = make(MODES[mode](), jit_compile=jit)
    lengths = [(8, 6), (8, 1), (6, 8)]
    match = r"same number of entries.*one for each sample"
    if jit:
        # It drops assertions; rows beyond an array's end would be the last.
        del lengths[-1]
        match = "must_have_the_same_length|must match"
    with unchanged(model):
        for x, y in lengths:
            with pytest.raises(tf.errors.InvalidArgumentError, match=match):
                trained(model, batch(x, y), steps_per_epoch=1)


@pytest.mark.parametrize("mode", ["vectorized", "online", "accumulated"])
def test_equal_lengths_are_served(mode):
    found, expected = (make(MODES[mode](), jit_compile=False) for _ in range(2))
    trained(found, batch(7, 7), steps_per_epoch=1)
    trained(expected, X[:7], Y[:7, None], batch_size=7)
    assert_equal(found.get_weights(), expected.get_weights(), rtol=1e-6)


@pytest.mark.parametrize("mode", ["vectorized", "per_sample", "accumulated"])
def test_targets_of_another_rank_in_fit(mode):
    """Keras's train function forgets the rank; its own loss fails, too."""
    model = make(MODES[mode](), jit_compile=False)
    model.fit(X, Y, verbose=0)
    with pytest.raises(ValueError, match=r"`y` must have .* number of axes"):
        model.fit(X, Y[:, None], verbose=0)


@pytest.mark.parametrize("mode", ["vectorized", "per_sample"])
def test_targets_of_another_rank_in_eager_steps(mode):
    model = make(mode, run_eagerly=True)
    losses = [model.train_on_batch(X, y) for y in (Y, Y[:, None], Y)]
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_targets_of_another_rank_in_functions(method):
    model = make("batch")
    first, second, third = (
        kpg.per_sample_norms(model, X, y, method=method)
        for y in (Y, Y[:, None], Y)
    )
    np.testing.assert_allclose(first, second, rtol=1e-6)
    np.testing.assert_array_equal(first, third)
