"""Whether the advised batch size is near the best of a sweep.

    python -m benchmarks.callbacks.batch_advice [mlp cnn transformer]

Each task of `tests/gradient_health/trainings.py` is trained at batch size 32
with `GradientVariance`, which gives the noise scale and an advised batch. Then
it is trained at each size of a sweep until its loss on held-out samples,
looked at every 1/8 of an epoch, is at most the target. What is counted is the
samples that this takes, as the mean over seeds.

The rate goes with the size: in proportion for SGD, by the square root for
Adam, from the task's own rate at 32. Both are capped by what a batch of the
noise scale would get: beyond it, a larger batch does not allow a larger rate.

Of all tasks together, the table between the marks of
benchmarks/results/callbacks.md is replaced.
"""

import math
import sys

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from benchmarks.harness import tables
from keras_pergrad.gradient_health import evidence
from tests.gradient_health import trainings

SIZES = (4, 8, 16, 32, 64, 128, 256)
SEEDS = (0, 1, 2)
TARGETS = {"mlp": 0.4, "cnn": 0.25, "transformer": 0.5}
LOOKS, MOST_EPOCHS = 8, 40
PLACE = "callbacks.md#batch advice"


def advised(task):
    """Return the noise scale and the advised batch, from a training at 32."""
    model, (x, y), probe = trainings.planted(task, "sound", 0)
    watch = kpg.callbacks.GradientVariance(
        probe, repeats=1, instruments=("noise_scale",)
    )
    model.fit(x, y, trainings.BATCH, epochs=3, verbose=0, callbacks=[watch])
    readings = watch.readings
    return (
        evidence.noise_scale(readings),
        evidence.largest_batch_within(evidence.noise_scale(readings)),
    )


def rate(task, size, scale):
    """Return the learning rate for a batch size."""
    kept = trainings.TASKS[task]
    times = min(size, max(scale, trainings.BATCH)) / trainings.BATCH
    adaptive = isinstance(kept.optimizer(0.1), keras.optimizers.Adam)
    return kept.rate * (times**0.5 if adaptive else times)


class Trained:
    """A task at one batch size, for several seeds: it is traced once."""

    def __init__(self, task, size, scale):
        self.task, self.size = task, size
        self.model, self.data, _ = trainings.planted(task, "sound", 0)
        self.held_out = [
            part[trainings.TRAINED :] for part in trainings.TASKS[task].data()
        ]
        self.model.optimizer.learning_rate = rate(task, size, scale)
        self.model.optimizer.build(self.model.trainable_variables)
        self.fresh = [v.numpy() for v in self.model.optimizer.variables]

    def loss(self, x, y):
        """Return the mean loss."""
        return self.model.compute_loss(x, y, self.model(x, training=True))

    @tf.function
    def train(self, x, y):
        """Take a step on each batch in turn."""
        variables = self.model.trainable_variables
        for k in tf.range(tf.shape(x)[0] // self.size):
            rows = k * self.size + tf.range(self.size)
            with tf.GradientTape() as tape:
                loss = self.loss(tf.gather(x, rows), tf.gather(y, rows))
            gradients = tape.gradient(loss, [v.value for v in variables])
            self.model.optimizer.apply(gradients, variables)
        return self.loss(*self.held_out)

    def samples(self, seed):
        """Return how many are trained on until the target, or infinity."""
        same, _, _ = trainings.planted(self.task, "sound", seed)
        self.model.set_weights(same.get_weights())
        for variable, value in zip(self.model.optimizer.variables, self.fresh):
            variable.assign(value)
        generator = np.random.default_rng(seed)
        x, y = self.data
        part = max(len(x) // LOOKS // self.size, 1) * self.size
        taken = 0
        while taken < MOST_EPOCHS * len(x):
            order = generator.permutation(len(x))
            for start in range(0, len(x) - part + 1, part):
                rows = order[start : start + part]
                loss = self.train(tf.constant(x[rows]), tf.constant(y[rows]))
                taken += part
                if loss <= TARGETS[self.task]:
                    return taken
        return math.inf


def measure(task):
    """Measure a task, and return its line of the table."""
    scale, batch = advised(task)
    samples = {}
    for size in sorted({*SIZES, batch}):
        trained = Trained(task, size, scale)
        of_seeds = [trained.samples(seed) for seed in SEEDS]
        samples[size] = float(np.mean(of_seeds))
        print(task, size, of_seeds, flush=True)
    return row(task, scale, batch, samples=samples)


def row(task, scale, batch, *, samples):
    """Return a line of the table."""
    best = min(samples, key=lambda size: samples[size])
    cells = [
        f"{samples[size]:,.0f}" if np.isfinite(samples[size]) else "never"
        for size in SIZES
    ]
    cells.append(f"{samples[batch] / samples[best]:.2f}")
    return f"| {task} | {scale:.0f} | {batch} | {' | '.join(cells)} |"


def main(tasks):
    """Measure, and write the table."""
    rows = [measure(task) for task in tasks or TARGETS]
    head = ["", "noise scale", "advised", *map(str, SIZES), "advised / best"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows]
    print("\n".join(lines))
    if tasks:
        return
    tables.write(PLACE, "\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
