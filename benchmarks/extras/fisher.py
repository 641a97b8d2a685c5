"""The diagonal Fisher information beside BackPACK and curvlinops.

    python -m benchmarks.extras.fisher [--rounds 30] [--torch PYTHON]
        [model ...]

The sum over a batch of 64 of the squares of each sample's gradient, from the
same weights on the same data. With the labels of the data, values are compared:
the largest difference over the largest value, of all variables. With labels
that are drawn, once a sample, only times are: draws differ. Needs the
environment of `requirements-torch.txt` with curvlinops-for-pytorch 3.0.1.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.harness.keras_models import build_model, targets
from benchmarks.harness.models import make_batch
from benchmarks.harness.process import ROOT, interpreter
from benchmarks.harness.turns import in_turns, milliseconds
from keras_pergrad.influence.fisher_sums import FisherStatistic
from keras_pergrad.influence.likelihoods import Likelihood

BATCH = 64
MODELS = ("digits", "ffnn", "mnist")
WAYS = {"labels of the data": False, "labels drawn": True}


def ours(name, rounds):
    """Return {way: (milliseconds, values)} of one batch's sums."""
    x, y = make_batch(name, BATCH)
    x, y = tf.constant(x), tf.constant(targets(name, y))
    seed = tf.constant([0, 0], tf.int64)
    likelihood = (Likelihood("categorical", True),)
    models, steps = [], {}
    for way, sampled in WAYS.items():
        models.append(build_model(name))  # functions do not keep them alive
        traced = FisherStatistic(
            "diagonal", likelihood, sampled, training=False
        ).trace(models[-1])
        given = x, None if sampled else y, None, seed

        def step(traced=traced, given=given):
            return [v.numpy() for v in traced(*given)]

        steps[way] = step
    values = {way: step() for way, step in steps.items()}
    times = in_turns(steps, rounds, lambda way, step: milliseconds(step))
    return {way: (statistics.median(times[way]), values[way]) for way in steps}


def peers(python, rounds, names):
    """Return {(model, name): (milliseconds, values)}."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.npz"
        command = [python, "-m", "benchmarks.peers.torch_fisher"]
        subprocess.run(
            [*command, out, str(rounds), *names], cwd=ROOT, check=True
        )
        with np.load(out) as arrays:
            for key in arrays.files:
                model, name, part = key.split("|")
                one = found.setdefault((model, name), [None, []])
                if part == "ms":
                    one[0] = float(arrays[key])
                else:
                    one[1].append(arrays[key])
    return found


def apart(values, right):
    """Return the largest difference over the largest value, of variables."""
    return max(
        np.abs(a - b).max() / np.abs(b).max()
        for a, b in zip(values, right, strict=True)
    )


def main():
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--torch", default=interpreter("torch"))
    given = parser.parse_args()
    names = given.models
    others = peers(given.torch, given.rounds, names) if given.torch else {}
    print("| model | | ms | apart from ours |\n|---|---|---:|---:|")
    for name in names:
        mine = ours(name, given.rounds)
        for way, (ms, _) in mine.items():
            print(f"| {name} | keras_pergrad, {way} | {ms:.2f} | |")
        right = mine["labels of the data"][1]
        for (model, peer), (ms, values) in others.items():
            if model == name:
                drawn = peer.endswith("MC")
                far = "drawn" if drawn else f"{apart(values, right):.0e}"
                print(f"| {name} | {peer} | {ms:.2f} | {far} |")


if __name__ == "__main__":
    main()
