"""A tiny model and its data, and what the tests of privacy share."""

import json

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.common.registry import serialize

N = 40
_rng = np.random.default_rng(5)
X = _rng.normal(size=(N, 3)).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")


def private(**arguments):
    """A `PrivateTraining` for X and Y, noise given."""
    defaults = {
        "noise_multiplier": 2.0,
        "delta": 1e-2,
        "samples": N,
        "batch_size": 10,
        "seed": 3,
        "user_ids": "unique",
    }
    return kpg.PrivateTraining(**{**defaults, **arguments})


def model(training, optimizer=None, **arguments):
    """A compiled logistic regression, the same each time."""
    keras.utils.set_random_seed(4)
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(1, activation="sigmoid")(inputs)
    result = kpg.PerGradModel(inputs, outputs)
    compile_privately(result, training, optimizer, **arguments)
    return result


def compile_privately(net, training, optimizer=None, **arguments):
    net.compile(
        optimizer or keras.optimizers.SGD(0.5),
        arguments.pop("loss", "binary_crossentropy"),
        gradient_mode=training.gradient_mode,
        **{"jit_compile": False, **arguments},
    )


def fit(net, training, epochs=1, callbacks=(), data=None, **arguments):
    data = training.batches(X, Y) if data is None else data
    history = net.fit(
        data,
        epochs=epochs,
        callbacks=[*callbacks, training.callback],
        verbose=0,
        **arguments,
    )
    return history.history


def normal_draws(steps, phase=0, seed=3):
    """What correlated noise of `model` is made of, (steps, weights)."""
    return np.stack(
        [
            np.concatenate(
                [
                    np.ravel(
                        tf.random.stateless_normal(
                            shape,
                            [(phase + 1) * 2**32 + seed, step * 2 + k],
                            alg="philox",
                        )
                    )
                    for k, shape in enumerate([(3, 1), (1,)])
                ]
            )
            for step in range(steps)
        ]
    )


def schedule_json(schedule):
    return json.dumps(serialize(schedule), sort_keys=True)
