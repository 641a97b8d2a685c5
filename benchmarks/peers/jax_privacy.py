"""The clipped step of jax_privacy's Keras API, on Keras's JAX backend."""

import keras
from jax_privacy import keras_api

from benchmarks.harness import keras_large, keras_models, large_models, models
from benchmarks.harness.job import CLIP_NORM, LEARNING_RATE, Job
from benchmarks.peers.jax import card as card


def build(rival, model, task, *, batch):
    del rival, task
    if model in large_models.MODELS:
        net, loss = keras_large.build_model(model), keras_large.make_loss()
        x, y = large_models.make_batch(model, batch)
    else:
        net = keras_models.build_model(model)
        loss = keras_models.make_loss(model)
        x, y = models.make_batch(model, batch)
        y = keras_models.targets(model, y)
    trainable = list(net.trainable_weights)
    net = keras_api.make_private(
        net,
        keras_api.DPKerasConfig(
            epsilon=1.0,
            delta=1e-5,
            clipping_norm=CLIP_NORM,
            batch_size=batch,
            gradient_accumulation_steps=1,
            train_steps=10**6,
            train_size=batch,
            noise_multiplier=1e-9,
        ),
    )
    net.compile(keras.optimizers.SGD(LEARNING_RATE), loss)

    def step():
        float(net.train_on_batch(x, y))

    return Job(step, lambda: [w.numpy() for w in trainable])
