"""What `dot` and `sum_of_squares` cost after a clipped step.

Bare steps of two benchmark models at batch 64, in one process and in turns:
the plain one, the clipped one, and this with each question to all factors, for
a direction that is given. Prints milliseconds and plain steps.

    python -m benchmarks.extras.further_questions [--rounds 12] [model ...]
"""

import argparse
import functools

import tensorflow as tf

from benchmarks.harness.keras_models import build_model, make_loss, targets
from benchmarks.harness.models import make_batch
from benchmarks.harness.turns import in_turns, milliseconds, show
from keras_pergrad.factors.blanking import select
from keras_pergrad.uses import TracedStep

BATCH, NORM, RATE = 64, 1.0, 1e-3


def plain(model, loss, x, y, direction):
    """The gradient of the batch, applied."""
    with tf.GradientTape() as tape:
        value = loss(y, model(x, training=True))
    _apply(model, tape.gradient(value, model.trainable_variables))
    return value


def clipped(model, loss, x, y, direction, *, question=None):
    """The mean of clipped gradients, applied, and the answers of factors."""
    step = TracedStep(model, (x, y, None))
    with step:
        value = loss(y, step.forward(x))
    factors = step.sample_gradients(value)
    factors = [factor.held() for factor in factors]
    squares = tf.add_n([factor.squared_norms() for factor in factors])
    weights = tf.minimum(1.0, NORM / (BATCH * tf.sqrt(squares)))
    factors = select(factors, tf.math.is_finite(squares))
    _apply(model, [factor.weighted_sum(weights) for factor in factors])
    if question == "dot":
        dots = [f.dot(d) for f, d in zip(factors, direction)]
        return value, tf.add_n(dots)
    if question == "sum_of_squares":
        return value, [factor.sum_of_squares() for factor in factors]
    return value


def _apply(model, gradients):
    for variable, gradient in zip(model.trainable_variables, gradients):
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.IndexedSlices(
                RATE * gradient.values, gradient.indices, gradient.dense_shape
            )
            variable.value.scatter_sub(values)
        else:
            variable.value.assign_sub(RATE * gradient)


STEPS = {
    "plain": plain,
    "clipped": clipped,
    "clipped, dot": lambda *args: clipped(*args, question="dot"),
    "clipped, sum_of_squares": lambda *args: clipped(
        *args, question="sum_of_squares"
    ),
}


def measure(name, rounds):
    """Return the milliseconds of each step, by its name."""
    loss = make_loss(name)
    x, y = make_batch(name, BATCH)
    x, y = tf.constant(x), tf.constant(targets(name, y))
    rng = tf.random.Generator.from_seed(0)
    functions = {}
    for kind, step in STEPS.items():
        model = build_model(name)
        direction = [rng.normal(v.shape) for v in model.trainable_variables]
        function = tf.function(
            lambda *given, step=step, model=model: step(model, loss, *given),
            autograph=False,
        )
        functions[kind] = functools.partial(function, x, y, direction)
        functions[kind]()
    return in_turns(functions, rounds, _timed)


def _timed(kind, function):
    del kind
    return milliseconds(
        lambda: tf.convert_to_tensor(tf.nest.flatten(function())[0]).numpy()
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("models", nargs="*", default=["transformer", "cifar10"])
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.get_logger().setLevel("ERROR")  # steps are traced once each
    for name in arguments.models:
        print(f"{name}, batch {BATCH}")
        show(measure(name, arguments.rounds), "plain")


if __name__ == "__main__":
    main()
