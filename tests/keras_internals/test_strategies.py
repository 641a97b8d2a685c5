"""Strategies that are not served are refused by name."""

import keras
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.keras_internals.models.parts import patched_attribute
from keras_pergrad.keras_internals.replicas import strategies
from keras_pergrad.keras_internals.replicas.advice import advise

UNSERVED = [
    tf.distribute.TPUStrategy,
    tf.distribute.ParameterServerStrategy,
    tf.distribute.experimental.CentralStorageStrategy,
]


@pytest.mark.parametrize("strategy", UNSERVED)
def test_refused_by_name(strategy):
    inputs = keras.Input((3,))
    model = kpg.PerGradModel(inputs, keras.layers.Dense(1)(inputs))
    # One that is connected to nothing: only its class is looked at.
    created = strategy.__new__(strategy)
    with (
        patched_attribute(model, "_distribute_strategy", created),
        pytest.raises(ValueError, match=strategy.__name__),
    ):
        model.compile("sgd", "mse")
    model.compile("sgd", "mse")


@pytest.mark.parametrize("strategy", strategies.SUPPORTED_STRATEGIES)
def test_served(strategy):
    strategies.require_supported(strategy.__new__(strategy))


def test_one_device_is_as_without_a_strategy():
    results = []
    for strategy in (None, tf.distribute.OneDeviceStrategy("CPU:0")):
        keras.utils.set_random_seed(3)
        with (strategy or tf.distribute.get_strategy()).scope():
            inputs = keras.Input((3,))
            model = kpg.PerGradModel(inputs, keras.layers.Dense(1)(inputs))
            model.compile("sgd", "mse", gradient_mode="vectorized")
        x, y = tf.random.normal((7, 3), seed=1), tf.ones((7, 1))
        history = model.fit(x, y, batch_size=4, verbose=0, shuffle=False)
        results.append(history.history["loss"])
    assert results[0] == pytest.approx(results[1])


def test_only_errors_of_several_workers_are_explained():
    error = tf.errors.UnavailableError(None, None, "gone")
    advise(error, tf.distribute.get_strategy())
    assert not getattr(error, "__notes__", [])
