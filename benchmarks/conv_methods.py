"""How long each way to a convolution's per-sample norms takes.

Prints a table with a row for each layer of standard networks: the
milliseconds of the batch's own filter gradient, then of norms and weighted
sum by every method, and the method that the cost rule chooses.

    python -m benchmarks.conv_methods [--xla] [--batch 64] [layer ...]
"""

import argparse
import math
import statistics
import time

import tensorflow as tf

from keras_pergrad.factors import Patches, Windows
from keras_pergrad.factors.patches import METHODS

# size, input channels, filters, kernel size, stride, padding, groups
LAYERS = {
    "mnist 1": (28, 1, 16, 8, 2, "same", 1),
    "mnist 2": (13, 16, 32, 4, 2, "valid", 1),
    "cifar 1": (32, 3, 32, 3, 1, "same", 1),
    "cifar 2": (32, 32, 32, 3, 1, "same", 1),
    "cifar 3": (16, 32, 64, 3, 1, "same", 1),
    "cifar 4": (16, 64, 64, 3, 1, "same", 1),
    "cifar 5": (8, 64, 128, 3, 1, "same", 1),
    "cifar 6": (8, 128, 128, 3, 1, "same", 1),
    "cifar 7": (4, 128, 256, 3, 1, "same", 1),
    "cifar 8": (4, 256, 10, 3, 1, "same", 1),
    "patches": (32, 3, 64, 8, 8, "valid", 1),
    "resnet shortcut": (56, 64, 64, 1, 2, "same", 1),
    "resnet stride": (16, 128, 128, 3, 2, "same", 1),
    "convnext 1": (16, 96, 96, 7, 1, "same", 96),
    "convnext 4": (2, 768, 768, 7, 1, "same", 768),
    "mobilenet 1": (32, 32, 32, 3, 2, "same", 32),
    "mobilenet 2": (16, 72, 72, 3, 1, "same", 72),
}
# A method whose numbers would not fit is left out.
LARGEST = 2**30


def build(layer, x, dz, method=None):
    size, channels, filters, kernel, stride, padding, groups = LAYERS[layer]
    windows = Windows.of(
        (size,) * 2, (kernel,) * 2, (stride,) * 2, (1, 1), padding
    )
    shape = (kernel, kernel, channels // groups, filters)
    return Patches(x, dz, windows, shape, groups, method)


def candidates(layer, batch, xla):
    """Functions by name, each of no arguments; the chosen method."""
    size, channels, filters, kernel, stride, padding, _ = LAYERS[layer]
    x = tf.random.normal([batch, size, size, channels])
    count = math.ceil((size - (kernel - 1) * (padding == "valid")) / stride)
    dz = tf.random.normal([batch, count, count, filters])
    # As in `fit`, the number of samples is not known when tracing.
    rows = batch if xla else None
    signature = [tf.TensorSpec([rows, *t.shape[1:]]) for t in (x, dz)]

    def own(x, dz):
        return build(layer, x, dz).weighted_sum(None)

    def clipped(method):
        def compute(x, dz):
            factor = build(layer, x, dz, method)
            norms = factor.squared_norms()
            return factor.weighted_sum(tf.math.rsqrt(norms))

        return compute

    functions = {"own": own}
    for method in METHODS:
        if method == "loop" and xla:
            continue
        try:
            held = build(layer, x, dz, method).norm_bytes(batch)
        except ValueError:  # the method cannot serve groups
            continue
        if held < LARGEST:
            functions[method] = clipped(method)
    traced = {
        name: tf.function(f, signature, jit_compile=xla, autograph=False)
        for name, f in functions.items()
    }
    chosen = build(layer, x, dz).chosen_method()
    return {n: lambda f=f: f(x, dz) for n, f in traced.items()}, chosen


def medians(functions, rounds):
    """Milliseconds by name; the functions take turns."""
    times = {name: [] for name in functions}
    for turn in range(rounds + 2):
        for name, function in functions.items():
            start = time.perf_counter()
            tf.nest.map_structure(lambda t: t.numpy(), function())
            if turn >= 2:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) * 1e3 for name, t in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers", nargs="*", choices=[*LAYERS, []])
    parser.add_argument("--xla", action="store_true")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    columns = ["own", *METHODS]
    print("| layer |", " | ".join(columns), "| chosen |")
    print("|---" * (len(columns) + 2) + "|")
    for layer in arguments.layers or LAYERS:
        functions, chosen = candidates(layer, arguments.batch, arguments.xla)
        found = medians(functions, arguments.rounds)
        cells = [f"{found[c]:.1f}" if c in found else "" for c in columns]
        print(f"| {layer} |", " | ".join(cells), f"| {chosen} |", flush=True)


if __name__ == "__main__":
    main()
