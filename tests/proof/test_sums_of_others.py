"""Counts over all samples' ids in a layer: a factor of a loss, or refused.

A loss may be divided by a sum over all masks that is the same for all of its
terms. Outputs that follow such a sum are refused in every mode.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import assert_equal, compiled
from tests.proof.fits import fit

pytestmark = pytest.mark.usefixtures("float64")
_rng = np.random.default_rng(0)


class Counted(keras.layers.Layer):
    """Uses how many entries of its second input are positive, in all."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def call(self, h, ids):
        mask = tf.cast(ids > 0, h.dtype)
        count, squares = tf.reduce_sum(mask), tf.reduce_sum(h**2, -1)
        if self.how == "curve":
            return tf.tanh(h / count)
        if self.how == "factor":
            return h * (1.0 / count)
        self.add_loss(tf.reduce_sum(squares * mask) / count)
        if self.how == "two losses":
            self.add_loss(tf.reduce_mean(squares))
        return h


def _counted(how):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,), dtype="int64")
    embedded = keras.layers.Embedding(4, 3, mask_zero=True)(inputs)
    counted = Counted(how)
    counted.supports_masking = True
    first = keras.layers.Dense(2, name="first")(embedded)
    second = keras.layers.Dense(1, use_bias=False, name="second")(
        keras.layers.GlobalAveragePooling1D()(counted(embedded, inputs))
    )
    return kpg.PerGradModel(inputs, [first, second])


IDS = _rng.integers(0, 4, (6, 5))
TARGETS = [_rng.normal(size=(6, 5, 2)), _rng.normal(size=(6, 1))]
WEIGHTS = [_rng.uniform(size=(6, 5)), _rng.uniform(size=6)]


@pytest.mark.parametrize("how", ["one loss", "two losses"])
@pytest.mark.parametrize(
    "reduction", ["sum_over_batch_size", "mean_with_sample_weight"]
)
def test_each_loss_has_a_sum_of_its_own(how, reduction):
    model = _counted(how)
    loss = keras.losses.MeanSquaredError(reduction)
    model.compile("sgd", [loss, loss], loss_weights=[0.3, 2.0])
    found = kpg.per_sample_gradients(
        model, IDS, TARGETS, sample_weight=WEIGHTS, verbose=0
    )
    y, weights = tf.nest.map_structure(tf.constant, (TARGETS, WEIGHTS))
    with tf.GradientTape() as tape:
        y_pred = model(IDS, training=True)
        loss = model.compute_loss(tf.constant(IDS), y, y_pred, weights)
    expected = tape.gradient(loss, model.trainable_variables)
    means = [np.mean(part, 0) for part in found]
    expected = [tf.convert_to_tensor(part) for part in expected]
    assert_equal(means, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["vectorized", "per_sample", "accumulated"])
@pytest.mark.parametrize("how", ["curve", "factor"])
def test_every_mode_refuses(mode, how):
    model = compiled(_counted(how), loss=["mse", lambda y, p: y * p])
    with pytest.raises(ValueError, match="mixes the samples"):
        fit((model, IDS, TARGETS), mode)
