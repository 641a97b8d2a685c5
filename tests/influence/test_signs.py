"""Targets with random signs give the Fisher matrix of drawn labels."""

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.influence.likelihoods import Likelihood

ROWS = 20000
LOGITS = np.array([0.5, -1.0, 3.0])
CHANCES = np.exp(LOGITS) / np.exp(LOGITS).sum()
OWN_CHANCES = 1 / (1 + np.exp(-LOGITS))


def _slopes(likelihood, labels, outputs):
    outputs = tf.constant(outputs)
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        values = likelihood.position_losses(labels(outputs), outputs)
    return tape.gradient(values, outputs).numpy()


def _signed(likelihood, outputs):
    outputs = np.tile(outputs, (ROWS, 1))
    return _slopes(
        likelihood, lambda o: likelihood.draw_signed(o, [1, 2]), outputs
    )


@pytest.mark.parametrize("from_logits", [True, False])
def test_of_classes(from_logits):
    likelihood = Likelihood("categorical", from_logits)
    outputs = LOGITS if from_logits else CHANCES
    each = _slopes(likelihood, lambda o: np.arange(3), np.tile(outputs, (3, 1)))
    expected = np.einsum("c,ci,cj->ij", CHANCES, each, each)
    found = _signed(likelihood, outputs)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    close = found.T @ found / ROWS - expected
    assert np.abs(close / scale).max() < 0.03
    assert np.abs(found.mean(0) / np.sqrt(np.diag(expected))).max() < 0.03


@pytest.mark.parametrize("from_logits", [True, False])
def test_of_yes_and_no(from_logits):
    likelihood = Likelihood("bernoulli", from_logits)
    p = OWN_CHANCES
    found = _signed(likelihood, LOGITS if from_logits else p)
    root = np.sqrt(p * (1 - p)) if from_logits else 1 / np.sqrt(p * (1 - p))
    np.testing.assert_allclose(np.abs(found), np.tile(root, (ROWS, 1)), 1e-5)
    assert np.abs((found / root).mean(0)).max() < 0.03


def test_of_numbers():
    found = _signed(Likelihood("gaussian"), LOGITS)
    assert set(np.unique(np.abs(found.round(12)))) == {1.0}


def test_of_one_class_nothing_is_learned():
    found = _signed(Likelihood("categorical", True), LOGITS[:1])
    assert not found.any()
