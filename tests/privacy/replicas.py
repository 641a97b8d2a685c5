"""Private training on two replicas, in a process of its own.

`mirrored`: two halves of a "CPU" or a "GPU" in this process; else one of two
workers, as `tests.keras_internals.distribution.cluster` starts them. Prints
one line of JSON in the end.
"""

import json
import sys
import tempfile

import tensorflow as tf

from tests.keras_internals.distribution.split import split_device

if __name__ == "__main__":
    # Before anything else of TensorFlow runs.
    arguments = json.loads(sys.argv[1])
    if arguments["mirrored"]:
        strategy = split_device(arguments["mirrored"])()
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()

import keras
import numpy as np

import keras_pergrad as kpg
from tests.privacy import tiny
from tests.privacy.tiny import N, X, Y, fit, flat, model, normal_draws, private

RATE = 1e-4


def trained(training, without=(), epochs=1, *, parts=()):
    """The model, and how far it moved, times the expected size."""
    with strategy.scope():
        net = model(training, keras.optimizers.SGD(RATE), parts)
    data = training.batches(X, Y)
    data.excluded_rows = np.asarray(without, int)
    before = flat(net)
    history = fit(net, training, epochs, data=data)
    return net, (before - flat(net)) * 10 / RATE, history


def clipped_sums(**arguments):
    """The sum of both replicas' parts, against NumPy on what they drew."""
    training = private(noise_multiplier=1e-3, clip_norm=0.05, **arguments)
    net, found, history = trained(training)
    plain = model(training)
    plain.compile("sgd", "binary_crossentropy")
    data = training.batches(X, Y)
    expected, drawn = 0, []
    for step in range(4):
        for part in range(2):
            x, y = data.batch(net.aggregation_state, step, part, parts=2)
            drawn.append(len(y))
            if not len(y):
                continue
            x = np.reshape(x, (-1, 3))
            views = len(x) // len(y)
            y = np.repeat(y, views, 0)
            gradients = kpg.per_sample_gradients(plain, x, y, verbose=0)
            each = [np.reshape(g, (drawn[-1], views, -1)) for g in gradients]
            means = np.concatenate(each, 2).mean(1)
            factors = np.minimum(1, 0.05 / np.linalg.norm(means, axis=1))
            expected = expected + factors @ means
    return {
        "error": float(np.abs(found - expected).max()),
        "size": float(np.abs(expected).max()),
        "drawn": drawn,
        "updates": net.aggregation_state.updates,
        "epsilon": history["epsilon"][0],
        "alone": training.epsilon(4),
    }


def noise():
    """The deviation of noise over that of one draw, on no examples."""
    training = private(seed=0, clip_norm=0.05)
    # 321 numbers: their deviation is known to 4 %.
    parts = [keras.layers.Dense(64, activation="tanh")]
    moved = trained(training, range(N), epochs=4, parts=parts)[1]
    # Four epochs of four steps.
    return float(np.std(moved) / (2.0 * 0.05 * 4))


def correlated():
    """How far the noise of 16 steps is off what it should be, on no data."""
    training = private(noise="correlated", bands=3, steps=16)
    moved = trained(training, range(N), epochs=4)[1]
    sums = training.mechanism.strategy.inverse_times(np.ones(16))[::-1]
    expected = 2.0 * sums @ normal_draws(16)
    return float(np.abs(moved - expected).max() / np.abs(expected).max())


def resumed():
    """The steps of each phase, where training goes on on two replicas."""
    training = private(noise="correlated", bands=4, steps=16)
    alone = model(training)
    fit(alone, training)
    with tempfile.TemporaryDirectory() as folder:
        alone.save_weights(f"{folder}/net.weights.h5")
        with strategy.scope():
            net = model(training)
        net.load_weights(f"{folder}/net.weights.h5")
    fit(net, training)
    return [steps for _, steps in net.aggregation_state.spent]


def refusal():
    try:
        trained(private(sampling="fixed", batch_size=5))
    except ValueError as error:
        return str(error)


if __name__ == "__main__":
    results = {"sums": clipped_sums(), "noise": noise()}
    # Without a seed workers have one key, too: these numbers are compared.
    results["unseeded"] = trained(private(seed=None))[1].tolist()
    if arguments["mirrored"]:
        results["correlated"] = correlated()
        results["views"] = clipped_sums(**tiny.VIEWS)
        results["resumed"] = resumed()
        results["refusal"] = refusal()
    print(json.dumps(results))
