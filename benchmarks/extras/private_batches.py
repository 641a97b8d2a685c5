"""What Poisson batches cost: epochs beside those of fixed batches, in turn.

Both train privately, with the same expected batch size; batches of one vary in
size. Aim: at most 1.05 times the time.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import statistics
import time

import keras
import tensorflow as tf

import keras_pergrad as kpg
from benchmarks.harness.keras_models import build_model, make_loss
from benchmarks.harness.models import make_batch

EXAMPLES, BATCH, WARM, ROUNDS = 4096, 256, 2, 12
SAMPLINGS = ("fixed", "poisson")


def make(name, sampling, x, y, epochs):
    """A function that trains one epoch."""
    private = kpg.PrivateTraining(
        noise_multiplier=1.0,
        delta=1e-5,
        clip_norm=1.0,
        samples=EXAMPLES,
        batch_size=BATCH,
        epochs=epochs,
        sampling=sampling,
        user_ids="unique",
        seed=0,
    )
    keras.utils.set_random_seed(0)
    model = build_model(name, kpg.PerGradModel)
    model.compile(
        keras.optimizers.SGD(0.01),
        make_loss(name),
        gradient_mode=private.gradient_mode,
        jit_compile=False,
    )
    batches = private.batches(x, y)
    return lambda: model.fit(batches, verbose=0, callbacks=[private.callback])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["ffnn", "mnist"])
    chosen = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(2)
    for name in chosen.models:
        x, y = make_batch(name, EXAMPLES)
        epochs = {s: make(name, s, x, y, WARM + ROUNDS) for s in SAMPLINGS}
        seconds = {s: [] for s in SAMPLINGS}
        for k in range(WARM + ROUNDS):
            for s in SAMPLINGS if k % 2 else SAMPLINGS[::-1]:
                begin = time.perf_counter()
                epochs[s]()
                if k >= WARM:
                    seconds[s].append(time.perf_counter() - begin)
        ratios = [p / f for f, p in zip(*(seconds[s] for s in SAMPLINGS))]
        step = 1e3 * statistics.median(seconds["fixed"]) * BATCH / EXAMPLES
        low, _, high = statistics.quantiles(ratios)
        print(
            f"{name}: {step:.2f} ms a fixed batch; Poisson / fixed "
            f"{statistics.median(ratios):.2f} (quartiles {low:.2f}, "
            f"{high:.2f}; aim: at most 1.05)"
        )


if __name__ == "__main__":
    main()
