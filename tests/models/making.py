"""Small models and their data, made, compiled and trained in a line each."""

import contextlib

import keras
import numpy as np

import keras_pergrad as kpg

layers = keras.layers


def normal(*shape, seed=0):
    """Normal numbers, in the float type of Keras."""
    found = np.random.default_rng(seed).normal(size=shape)
    return found.astype(keras.config.floatx())


def integers(high, *shape, seed=0):
    """Whole numbers from 0 up to `high`, without it."""
    return np.random.default_rng(seed).integers(0, high, shape).astype("int32")


def net(*parts, shape=(5,), dtype=None, units=3, cls=keras.Model, seed=None):
    """Return a functional model: an input, `parts` in turn, a Dense layer.

    Args:
        parts: layers, or functions of a tensor.
        shape: of the input, without the samples.
        dtype: of the input.
        units: of the last layer; None leaves it out.
        cls: the model's class.
        seed: of the weights, set before the last layer is made. Layers in
            `parts` draw theirs when they are called here.
    """
    if seed is not None:
        keras.utils.set_random_seed(seed)
    inputs = hidden = keras.Input(shape, dtype=dtype)
    for part in parts:
        hidden = part(hidden)
    if units is not None:
        hidden = layers.Dense(units)(hidden)
    return cls(inputs, hidden)


def compiled(model, mode=None, loss="mse", rate=0.1, **settings):
    """Return `model`, compiled with SGD or `optimizer=`.

    With a gradient mode it becomes a `PerGradModel`, if it is none.
    """
    if mode is not None:
        settings["gradient_mode"] = mode
        if not isinstance(model, kpg.PerGradModel):
            model = kpg.PerGradModel.from_model(model)
    optimizer = settings.pop("optimizer", None) or keras.optimizers.SGD(rate)
    model.compile(optimizer, loss, **settings)
    return model


def trained(model, *data, seed=None, **settings):
    """Fit without shuffling and without output; return `model`."""
    if seed is not None:
        keras.utils.set_random_seed(seed)
    model.fit(*data, **{"verbose": 0, "shuffle": False, **settings})
    return model


def weights(model):
    """Copies of a model's weights and of its optimizer's variables."""
    kept = [*model.variables]
    if getattr(model, "optimizer", None) is not None:
        kept += model.optimizer.variables
    return [np.array(v) for v in kept]


@contextlib.contextmanager
def unchanged(model):
    """Assert that no weight of a model changes in a `with` block."""
    before = model.get_weights()
    yield
    assert_equal(model.get_weights(), before)


def assert_equal(found, expected, rtol=0.0, atol=0.0):
    """Assert that two models or lists of arrays hold equal numbers."""
    found, expected = (
        weights(v) if isinstance(v, keras.Model) else v
        for v in (found, expected)
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
