"""Data that are prepared elsewhere: the `tf.data` service feeds `fit`.

Where loading and augmenting outgrow the machine that trains, other machines
do it. Here dispatcher and worker run in this process; on a cluster each runs
on a machine of its own, and only the address changes. Trains once on what the
service sends and once on the same pipeline run here, and compares.

    python examples/data_service.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg

service = tf.data.experimental.service


def load(i):
    """Stands in for reading a file: one sample, made from its number."""
    x = tf.random.stateless_normal((20,), seed=(0, i))
    return x, tf.cast(x[0] * x[1] > 0, tf.int32)


def pipeline():
    return tf.data.Dataset.range(1000).map(load).batch(96)


def train(data):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((20,))
    hidden = keras.layers.Dense(32, activation="relu")(inputs)
    outputs = keras.layers.Dense(2, activation="softmax")(hidden)
    model = kpg.PerGradModel(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(0.01),
        "sparse_categorical_crossentropy",
        gradient_mode=kpg.Accumulated(
            steps=2, microbatch_size=32, inner=kpg.Vectorized("mean")
        ),
    )
    history = model.fit(data, epochs=3, verbose=0, shuffle=False)
    return model.get_weights(), history.history["loss"]


def main():
    dispatcher = service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    worker = service.WorkerServer(
        service.WorkerConfig(dispatcher_address=address)
    )
    # Every worker sends all samples; with DYNAMIC they would share them out.
    policy = service.ShardingPolicy.OFF
    sent = pipeline().apply(service.distribute(policy, dispatcher.target))
    # How many batches come, the service does not tell.
    sent = sent.apply(tf.data.experimental.assert_cardinality(11))
    weights, losses = train(sent)
    print(f"fed by the service at {dispatcher.target}: loss {losses[-1]:.4f}")
    right, losses = train(pipeline())
    print(f"fed by the pipeline itself: loss {losses[-1]:.4f}")
    difference = max(np.abs(a - b).max() for a, b in zip(weights, right))
    print(f"largest difference of the weights: {difference:.1e}")
    del worker  # It has served until here.


if __name__ == "__main__":
    main()
