"""Loops and unknown sizes: the clipped `fit` step beside the plain one.

Prints a table with a row for each model. Both steps take turns in one process.

    python -m benchmarks.steps.shapes [--seconds 8] [model ...]
"""

import argparse
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg

layers = keras.layers


class GruLoop(layers.Layer):
    """A GRU cell, called for each step in a loop in Python."""

    def __init__(self):
        super().__init__()
        self.cell = layers.GRUCell(64)

    def build(self, shape):
        self.cell.build((None, shape[-1]))

    def call(self, x):
        states = [keras.ops.zeros((keras.ops.shape(x)[0], 64))]
        for t in range(x.shape[1]):
            _, states = self.cell(x[:, t], states)
        return states[0]


def _stack(shape, *stacked):
    inputs = keras.Input(shape)
    x = inputs
    for layer in stacked:
        x = layer(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def _frames(**kwargs):
    return _stack(
        (8, 24, 24, 1),
        layers.ConvLSTM2D(16, 3, padding="same", return_sequences=True),
        layers.ConvLSTM2D(16, 3, padding="same", **kwargs),
        layers.Flatten(),
    )


def _images(layer, filters, rank=2, *, kernel=3):
    shape = (*[None] * rank, 3)
    pooling = getattr(layers, f"GlobalAveragePooling{rank}D")()
    stacked = [
        layer(f, kernel, padding="same", activation="relu") for f in filters
    ]
    return _stack(shape, *stacked, pooling)


#: How to build a model, the samples of a batch, and the shape of one.
MODELS = {
    "ConvLSTM2D, two layers": (_frames, 16, (8, 24, 24, 1)),
    "the same, the second with dropout": (
        lambda: _frames(dropout=0.2, recurrent_dropout=0.2),
        16,
        (8, 24, 24, 1),
    ),
    "Conv1D, any length": (
        lambda: _images(layers.Conv1D, (32, 64, 64), 1, kernel=5),
        32,
        (128, 3),
    ),
    "Conv2D, any size": (
        lambda: _images(layers.Conv2D, (32, 32, 64)),
        32,
        (24, 24, 3),
    ),
    "SeparableConv2D, any size": (
        lambda: _images(layers.SeparableConv2D, (32, 64, 64)),
        32,
        (24, 24, 3),
    ),
    "Conv3D, any number of frames": (
        lambda: _images(layers.Conv3D, (16, 32), 3),
        16,
        (8, 16, 16, 3),
    ),
    "GRU cell, 64 steps in Python": (
        lambda: _stack((64, 32), GruLoop()),
        64,
        (64, 32),
    ),
}


def step(name, mode):
    """A function that runs one step, and the seconds of the first one."""
    make, n, shape = MODELS[name]
    keras.utils.set_random_seed(0)
    model, arguments = make(), {}
    if mode is not None:
        model = kpg.PerGradModel.from_model(model)
        arguments["gradient_mode"] = mode
    model.compile(
        keras.optimizers.SGD(1e-3), "mse", jit_compile=False, **arguments
    )
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(n, *shape)), rng.normal(size=(n, 10))
    arrays = tuple(a.astype("float32") for a in arrays)
    data = tf.data.Dataset.from_tensor_slices(arrays).batch(n).cache()
    iterator = iter(data.repeat())
    model.make_train_function()

    def run():
        start = time.perf_counter()
        logs = model.train_function(iterator)
        tf.nest.map_structure(np.asarray, logs)
        return time.perf_counter() - start

    return run, run()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []])
    parser.add_argument("--seconds", type=float, default=8)
    arguments = parser.parse_args()
    print(
        "| | plain, ms | clipped, ms | clipped / plain | first step / plain |"
    )
    print("|---|---:|---:|---:|---:|")
    for name in arguments.models or MODELS:
        plain, unit = step(name, None)
        ours, first = step(name, kpg.Vectorized(kpg.ClippedMean(1.0)))
        plain(), ours()
        times = []
        end = time.perf_counter() + arguments.seconds
        while time.perf_counter() < end or len(times) < 5:
            times.append((plain(), ours()))
        ratio = statistics.median(b / a for a, b in times)
        a, b = (statistics.median(t) * 1e3 for t in zip(*times))
        cells = f"{a:.1f} | {b:.1f} | {ratio:.2f} | {first / unit:.1f}"
        print(f"| {name} | {cells} |", flush=True)
        keras.backend.clear_session()


if __name__ == "__main__":
    main()
