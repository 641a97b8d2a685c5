"""Modes of one's own that supply the sums of a part of a batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg


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


def moved(cls, optimizer=None, **arguments):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((4,))
    h = keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2")
    h = keras.layers.ActivityRegularization(l2=0.1)(h(inputs))
    model = cls(inputs, keras.layers.Dense(3)(h))
    optimizer = optimizer or keras.optimizers.SGD(0.5)
    model.compile(optimizer, "mse", metrics=["mae"], **arguments)
    data = np.random.default_rng(0)
    x, y = data.normal(size=(7, 4)), data.normal(size=(7, 3))
    before = [np.copy(w) for w in model.get_weights()]
    logs = model.train_on_batch(x, y, return_dict=True)
    logs = {name: float(value) for name, value in logs.items()}
    after = model.get_weights()
    return [a - b for a, b in zip(after, before)], logs


MODES = {
    "whole": lambda mode: mode(),
    "in parts": lambda mode: kpg.Accumulated(microbatch_size=3, inner=mode()),
}


@pytest.mark.parametrize("execution", ["graph", "eager"])
@pytest.mark.parametrize("parts", MODES)
def test_equals_keras(parts, execution):
    arguments = {"run_eagerly": execution == "eager", "jit_compile": False}
    expected, logs = moved(keras.Model, **arguments)
    mode = MODES[parts](Plain)
    steps, own = moved(kpg.PerGradModel, gradient_mode=mode, **arguments)
    for step, right in zip(steps, expected):
        np.testing.assert_allclose(step, right, rtol=1e-4, atol=1e-6)
    assert own == pytest.approx(logs, rel=1e-5)


def test_loss_scale():
    def scaled():
        inner = keras.optimizers.SGD(0.5)
        return keras.optimizers.LossScaleOptimizer(inner, 128.0)

    expected, _ = moved(keras.Model, scaled(), jit_compile=False)
    for mode in (Plain(), MODES["in parts"](Plain)):
        steps, _ = moved(kpg.PerGradModel, scaled(), gradient_mode=mode)
        for step, right in zip(steps, expected):
            np.testing.assert_allclose(step, right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("parts", MODES)
def test_its_own_sums_are_used(parts):
    """The penalties are added afterwards, once."""
    steps = [
        moved(kpg.PerGradModel, gradient_mode=MODES[parts](mode))[0]
        for mode in (Plain, Doubled)
    ]
    bias = 1
    np.testing.assert_allclose(steps[1][bias], 2 * steps[0][bias], rtol=1e-4)
    assert not np.allclose(steps[1][0], 2 * steps[0][0], rtol=1e-4)


def test_a_mode_without_sums_says_so():
    with pytest.raises(NotImplementedError, match=r"must define partial_sums"):
        moved(
            kpg.PerGradModel,
            gradient_mode=type("Empty", (kpg.modes.GradientMode,), {})(),
        )
    with pytest.raises(ValueError, match=r"or a mode with a method partial_su"):
        kpg.Accumulated(inner=type("Empty", (kpg.modes.GradientMode,), {})())


class Summed(kpg.modes.GradientMode):
    """The sum of the samples' gradients, from their factors."""

    needs_graph = True

    def partial_sums(self, model, part):
        y_pred, factors = kpg.modes.sample_gradients(model, part)
        sums = [tf.reduce_sum(f.materialize(), 0) for f in factors]
        return kpg.modes.PartialSums(y_pred, sums)


@pytest.mark.parametrize("execution", ["graph", "eager"])
@pytest.mark.parametrize("scale", [None, 128.0])
@pytest.mark.parametrize("parts", MODES)
def test_the_gradients_of_samples_add_up(parts, scale, execution):
    def optimizer():
        inner = keras.optimizers.SGD(0.5)
        if scale is None:
            return inner
        return keras.optimizers.LossScaleOptimizer(inner, scale)

    arguments = {"run_eagerly": execution == "eager", "jit_compile": False}
    expected, logs = moved(keras.Model, optimizer(), **arguments)
    mode = MODES[parts](Summed)
    steps, own = moved(
        kpg.PerGradModel, optimizer(), gradient_mode=mode, **arguments
    )
    for step, right in zip(steps, expected):
        np.testing.assert_allclose(step, right, rtol=1e-4, atol=1e-6)
    assert own == pytest.approx(logs, rel=1e-5)


def test_the_gradients_of_samples_need_a_graph():
    eager = type("Eager", (Summed,), {"needs_graph": False})()
    moved(kpg.PerGradModel, gradient_mode=eager)
    with pytest.raises(ValueError, match="Set `needs_graph = True` in the"):
        moved(kpg.PerGradModel, gradient_mode=eager, run_eagerly=True)


def test_the_gradients_of_mixed_samples_are_refused():
    inputs = keras.Input((4,))
    h = keras.layers.BatchNormalization(name="norm")(inputs)
    model = kpg.PerGradModel(inputs, keras.layers.Dense(3)(h))
    model.compile("sgd", "mse", gradient_mode=Summed())
    with pytest.raises(ValueError, match="layer 'norm'"):
        model.train_on_batch(np.ones((2, 4)), np.ones((2, 3)))
