"""Private training on two replicas, in a process of its own.

`mirrored`: two halves of a "CPU" or a "GPU" in this process; else one of two
workers, as `tests.keras_internals.distribution.cluster` starts them. Prints
one line of JSON in the end.
"""

import json
import sys

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
from keras_pergrad.keras_internals.state.saved import AggregationState
from tests.privacy.tiny import (
    N,
    X,
    Y,
    compile_privately,
    fit,
    model,
    normal_draws,
    private,
)

RATE = 1e-4


def wide(training, optimizer):
    """A model of 321 numbers, whose deviation is known to 4 %."""
    keras.utils.set_random_seed(4)
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(64, activation="tanh")(inputs)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    net = kpg.PerGradModel(inputs, outputs)
    compile_privately(net, training, optimizer)
    return net


def trained(training, without=(), epochs=1, make=model):
    """The model, and how far it moved, times the expected size."""
    with strategy.scope():
        net = make(training, keras.optimizers.SGD(RATE))
    data = training.batches(X, Y)
    data.excluded_rows = np.asarray(without, int)
    before = net.get_weights()
    history = fit(net, training, epochs, data=data)
    after = net.get_weights()
    moved = [
        ((a - b) * 10 / RATE).ravel()
        for a, b in zip(before, after, strict=True)
    ]
    return net, np.concatenate(moved), history


def shifted(x):
    return x + keras.random.normal((1, 3))


def clipped_sums(views=1, **arguments):
    """The sum of both replicas' parts, against NumPy on what they drew."""
    training = private(noise_multiplier=1e-3, clip_norm=0.05, **arguments)
    net, found, history = trained(training)
    plain = model(training)
    plain.compile("sgd", "binary_crossentropy")
    data = training.batches(X, Y)
    expected, drawn = 0, []
    for step in range(4):
        for part in range(2):
            x, y = data.batch(net.aggregation_state, step, part, 2)
            drawn.append(len(y))
            if not len(y):
                continue
            x, y = np.reshape(x, (-1, 3)), np.repeat(y, views, 0)
            gradients = kpg.per_sample_gradients(plain, x, y, verbose=0)
            flat = [np.asarray(g).reshape(len(x), -1) for g in gradients]
            means = np.concatenate(flat, 1).reshape(len(x) // views, views, -1)
            means = means.mean(1)
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
    moved = trained(training, range(N), epochs=4, make=wide)[1]
    # Four epochs of four steps.
    return float(np.std(moved) / (2.0 * 0.05 * 4))


def added_by_each_replica():
    """`noise`, where each replica adds noise of its own."""
    from keras_pergrad.keras_internals.replicas import replicas

    state = AggregationState
    sound_normal, sound_first = state.normal, replicas.from_first_replica

    def own(self, like, deviation):
        context = tf.distribute.get_replica_context()
        steps = tf.cast(tf.convert_to_tensor(self.phase_steps), tf.int32)
        first = context.replica_id_in_sync_group + 2 * steps
        seed = tf.stack([first, 100 * self.seed + tf.size(like)])
        drawn = tf.random.stateless_normal(tf.shape(like), seed)
        sound_normal(self, like, deviation)
        return drawn * deviation

    state.normal, replicas.from_first_replica = own, replicas.sum_over_replicas
    try:
        return noise()
    finally:
        state.normal, replicas.from_first_replica = sound_normal, sound_first


def correlated():
    """How far the noise of 16 steps is off what it should be, on no data."""
    training = private(noise="correlated", bands=3, steps=16)
    moved = trained(training, range(N), epochs=4)[1]
    sums = training.mechanism.strategy.inverse_times(np.ones(16))[::-1]
    expected = 2.0 * sums @ normal_draws(16)
    return float(np.abs(moved - expected).max() / np.abs(expected).max())


def refusal():
    training = private(sampling="fixed", batch_size=5)
    try:
        trained(training)
    except ValueError as error:
        return str(error)
    return None


if __name__ == "__main__":
    results = {"sums": clipped_sums(), "noise": noise()}
    if arguments["mirrored"]:
        results["correlated"] = correlated()
        results["views"] = clipped_sums(2, augmentations=2, augment=shifted)
        results["broken"] = added_by_each_replica()
        results["refusal"] = refusal()
    print(json.dumps(results))
