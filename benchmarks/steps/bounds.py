"""What clipping cannot do without, beside what a clipped step takes.

Norms and weighted sums need multiplications and memory that the plain
gradient does not. Here each variable's are timed alone, in TensorFlow's own
kernels, from the activations and deltas that one step has left behind:

- *bound*: (plain step + norms and sums of all variables − the plain gradients
  from the same tensors) / plain step, for the methods that the package
  chooses. Nothing else of the clipped step is in it.
- *measured*: clipped step / plain step, the two taking turns.

A second table has the variables that cost most, with the fastest of all
methods of their factor. Both are made of bounds.json, where each run replaces
the models that it measured.

    python -m benchmarks.steps.bounds [--seconds 6] [--write] [model ...]

With `--write` they replace those between the marks of
benchmarks/results/bounds.md.
"""

import argparse
import copy
import json
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from benchmarks.harness import tables
from benchmarks.harness.keras_models import build_model, make_loss, targets
from benchmarks.harness.models import STANDARD, make_batch
from benchmarks.harness.process import RESULTS
from keras_pergrad.factors import Outer, Patches, together
from keras_pergrad.factors.patches import METHODS
from keras_pergrad.uses import TracedStep

BATCH = 64
#: Those of `tests/real_models.py` that are measured if none are named.
REAL = ("bert", "t5", "vit", "convnext", "densenet121_frozen_norms")
LEARNING_RATE = 1e-6
CLIP_NORM = 0.05
STORE = RESULTS / "bounds.json"
PLACE = "bounds.md#bounds"
#: Rows of the second table for each model.
ROWS = 4


def prepare(name, size):
    """Return a function that makes the model, and its loss and batch."""
    if name in STANDARD:
        x, y = make_batch(name, BATCH)
        data = tf.constant(x), tf.constant(targets(name, y))
        return lambda: build_model(name), make_loss(name), data
    from tests.real_models import MODELS, loss

    model, x, y = MODELS[name](size)
    data = tf.nest.map_structure(tf.constant, (x, y))
    weights = model.get_weights()

    def make():
        twin, _, _ = MODELS[name](size)
        twin.set_weights(weights)
        return twin

    return make, loss(), data


def fit_step(model, loss, data, **arguments):
    """Return a function that runs what `fit` runs for a batch."""
    optimizer = keras.optimizers.SGD(LEARNING_RATE)
    model.compile(optimizer, loss, jit_compile=False, **arguments)
    iterator = iter(tf.data.Dataset.from_tensors(data).repeat())
    model.make_train_function()
    return lambda: np.asarray(model.train_function(iterator)["loss"])


def factors_of(model, data):
    """Return (variable, factor of given numbers) of one step on the batch."""
    traced_factors, held = [], {}

    @tf.function(jit_compile=False)
    def one_step(x, y):
        traced = TracedStep(model, (x, y, None))
        with traced:
            loss = model.compute_loss(x, y, traced.forward(x))
        for variable, factor in zip(
            traced.variables, traced.sample_gradients(loss)
        ):
            if factor is not None:
                traced_factors.append((variable, factor))
                held.update(_tensors(factor))
        return list(held.values())

    names = one_step.get_concrete_function(*data)
    numbers = dict(zip(held, names(*data)))
    return [
        (variable, copy.deepcopy(factor, dict(numbers)))
        for variable, factor in traced_factors
    ]


def _tensors(part, seen=()):
    """Return the tensors in a factor, by their identity."""
    if tf.is_tensor(part):
        return {id(part): part}
    if isinstance(part, (list, tuple)):
        inner = part
    elif hasattr(part, "squared_norms") and id(part) not in seen:
        # Some hold another that holds them.
        seen, inner = (*seen, id(part)), vars(part).values()
    else:
        return {}
    return {k: t for p in inner for k, t in _tensors(p, seen).items()}


def with_numbers(factors, compute):
    """Return a function of no arguments: `compute`, compiled.

    The numbers are its arguments, so that nothing is computed beforehand.
    """
    held = {}
    for factor in factors:
        held.update(_tensors(factor))

    @tf.function(jit_compile=False)
    def run(numbers):
        memo = dict(zip(held, numbers))
        return compute([copy.deepcopy(f, dict(memo)) for f in factors])

    numbers = list(held.values())
    compiled = run.get_concrete_function(numbers)
    return lambda: compiled(numbers)


def plain(factors):
    """Return the plain gradients."""
    return [_dense(f.weighted_sum(None)) for f in factors]


