"""Bare steps of benchmark models, in turns: the plain and the clipped one."""

import argparse
import functools

import tensorflow as tf

from benchmarks.harness.keras_models import build_model, make_loss, targets
from benchmarks.harness.models import make_batch
from benchmarks.harness.turns import in_turns, milliseconds, show
from keras_pergrad.factors.sampled import select
from keras_pergrad.uses import TracedStep

BATCH, NORM, RATE = 64, 1.0, 1e-3


def parts(name):
    """Return what builds a benchmark model, its loss, and a batch of it."""
    x, y = make_batch(name, BATCH)
    x, y = tf.constant(x), tf.constant(targets(name, y))
    return functools.partial(build_model, name), make_loss(name), x, y


def traced(step, model, loss, *, x, y):
    """Return a function of no arguments that runs a step on the batch."""
    function = tf.function(
        lambda x, y: step(model, loss, x, y), autograph=False
    )
    return lambda: function(x, y)


def plain(model, loss, x, y):
    """The gradient of the batch, applied."""
    with tf.GradientTape() as tape:
        value = loss(y, model(x, training=True))
    _apply(model, tape.gradient(value, model.trainable_variables))
    return value


def factors_of(model, loss, x, y):
    """The loss, and the factors of its gradients."""
    step = TracedStep(model, (x, y, None))
    with step:
        value = loss(y, step.forward(x))
    return value, step.sample_gradients(value)


def clipped(model, loss, x, y):
    """The mean of clipped gradients, applied: the loss, and the factors."""
    value, factors = factors_of(model, loss, x, y)
    factors = [factor.held() for factor in factors]
    squares = tf.add_n([factor.squared_norms() for factor in factors])
    weights = tf.minimum(1.0, NORM / (BATCH * tf.sqrt(squares)))
    factors = select(factors, tf.math.is_finite(squares))
    _apply(model, [factor.weighted_sum(weights) for factor in factors])
    return value, factors


def _apply(model, gradients):
    for variable, gradient in zip(model.trainable_variables, gradients):
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.IndexedSlices(
                RATE * gradient.values, gradient.indices, gradient.dense_shape
            )
            variable.value.scatter_sub(values)
        else:
            variable.value.assign_sub(RATE * gradient)


def _timed(kind, function):
    del kind

    def step():
        for tensor in tf.nest.flatten(function()):
            tf.convert_to_tensor(tensor).numpy().flat[:1]

    return milliseconds(step)


def main(description, make_steps, unit, *, models, rounds):
    """Time the steps of each model, and print them.

    Args:
        description: of the command.
        make_steps: of a model's name, functions of no arguments by name.
        unit: the name of the step that the others are counted in.
        models: the names of those timed by default.
        rounds: how often each is timed by default.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("models", nargs="*", default=models)
    given = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.get_logger().setLevel("ERROR")  # steps are traced once each
    for name in given.models:
        print(f"{name}, batch {BATCH}")
        steps = make_steps(name)
        for step in steps.values():
            step()
        show(in_turns(steps, given.rounds, _timed), unit)
