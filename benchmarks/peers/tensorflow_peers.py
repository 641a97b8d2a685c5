"""Per-sample gradients with TensorFlow alone."""

import keras
import tensorflow as tf

from benchmarks.harness.job import CLIP_NORM, LEARNING_RATE, Job
from benchmarks.harness.keras_models import build_model, make_loss
from benchmarks.harness.rivals import CLIPPED


def build(rival, model, task, *, data, xla):
    net = build_model(model)
    loss = make_loss(model)
    one = _one_sample(net, loss)
    if task == CLIPPED:
        step = _clipped_step(rival, net, loss, one=one, xla=xla)
    elif rival == "loop":
        step = _python_loop(one)
    else:
        step = tf.function(
            lambda x, y: _materialise(rival, net, loss, one=one, x=x, y=y),
            jit_compile=xla,
            autograph=False,
        )
    return Job(lambda: step(*data), net.get_weights)


def _one_sample(net, loss):
    """The gradient of one sample's loss, dense."""

    def one(data):
        x, y = data
        with tf.GradientTape() as tape:
            value = loss(y[None], net(x[None], training=True))
        found = tape.gradient(value, _tensors(net))
        return [tf.convert_to_tensor(g) for g in found]

    return one


def _tensors(net):
    return [v.value for v in net.trainable_variables]


def _materialise(rival, net, loss, *, one, x, y):
    """All per-sample gradients, each (n, *shape)."""
    if rival == "vectorized_map":
        return tf.vectorized_map(one, (x, y))
    if rival == "map_fn":
        signature = [
            tf.TensorSpec(v.shape, v.dtype) for v in net.trainable_variables
        ]
        return tf.map_fn(one, (x, y), fn_output_signature=signature)
    if rival == "jacobian":
        with tf.GradientTape() as tape:
            unreduced = type(loss)(from_logits=True, reduction="none")
            values = unreduced(y, net(x, training=True))
        found = tape.jacobian(values, _tensors(net))
        return [tf.convert_to_tensor(g) for g in found]
    raise ValueError(f"unknown rival {rival!r}")


def _python_loop(one):
    """One call of a compiled function for each sample."""
    compiled = tf.function(one, autograph=False)

    def step(x, y):
        found = [compiled((x[i], y[i])) for i in range(len(x))]
        return [tf.stack(parts) for parts in zip(*found)]

    return step


def _clipped_step(rival, net, loss, *, one, xla):
    optimizer = keras.optimizers.SGD(LEARNING_RATE)
    optimizer.build(net.trainable_variables)

    @tf.function(jit_compile=xla, autograph=False)
    def step(x, y):
        if rival == "loop":
            total = _clipped_loop(one, net, x, y)
        else:
            total = _clipped(_materialise(rival, net, loss, one=one, x=x, y=y))
        n = tf.cast(tf.shape(x)[0], tf.float32)
        gradients = [g / n for g in total]
        optimizer.apply(gradients, net.trainable_variables)

    return step


def _clipped(gradients):
    """The sum of clipped gradients, from materialised ones."""
    squares = [
        tf.reduce_sum(tf.square(g), list(range(1, g.shape.rank)))
        for g in gradients
    ]
    weights = _factor(tf.sqrt(tf.add_n(squares)))
    return [tf.tensordot(weights, g, 1) for g in gradients]


def _clipped_loop(one, net, x, y):
    """The sum of clipped gradients, one sample at a time."""

    def add(i, *total):
        gradients = one((x[i], y[i]))
        weight = _factor(tf.linalg.global_norm(gradients))
        return i + 1, *[t + weight * g for t, g in zip(total, gradients)]

    zeros = [tf.zeros(v.shape) for v in net.trainable_variables]
    found = tf.while_loop(
        lambda i, *_: i < tf.shape(x)[0],
        add,
        (0, *zeros),
    )
    return found[1:]


def _factor(norms):
    return CLIP_NORM / tf.maximum(norms, CLIP_NORM)
