"""What in-run values of samples cost, by plain steps.

    python -m benchmarks.extras.sample_values [--rounds 15] [--write]
        [model ...]

Steps of `fit`'s own train function, all in one process and in turns: the plain
step of `gradient_mode="batch"`; the gradient of a validation batch of a quarter
of the size alone, by plain TensorFlow; then steps of `SampleValues`: of first
order, with random projections to 4,096 numbers, with the Hessian, and with a
validation gradient in every tenth step only. A round takes some steps of each
and the minimum of them; the table has the medians over rounds. With `--write`
it replaces the one between the marks of benchmarks/results/influence.md.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import contextlib
import statistics

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from benchmarks.harness import tables
from benchmarks.harness.keras_models import build_model, make_loss, targets
from benchmarks.harness.models import make_batch
from benchmarks.harness.turns import in_turns, milliseconds
from keras_pergrad.common.batches import with_numbers
from keras_pergrad.influence.validation_gradient import ValidationGradient
from keras_pergrad.influence.value_reader import ValueReader

BATCH, NUMBERS = 64, 4096
MODELS = "mlp", "mnist", "cifar10", "transformer", "gpt2_causal"
WAYS = {
    "values": {},
    "projected": {"projection": NUMBERS},
    "order 2": {"order": 2},
    "every 10": {"every": 10},
}
PLACE = "influence.md#sample values"


def _mlp():
    """Dense layers on vectors, whose products take the time."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(512, activation="relu") for _ in range(3)]
    net = [keras.Input((784,)), *layers, keras.layers.Dense(10)]
    rng = np.random.default_rng(1)
    x = rng.normal(size=(BATCH, 784)).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras.Sequential(net), loss, x, rng.integers(0, 10, BATCH)


def _gpt2():
    from tests import real_models

    keras.utils.set_random_seed(0)
    model, x, y = real_models.MODELS["gpt2_causal"]("bench")
    return model, real_models.loss(), x, y


def _of_spec(name):
    x, y = make_batch(name, BATCH)
    keras.utils.set_random_seed(0)
    return build_model(name), make_loss(name), x, targets(name, y)


def made(name):
    """Return (model, loss, x, y), with the same weights each time."""
    own = {"mlp": _mlp, "gpt2_causal": _gpt2}
    return own[name]() if name in own else _of_spec(name)


def compiled(name, mode):
    """Return a compiled model, with its batch as numpy arrays."""
    net, loss, x, y = made(name)
    model = kpg.PerGradModel.from_model(net)
    model.compile(keras.optimizers.SGD(1e-4), loss, gradient_mode=mode)
    return model, tf.nest.map_structure(np.asarray, x), np.asarray(y)


def step_of(name, way, stack):
    """Return a function of one step, plain or with values."""
    mode = "batch" if way == "plain" else "vectorized"
    model, x, y = compiled(name, mode)
    numbered = with_numbers(x, np.arange(len(y)))
    data = tf.data.Dataset.from_tensors((numbered, y)).cache().repeat()
    iterator = iter(data)
    model.make_train_function()
    if way != "plain":
        given = {"order": 1, "every": 1, "projection": None, "seed": 0}
        state = model.value_state
        state.begin(len(y), "float32", resumes=False)
        validation = (*_quarter(x, y), None)
        reader = ValueReader(state, validation, **{**given, **WAYS[way]})
        stack.enter_context(model.read_steps(reader))
    return lambda: model.train_function(iterator)


def _quarter(x, y):
    cut = max(len(y) // 4, 1)
    rows = tf.nest.map_structure(lambda t: tf.constant(t[-cut:]), x)
    return rows, tf.constant(y[-cut:])


def validation_of(name):
    """Return a function that computes the validation gradient alone."""
    model, x, y = compiled(name, "batch")
    batch = (*_quarter(x, y), None)
    variables = model.trainable_variables
    slope = ValidationGradient(model, batch, variables)
    function = tf.function(slope.gradient, autograph=False)
    return lambda: function()[0].numpy()


def measure(name, rounds, ways=tuple(WAYS)):
    """Return the median milliseconds of each."""
    with contextlib.ExitStack() as stack:
        steps = {"plain": step_of(name, "plain", stack)}
        steps["validation"] = validation_of(name)
        for way in ways:
            try:
                steps[way] = step_of(name, way, stack)
                steps[way]()
            except (ValueError, LookupError) as error:
                print(f"  {name}, {way}: {str(error)[:200]}", flush=True)
                del steps[way]
        for step in steps.values():
            for _ in range(3):
                step()
        times = in_turns(steps, rounds, _timed)
        return {way: statistics.median(t) for way, t in times.items()}


def _timed(way, step):
    if way == "every 10":
        return statistics.mean(milliseconds(step) for _ in range(10))
    return min(milliseconds(step) for _ in range(3))


def row(name, ms):
    """Return a row of the table."""
    plain, own = ms["plain"], ms["validation"]
    cells = [f"`{name}`", f"{plain:.1f}", f"{own:.1f}"]
    for way in WAYS:
        if way not in ms:
            cells.append("–")
        elif way == "every 10":
            cells.append(f"{ms[way] / plain:.2f}")
        else:
            rest = (ms[way] - own) / plain
            cells.append(f"{ms[way] / plain:.2f} ({rest:.2f})")
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| model | plain step, ms | validation gradient, ms | values | projected "
    "| order 2 | every 10 |\n|---|---|---|---|---|---|---|"
)


def main():
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--ways", nargs="*", default=tuple(WAYS))
    arguments = parser.parse_args()
    rows = [HEAD]
    print(HEAD)
    for name in arguments.models or MODELS:
        rows.append(row(name, measure(name, arguments.rounds, arguments.ways)))
        print(rows[-1], flush=True)
    if arguments.write:
        tables.write(PLACE, "\n".join(rows))


if __name__ == "__main__":
    main()
