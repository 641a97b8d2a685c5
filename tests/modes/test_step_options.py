"""What a model wants of its steps besides gradients, which no mode keeps."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_pergrad as kpg

X, Y = np.eye(6, 4, dtype="float32"), np.ones((6, 2), "float32")


class Halved(kpg.Vectorized):
    """A mode of one's own whose step takes the batch alone."""

    changes_gradients = True

    def step(self, model, x, y, sample_weight):
        step = super().step(model, x, y, sample_weight)
        step.gradients = [g / 2 for g in step.gradients]
        return step


class Norms(kpg.modes.StepReader):
    """Keeps the norms of the samples' gradients."""

    def __init__(self):
        self.found = []

    def read(self, samples):
        return {"norms": samples.squared_norms()}

    def receive(self, values):
        self.found.append(values["norms"].numpy())


def compiled(mode, **settings):
    model = kpg.PerGradModel.from_model(
        keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    )
    model.compile("sgd", "mse", gradient_mode=mode, **settings)
    return model


def fit(model):
    return model.fit(X, Y, verbose=0, shuffle=False).history


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_step_of_ones_own_is_watched_and_read(run_eagerly):
    model, reader = compiled(Halved(), run_eagerly=run_eagerly), Norms()
    with model.watch_gradients(), model.read_steps(reader):
        assert {"gradient_norm", "loss"} <= set(fit(model))
        fit(model)
    assert [norms.shape for norms in reader.found] == [(2, 6)] * 2
    assert set(fit(model)) == {"loss"}
    assert len(reader.found) == 2


def test_models_that_share_a_mode_have_options_of_their_own():
    mode = Halved()
    one, other, reader = compiled(mode), compiled(mode), Norms()
    before = dict(vars(mode))
    with one.watch_gradients(), one.read_steps(reader):
        assert one.gradient_mode is other.gradient_mode is mode
        assert "gradient_norm" in fit(one)
        assert set(fit(other)) == {"loss"}
    assert vars(mode) == before
    assert len(reader.found) == 1


def test_a_mode_that_is_not_the_compiled_one_has_none():
    model = compiled("vectorized")
    batch = tf.constant(X), tf.constant(Y)
    in_parts = kpg.Accumulated(microbatch_size=2, inner="vectorized")
    with model.watch_gradients():
        assert in_parts.step(model, *batch, None).statistics == {}


def test_compile_begins_with_none():
    model, reader = compiled("vectorized"), Norms()
    with model.watch_gradients(), model.read_steps(reader):
        fit(model)
        model.compile("sgd", "mse", gradient_mode="vectorized")
        assert not model.step_options.is_watched
        assert set(fit(model)) == {"loss"}
    assert len(reader.found) == 2  # a reader goes on
    assert not model.step_options.is_watched
    assert set(fit(model)) == {"loss"}
