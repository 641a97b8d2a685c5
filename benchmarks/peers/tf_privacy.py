"""TF Privacy's Keras 2 model, with and without its fast clipping."""

import keras
import numpy as np
import tensorflow as tf
from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry
from tensorflow_privacy.privacy.keras_models import dp_keras_model

from benchmarks.harness.job import CLIP_NORM, LEARNING_RATE, Job
from benchmarks.harness.keras_models import build_model, make_loss, targets
from benchmarks.harness.models import make_batch


def build(rival, model, task, *, batch):
    del task
    fast = rival == "tf_privacy_fast"
    net = build_model(
        model,
        dp_keras_model.DPModel,
        # Clip norm, noise, microbatches, XLA, registry, in this order.
        *(CLIP_NORM, 0.0, None, False, _registry() if fast else None),
    )
    if fast and not net._enable_fast_peg_computation:
        raise ValueError("a layer is not in the layer registry")
    net.compile(keras.optimizers.SGD(LEARNING_RATE), make_loss(model))
    x, y = make_batch(model, batch)
    data = tf.constant(x), tf.constant(targets(model, y))
    iterator = iter(tf.data.Dataset.from_tensors(data).repeat())
    net.make_train_function()

    def step():
        logs = net.train_function(iterator)
        np.asarray(logs["loss"])

    return Job(step, net.get_weights)


def _registry():
    return layer_registry.make_default_layer_registry()
