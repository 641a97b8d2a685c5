"""Plain Keras, keras_pergrad, and what TensorFlow offers by itself."""

import functools

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from benchmarks.harness import large_models
from benchmarks.harness.job import CLIP_NORM, LEARNING_RATE, Job
from benchmarks.harness.keras_models import build_model, make_loss, targets
from benchmarks.harness.models import make_batch
from benchmarks.harness.rivals import MATERIALISED, REAL_MODELS
from benchmarks.peers import tensorflow_peers
from keras_pergrad.keras_internals.losses.losses import total_loss
from keras_pergrad.uses.traced_step import TracedStep


def build(rival, model, task, *, batch, size=None, known=False):
    if task == REAL_MODELS:
        # Imported here, since it needs the tests.
        from benchmarks.peers import real_models

        return real_models.build(rival, model, size, known=known)
    if rival.endswith("_replicas"):
        return _replicas(rival.removesuffix("_replicas"), model, batch)
    base, xla, _ = rival.removesuffix("_eigen").partition("_xla")
    if model in large_models.MODELS:
        return _large(base, model, batch, xla=bool(xla))
    x, y = make_batch(model, batch)
    data = tf.constant(x), tf.constant(targets(model, y))
    if base == "plain":
        net = build_model(model)
        return _fit_step(net, make_loss(model), data, xla=bool(xla))
    if base == "ours" and task == MATERIALISED:
        return _materialised(model, data, bool(xla))
    if base in ("ours", "ours_statistics"):
        net = build_model(model, kpg.PerGradModel)
        mode = _clipped() if base == "ours" else _statistics()
        return _fit_step(
            net, make_loss(model), data, xla=bool(xla), gradient_mode=mode
        )
    if base.startswith("gramian_"):
        net = build_model(model, kpg.PerGradModel)
        mode = kpg.Vectorized(base.removeprefix("gramian_"))
        return _fit_step(
            net, make_loss(model), data, xla=bool(xla), gradient_mode=mode
        )
    if base == "ours_accumulated":
        net = build_model(model, kpg.PerGradModel)
        return _fit_step(
            net, make_loss(model), data, xla=False, gradient_mode=_parts()
        )
    if base == "ours_bare":
        return _bare_step(model, data)
    return tensorflow_peers.build(base, model, task, data=data, xla=bool(xla))


def card():
    """Return the GPU's bytes in use, and their peak since the last call."""
    memory = tf.config.experimental.get_memory_info("GPU:0")
    tf.config.experimental.reset_memory_stats("GPU:0")
    return memory["current"], memory["peak"]


if not tf.config.list_physical_devices("GPU"):
    card = None


def _large(base, model, batch, *, xla):
    from benchmarks.harness import keras_large

    data = tuple(map(tf.constant, large_models.make_batch(model, batch)))
    settings = {"gradient_mode": _clipped()} if base == "ours" else {}
    net = keras_large.build_model(
        model, kpg.PerGradModel if settings else keras.Model
    )
    return _fit_step(net, keras_large.make_loss(), data, xla=xla, **settings)


def _clipped():
    return kpg.Vectorized(aggregation=kpg.ClippedMean(CLIP_NORM))


def _parts():
    return kpg.Accumulated(microbatch_size=16, inner=_clipped())


def _statistics():
    return kpg.Vectorized(statistics=True)


def _fit_step(net, loss, data, *, xla, **kwargs):
    """What `fit` runs for each batch, with its logs read."""
    # On a GPU "auto" is XLA.
    net.compile(
        keras.optimizers.SGD(LEARNING_RATE),
        loss,
        jit_compile=True if xla else False if card else "auto",
        **kwargs,
    )
    return _steps(net, tf.data.Dataset.from_tensors(data).repeat())


#: Megabytes of a card for either half of it.
HALF_MB = 16_000


@functools.cache
def _two_devices():
    """The one strategy of a process that runs nothing else."""
    kind = "GPU" if card else "CPU"
    half = tf.config.LogicalDeviceConfiguration(HALF_MB if card else None)
    physical = tf.config.list_physical_devices(kind)[0]
    tf.config.set_logical_device_configuration(physical, [half] * 2)
    one = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy([f"{kind}:0", f"{kind}:1"], one)


def _replicas(base, model, batch):
    """The same on two logical devices."""
    from benchmarks.harness import keras_large

    strategy, is_large = _two_devices(), model in large_models.MODELS
    with strategy.scope():
        settings = {"gradient_mode": _clipped()} if base == "ours" else {}
        make = keras_large.build_model if is_large else build_model
        net = make(model, kpg.PerGradModel if settings else keras.Model)
        loss = keras_large.make_loss() if is_large else make_loss(model)
        net.compile(keras.optimizers.SGD(LEARNING_RATE), loss, **settings)
    if is_large:
        data = large_models.make_batch(model, batch)
    else:
        x, y = make_batch(model, batch)
        data = x, targets(model, y)
    data = tf.data.Dataset.from_tensor_slices(data)
    data = data.batch(batch).cache().repeat()
    return _steps(net, strategy.experimental_distribute_dataset(data))


def _steps(net, data):
    iterator = iter(data)
    net.make_train_function()

    def step():
        logs = net.train_function(iterator)
        np.asarray(logs["loss"])

    return Job(step, net.get_weights)


def _bare_step(model, data):
    """Gradients and their application in a function of its own."""
    net = build_model(model, kpg.PerGradModel)
    optimizer = keras.optimizers.SGD(LEARNING_RATE)
    net.compile(optimizer, make_loss(model), gradient_mode=_clipped())
    net.gradient_mode.build(net)
    optimizer.build(net.trainable_variables)

    @tf.function(autograph=False)
    def step(x, y):
        found = net.gradient_mode.step(net, x, y, None)
        optimizer.apply(found.gradients, net.trainable_variables)

    return Job(lambda: step(*data), net.get_weights)


def _materialised(model, data, xla):
    """All per-sample gradients, as `kpg.per_sample_gradients` has them."""
    net = build_model(model)
    net.compile(loss=make_loss(model))
    n = len(data[0])

    @tf.function(jit_compile=xla, autograph=False)
    def gradients(x, y):
        tape = TracedStep(net, (x, y, None))
        with tape:
            loss = total_loss(
                net, x, y, y_pred=tape.forward(x), sample_weight=None
            )
        return [f.materialize() * n for f in tape.sample_gradients(loss)]

    return Job(lambda: gradients(*data), net.get_weights)
