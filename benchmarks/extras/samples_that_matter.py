"""What the Fisher information and random projections cost, by clipped steps.

Bare steps of benchmark models at batch 64, in one process and in turns: the
plain one, the clipped one; the sums of one batch of `fisher`, with labels that
are drawn; the projections of all samples to 4,096 numbers in total, without
clipping and after it. Prints milliseconds and clipped steps.

    python -m benchmarks.extras.samples_that_matter [--rounds 20] [model ...]
"""

import argparse
import functools

import tensorflow as tf

from benchmarks.extras.further_questions import BATCH, NORM, _apply, plain
from benchmarks.harness.keras_models import build_model, make_loss, targets
from benchmarks.harness.models import SPECS, make_batch
from benchmarks.harness.turns import in_turns, milliseconds, show
from keras_pergrad.factors.blanking import select
from keras_pergrad.influence.fisher_sums import FisherStatistic
from keras_pergrad.influence.likelihoods import Likelihood
from keras_pergrad.influence.projected_factors import project
from keras_pergrad.influence.projection import projections
from keras_pergrad.uses import TracedStep

NUMBERS = 4096
MODELS = ("mlp", "ffnn", "mnist", "cifar10", "embed", "lstm", "transformer")


def clipped(model, loss, x, y, projected=None):
    """The mean of clipped gradients, applied, and projections of all."""
    step = TracedStep(model, (x, y, None))
    with step:
        value = loss(y, step.forward(x))
    factors = step.sample_gradients(value)
    factors = [factor.held() for factor in factors]
    squares = tf.add_n([factor.squared_norms() for factor in factors])
    weights = tf.minimum(1.0, NORM / (BATCH * tf.sqrt(squares)))
    factors = select(factors, tf.math.is_finite(squares))
    _apply(model, [factor.weighted_sum(weights) for factor in factors])
    if projected is None:
        return value
    return [project(f, p) for f, p in zip(factors, projected)]


def projected_only(model, loss, x, y, projected):
    """The projections of all samples, without a step."""
    step = TracedStep(model, (x, y, None))
    with step:
        value = loss(y, step.forward(x))
    factors = step.sample_gradients(value)
    return [project(f, p) for f, p in zip(factors, projected)]


def _fisher(name, model, kind):
    bernoulli = name != "mlp" and SPECS[name].outputs == 1
    one = Likelihood("bernoulli" if bernoulli else "categorical", True)
    return FisherStatistic(kind, (one,), True, training=True).trace(model)


def _ask(function, model, x, seed):
    # The function does not keep the model alive.
    return function(x, None, None, seed)


def _mlp():
    """A net of dense layers on vectors whose products take the time."""
    import keras

    layers = [keras.layers.Dense(512, activation="relu") for _ in range(3)]
    layers = [keras.Input((784,)), *layers, keras.layers.Dense(10)]
    rng = tf.random.Generator.from_seed(1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x = rng.normal([BATCH, 784])
    y = rng.uniform([BATCH], maxval=10, dtype=tf.int32)
    return lambda: keras.Sequential(layers_again(layers)), loss, x, y


def layers_again(layers):
    """Return new layers of the same configuration."""
    first, *others = layers
    return [first, *(type(one).from_config(one.get_config()) for one in others)]


def _parts(name):
    if name == "mlp":
        return _mlp()
    x, y = make_batch(name, BATCH)
    x, y = tf.constant(x), tf.constant(targets(name, y))
    return lambda: build_model(name), make_loss(name), x, y


def measure(name, rounds):
    """Return the milliseconds of each step, by its name."""
    make, loss, x, y = _parts(name)

    def function(step, *more):
        model = make()
        traced = tf.function(
            lambda x, y: step(model, loss, x, y, *more), autograph=False
        )
        return lambda: traced(x, y)

    shapes = [v.shape for v in make().trainable_variables]
    projected = projections(shapes, NUMBERS, seed=0)
    functions = {
        "clipped": function(clipped),
        "plain": function(lambda *given: plain(*given, None)),
        "project": function(projected_only, projected),
        "clipped, project": function(clipped, projected),
    }
    for kind in ("diagonal", "kfac"):
        model = make()
        asked = _fisher(name, model, kind)
        seed = tf.constant([0, 0], tf.int64)
        functions[f"fisher, {kind}"] = functools.partial(
            _ask, asked, model, x, seed
        )
    for one in functions.values():
        one()
    return in_turns(functions, rounds, _timed)


def _timed(kind, function):
    del kind

    def step():
        tf.nest.map_structure(
            lambda t: tf.convert_to_tensor(t).numpy().flat[:1],
            tf.nest.flatten(function()),
        )

    return milliseconds(step)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("models", nargs="*", default=MODELS)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.get_logger().setLevel("ERROR")  # steps are traced once each
    for name in arguments.models:
        print(f"{name}, batch {BATCH}")
        show(measure(name, arguments.rounds), "clipped")


if __name__ == "__main__":
    main()
