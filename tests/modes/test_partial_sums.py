"""Modes of one's own that supply the sums of a part of a batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import assert_equal, compiled, net, normal
from tests.modes.big_batch import EXECUTION


class Plain(kpg.modes.GradientMode):
    """The ordinary gradient, from one tape."""

    def partial_sums(self, model, part):
        with part.watched(), tf.GradientTape() as tape:
            y_pred, added = part.call()
            target = part.target(y_pred, added)
        gradients = tape.gradient(target, model.trainable_variables)
        if part.scale is not None:
            gradients = [g / part.scale for g in gradients]
        return kpg.modes.PartialSums(y_pred, gradients)


class Doubled(Plain):
    changes_gradients = True

    def partial_sums(self, model, part):
        sums = super().partial_sums(model, part)
        sums.gradients = [2 * g for g in sums.gradients]
        return sums


class Summed(kpg.modes.GradientMode):
    """The sum of the samples' gradients, from their factors."""

    needs_graph = True

    def partial_sums(self, model, part):
        y_pred, factors = kpg.modes.sample_gradients(model, part)
        sums = [tf.reduce_sum(f.materialize(), 0) for f in factors]
        return kpg.modes.PartialSums(y_pred, sums)


def moved(mode, scale=None, **how):
    """What a step adds to the weights, and its logs."""
    keras.utils.set_random_seed(2)
    hidden = keras.layers.Dense(5, "tanh", kernel_regularizer="l2")
    penalty = keras.layers.ActivityRegularization(l2=0.1)
    model = net(hidden, penalty, shape=(4,))
    optimizer = keras.optimizers.SGD(0.5)
    if scale is not None:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, scale)
    how |= {"optimizer": optimizer, "metrics": ["mae"]}
    model = compiled(model, mode, **how)
    before = model.get_weights()
    x, y = normal(7, 4), normal(7, 3, seed=1)
    logs = model.train_on_batch(x, y, return_dict=True)
    logs = {name: float(value) for name, value in logs.items()}
    return [a - b for a, b in zip(model.get_weights(), before)], logs


PARTS = {
    "whole": lambda mode: mode(),
    "in parts": lambda mode: kpg.Accumulated(microbatch_size=3, inner=mode()),
}


@pytest.mark.parametrize("execution", ["graph", "eager"])
@pytest.mark.parametrize("scale", [None, 128.0])
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("mode", [Plain, Summed])
def test_equals_keras(mode, parts, scale, *, execution):
    expected, logs = moved(None, scale, **EXECUTION[execution])
    found, own = moved(PARTS[parts](mode), scale, **EXECUTION[execution])
    assert_equal(found, expected, rtol=1e-4, atol=1e-6)
    assert own == pytest.approx(logs, rel=1e-5)


@pytest.mark.parametrize("parts", PARTS)
def test_its_own_sums_are_used(parts):
    """The penalties are added afterwards, once."""
    steps = [moved(PARTS[parts](mode))[0] for mode in (Plain, Doubled)]
    bias = 1
    np.testing.assert_allclose(steps[1][bias], 2 * steps[0][bias], rtol=1e-4)
    assert not np.allclose(steps[1][0], 2 * steps[0][0], rtol=1e-4)


def test_a_mode_without_sums_says_so():
    empty = type("Empty", (kpg.modes.GradientMode,), {})()
    with pytest.raises(NotImplementedError, match=r"must define partial_sums"):
        moved(empty)
    with pytest.raises(ValueError, match=r"or a mode with a method partial_su"):
        kpg.Accumulated(inner=empty)


def test_the_gradients_of_samples_need_a_graph():
    eager = type("Eager", (Summed,), {"needs_graph": False})()
    moved(eager)
    with pytest.raises(ValueError, match="Set `needs_graph = True` in the"):
        moved(eager, run_eagerly=True)


def test_the_gradients_of_mixed_samples_are_refused():
    mixing = keras.layers.BatchNormalization(name="norm")
    model = compiled(net(mixing, shape=(4,)), Summed())
    with pytest.raises(ValueError, match="layer 'norm'"):
        model.train_on_batch(np.ones((2, 4)), np.ones((2, 3)))
