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


YES_OR_NO = np.sqrt(OWN_CHANCES * (1 - OWN_CHANCES))
#: Each likelihood, outputs, and the only length that a slope may have.
LENGTHS = {
    "logits": (Likelihood("bernoulli", True), LOGITS, YES_OR_NO),
    "chances": (Likelihood("bernoulli", False), OWN_CHANCES, 1 / YES_OR_NO),
    "numbers": (Likelihood("gaussian"), LOGITS, np.ones(3)),
    "one class": (Likelihood("categorical", True), LOGITS[:1], np.zeros(1)),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_slopes_of_one_length(name):
    likelihood, outputs, length = LENGTHS[name]
    found = _signed(likelihood, outputs)
    np.testing.assert_allclose(np.abs(found), np.tile(length, (ROWS, 1)), 1e-12)
    assert np.all(np.abs(found.mean(0)) <= 0.03 * length)
