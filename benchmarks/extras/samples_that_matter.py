"""What the Fisher information and random projections cost, by clipped steps.

Bare steps of benchmark models at batch 64, in one process and in turns: the
plain one, the clipped one; the sums of one batch of `fisher`, with labels that
are drawn; the projections of all samples to 4,096 numbers in total, without
clipping and after it. Prints milliseconds and clipped steps.

    python -m benchmarks.extras.samples_that_matter [--rounds 20] [model ...]
"""

import functools

import tensorflow as tf

from benchmarks.harness import bare_steps
from benchmarks.harness.bare_steps import BATCH
from benchmarks.harness.models import SPECS
from keras_pergrad.influence.fisher_sums import FisherStatistic
from keras_pergrad.influence.likelihoods import Likelihood
from keras_pergrad.influence.projected_factors import project
from keras_pergrad.influence.projection import projections

NUMBERS = 4096
MODELS = ("mlp", "ffnn", "mnist", "cifar10", "embed", "lstm", "transformer")


def _projected(factors_of, *given, projected):
    """The projections of all samples, of factors that a step returns."""
    _, factors = factors_of(*given)
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


def steps_of(name):
    """Return functions of no arguments by their names."""
    make, loss, x, y = _mlp() if name == "mlp" else bare_steps.parts(name)
    shapes = [v.shape for v in make().trainable_variables]
    projected = functools.partial(
        _projected, projected=projections(shapes, NUMBERS, seed=0)
    )
    steps = {
        "clipped": lambda *given: bare_steps.clipped(*given)[0],
        "plain": bare_steps.plain,
        "project": functools.partial(projected, bare_steps.factors_of),
        "clipped, project": functools.partial(projected, bare_steps.clipped),
    }
    functions = {
        kind: bare_steps.traced(step, make(), loss, x=x, y=y)
        for kind, step in steps.items()
    }
    for kind in ("diagonal", "kfac"):
        model = make()
        asked = _fisher(name, model, kind)
        seed = tf.constant([0, 0], tf.int64)
        functions[f"fisher, {kind}"] = functools.partial(
            _ask, asked, model, x, seed
        )
    return functions


if __name__ == "__main__":
    bare_steps.main(
        __doc__.splitlines()[0], steps_of, "clipped", models=MODELS, rounds=20
    )