def clipped(factors):
    """Return the clipped sums, as `Vectorized` makes them."""
    joined, _ = together([f.held() for f in factors])
    norms = tf.sqrt(tf.add_n([f.squared_norms() for f in joined]))
    weights = tf.minimum(1.0, CLIP_NORM / norms)
    return [_dense(f.weighted_sum(weights)) for f in joined]


def _dense(total):
    return total.values if isinstance(total, tf.IndexedSlices) else total


def by_method(factor):
    """Return {method: the factor made to use it}, as far as it has several."""
    choices = {Outer: ("gram", "full"), Patches: METHODS}
    chosen = {}
    for method in choices.get(type(factor), ()):
        if type(factor) is Outer and factor.positions == 1:
            continue
        other = copy.copy(factor)
        other.method = method
        chosen[method] = other
    return chosen


def medians(functions, seconds):
    """Return milliseconds of each; all take turns."""
    for function in functions:
        function()
        function()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        row = []
        for function in functions:
            start = time.perf_counter()
            function()
            row.append(1e3 * (time.perf_counter() - start))
        times.append(row)
    return [statistics.median(column) for column in zip(*times)]


def measure(name, size, seconds):
    """Return a row of the first table, and rows of the second."""
    make, loss, data = prepare(name, size)
    keras.utils.set_random_seed(0)
    mode = kpg.Vectorized(kpg.ClippedMean(CLIP_NORM))
    ours = kpg.PerGradModel.from_model(make())
    model = make()
    steps = [
        fit_step(model, loss, data),
        fit_step(ours, loss, data, gradient_mode=mode),
    ]
    pairs = factors_of(model, data)
    factors = [f for _, f in pairs]
    sums = [with_numbers(factors, f) for f in (plain, clipped)]
    step, whole, gradients, clips = medians([*steps, *sums], seconds)
    added = clips - gradients
    first = (name, step, gradients, clips, 1 + added / step, whole / step)
    rows = [_one(v, f, seconds / 20) for v, f in pairs]
    rows.sort(key=lambda row: row[2] - row[3], reverse=True)
    return first, rows[:ROWS]


def _one(variable, factor, seconds):
    """Return a variable's row of the second table."""
    nothing = with_numbers([factor], lambda parts: [])
    functions = [nothing] + [
        with_numbers([factor], f) for f in (clipped, plain)
    ]
    others = {}
    for method, other in by_method(factor).items():
        try:
            others[method] = with_numbers([other], clipped)
        except ValueError:  # it cannot serve groups
            continue
    call, ours, own, *rest = medians([*functions, *others.values()], seconds)
    rest = {m: t - call for m, t in zip(others, rest)}
    best = min(rest, key=rest.get, default="")
    kind = f"{type(factor).__name__}, {factor.chosen_method()}"
    return (
        getattr(variable, "path", variable.name),
        kind,
        ours - call,
        own - call,
        f"{best} {rest[best]:.2f}" if best else "",
    )


def both_tables(stored):
    """Return both tables of what is stored, as Markdown."""
    models = [
        "| | plain step, ms | its weights' gradients, ms | norms and sums, ms "
        "| bound | measured |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    slowest = [
        "| | variable | factor, method of the norms | norm and sum, ms "
        "| plain gradient, ms | fastest method, ms |",
        "|---|---|---|---:|---:|---|",
    ]
    for name in stored:
        numbers = " | ".join(f"{t:.2f}" for t in stored[name]["model"])
        models.append(f"| {name} | {numbers} |")
        for variable, kind, ours, own, best in stored[name]["variables"]:
            cells = f"{ours:.2f} | {own:.2f} | {best}"
            slowest.append(f"| {name} | {variable} | {kind} | {cells} |")
    return "\n".join(models), "\n".join(slowest)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--size", default="bench")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    stored = json.loads(STORE.read_text()) if STORE.exists() else {}
    for name in arguments.models or [*STANDARD, *REAL]:
        first, rows = measure(name, arguments.size, arguments.seconds)
        stored[name] = {"model": first[1:], "variables": rows}
        print(*both_tables({name: stored[name]}), sep="\n\n", flush=True)
        keras.backend.clear_session()
        if arguments.write:
            STORE.write_text(json.dumps(stored, indent=1) + "\n")
    if arguments.write:
        tables.write(PLACE, *both_tables(stored))


if __name__ == "__main__":
    main()
