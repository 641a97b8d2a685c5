"""The rates by which factors choose their methods, measured on this machine.

Times every method on layers of standard networks, fits the rates of
`keras_pergrad/factors/rates.py` to them, and prints the row of this device,
with what the methods that the row chooses take beside the fastest ones.

    python -m benchmarks.steps.rates [--xla] [--batch 64] [--rounds 9]
        [layer ...]
"""

import argparse
import math
import statistics
import time

import numpy as np
import tensorflow as tf

from keras_pergrad.factors import (
    Outer,
    Patches,
    Rows,
    Windows,
    convolution_costs,
)
from keras_pergrad.factors import rates as table
from keras_pergrad.factors.patches import METHODS
from keras_pergrad.factors.rows import METHODS as ID_METHODS

# size, input channels, filters, kernel size, stride, padding, groups
CONVOLUTIONS = {
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
    "wrn 1": (32, 16, 64, 3, 1, "same", 1),
    "wrn 2": (32, 64, 64, 3, 1, "same", 1),
    "wrn 3": (16, 128, 128, 3, 1, "same", 1),
    "wrn 4": (8, 256, 256, 3, 1, "same", 1),
    "patches": (32, 3, 64, 8, 8, "valid", 1),
    "resnet shortcut": (56, 64, 64, 1, 2, "same", 1),
    "resnet stride": (16, 128, 128, 3, 2, "same", 1),
    "convnext 1": (16, 96, 96, 7, 1, "same", 96),
    "convnext 4": (2, 768, 768, 7, 1, "same", 768),
    "mobilenet 1": (32, 32, 32, 3, 2, "same", 32),
    "mobilenet 2": (16, 72, 72, 3, 1, "same", 72),
}
# positions, inputs, outputs
PRODUCTS = {
    "lstm": (64, 100, 400),
    "lstm, 256 positions": (256, 100, 400),
    "attention": (64, 128, 128),
    "feed forward": (64, 128, 512),
    "bert": (128, 768, 768),
    "few positions": (8, 256, 256),
    "narrow": (196, 64, 64),
}
# positions, rows of the table, width
TABLES = {
    "embed": (256, 10_004, 16),
    "lstm": (64, 10_004, 100),
    "bert": (128, 30_522, 768),
    "positions": (128, 512, 768),
    "bytes": (1024, 256, 64),
}
# A method whose numbers would not fit is left out.
LARGEST = 2**30
#: How firmly a rate that no measurement tells of stays where it was.
RIDGE = 0.02


def windows_of(size, kernel, stride, *, padding):
    return Windows.of(
        (size,) * 2,
        (kernel,) * 2,
        (stride,) * 2,
        dilation=(1, 1),
        padding=padding,
    )


def convolution(name, batch):
    """Return inputs, and a function of them and of a method → the factor."""
    size, channels, filters, kernel, stride, padding, groups = CONVOLUTIONS[
        name
    ]
    windows = windows_of(size, kernel, stride, padding=padding)
    shape = (kernel, kernel, channels // groups, filters)
    count = windows.positions[0]
    inputs = (
        tf.random.normal([batch, size, size, channels]),
        tf.random.normal([batch, count, count, filters]),
    )
    return inputs, lambda x, dz, method=None: Patches(
        x, dz, windows, shape=shape, groups=groups, method=method
    )


def product(name, batch):
    positions, i, o = PRODUCTS[name]
    inputs = (
        tf.random.normal([batch, positions, i]),
        tf.random.normal([batch, positions, o]),
    )
    return inputs, lambda x, dz, method=None: Outer(
        x, dz, (i, o), method=method
    )


def look_up(name, batch):
    positions, rows, width = TABLES[name]
    inputs = (
        tf.random.uniform([batch, positions], 0, rows, tf.int32),
        tf.random.normal([batch, positions, width]),
    )
    return inputs, lambda ids, dz, method=None: Rows(
        ids, dz, (rows, width), method=method
    )


def time_methods(inputs, make, methods, *, batch, xla, rounds):
    """Return method → milliseconds for norms and weighted sum, and the chosen.

    "own" is the batch's own gradient of the same layer.
    """
    # As in `fit`, the number of samples is not known when tracing.
    rows = batch if xla else None
    signature = [tf.TensorSpec([rows, *t.shape[1:]], t.dtype) for t in inputs]

    def clipped(method):
        def compute(*inputs):
            factor = make(*inputs, method).held()
            norms = factor.squared_norms()
            return factor.weighted_sum(tf.math.rsqrt(norms))

        return compute

    functions = {"own": lambda *inputs: make(*inputs).weighted_sum(None)}
    for method in methods:
        try:
            held = make(*inputs, method).norm_bytes(batch)
        except ValueError:  # the method cannot serve this layer
            continue
        if held is None or held < LARGEST:
            functions[method] = clipped(method)
    traced = {
        name: tf.function(f, signature, jit_compile=xla, autograph=False)
        for name, f in functions.items()
    }
    runnable = {n: (lambda f=f: f(*inputs)) for n, f in traced.items()}
    return medians(runnable, rounds), make(*inputs).chosen_method()


def medians(functions, rounds):
    """Return name → milliseconds; the functions take turns."""
    times = {name: [] for name in functions}
    for turn in range(rounds + 2):
        for name, function in functions.items():
            start = time.perf_counter()
            try:
                results = tf.nest.flatten(function(), expand_composites=True)
                [t.numpy() for t in results]
            except tf.errors.OpError:  # such as tf.unique under XLA
                times[name] = [math.inf]
                continue
            if turn >= 2:
                times[name].append(time.perf_counter() - start)
    return {
        name: statistics.median(t) * 1e3
        for name, t in times.items()
        if math.inf not in t
    }


def convolution_features(name, method, xla):
    """Return how many of each rate a method costs, as `costs` counts them."""
    size, channels, filters, kernel, stride, padding, groups = CONVOLUTIONS[
        name
    ]
    windows = windows_of(size, kernel, stride, padding=padding)
    kinds = table.ConvolutionRates._fields
    return [
        convolution_costs.costs(
            windows,
            groups,
            channels,
            small=filters,
            rates=table.ConvolutionRates(*(float(k == kind) for k in kinds)),
            xla=xla,
        )[method]
        for kind in kinds
    ]


def product_features(name, method):
    """Return the same of `ProductRates`, a multiplication first."""
    t, i, o = PRODUCTS[name]
    if method == "full":
        return [t * i * o, 0, i * o, 0]
    return [t * i * o, t**2 * (i + o), 0, t**2 + t * min(i, o)]


def fit(features, microseconds, before):
    """Return rates, none below zero, for which features give the times.

    Relative errors count. A rate of which the times tell nothing keeps its
    place among the others.

    Args:
        features: (measurements, rates).
        microseconds: (measurements,).
        before: (rates,), such as the CPU's.
    """
    from scipy.optimize import nnls

    features = np.asarray(features) * before
    scale = np.median(np.asarray(microseconds) / features.sum(1))
    relative = features * scale / np.asarray(microseconds)[:, None]
    ridge = RIDGE * np.eye(len(before))
    solution, _ = nnls(
        np.concatenate([relative, ridge]),
        np.concatenate([np.ones(len(relative)), RIDGE * np.ones(len(before))]),
    )
    return solution * scale * before


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers", nargs="*")
    parser.add_argument("--xla", action="store_true")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    before = table.CPU_XLA if options.xla else table.CPU
    convolutions = measure(convolution, CONVOLUTIONS, METHODS, options=options)
    products = measure(product, PRODUCTS, ("full", "gram"), options=options)
    measure(look_up, TABLES, ID_METHODS, options=options)
    row = table.Rates(
        fitted_products(products, options.batch, before.products),
        fitted_convolutions(convolutions, options, before.convolutions),
    )
    print(f"\n({table.device()!r}, {options.xla}):")
    for rates in row:
        print(f"{type(rates).__name__}(")
        for name, value in rates._asdict().items():
            print(f"    {name}={value:.3g},")
        print("),")
    report_choices(convolutions, row, options)


def measure(make, layers, methods, *, options):
    """Print a table of milliseconds, and return layer → method → them."""
    columns = ["own", *methods]
    print("| layer |", " | ".join(columns), "| chosen |")
    print("|---" * (len(columns) + 2) + "|")
    measured = {}
    for layer in [k for k in layers if k in (options.layers or layers)]:
        inputs, factor = make(layer, options.batch)
        found, chosen = time_methods(
            inputs,
            factor,
            methods,
            batch=options.batch,
            xla=options.xla,
            rounds=options.rounds,
        )
        cells = [f"{found[c]:.3g}" if c in found else "" for c in columns]
        print(f"| {layer} |", " | ".join(cells), f"| {chosen} |", flush=True)
        measured[layer] = {m: found[m] for m in methods if m in found}
    return measured


def fitted_convolutions(measured, options, before):
    pairs = [
        (k, m)
        for k, times in measured.items()
        for m in times
        # A method that a device is never to choose costs infinitely much.
        if np.isfinite(convolution_features(k, m, options.xla)).all()
    ]
    if not pairs:
        return before
    features = [convolution_features(k, m, options.xla) for k, m in pairs]
    times = [measured[k][m] * 1e3 / options.batch for k, m in pairs]
    return table.ConvolutionRates(*fit(features, times, np.array(before)))


def fitted_products(measured, batch, before):
    pairs = [(k, m) for k, times in measured.items() for m in times]
    if not pairs:
        return before
    features = [product_features(k, m) for k, m in pairs]
    times = [measured[k][m] * 1e3 / batch for k, m in pairs]
    multiply, *others = fit(features, times, np.array([1.0, *before]))
    return table.ProductRates(*(rate / multiply for rate in others))


def report_choices(measured, row, options):
    """Print what the fitted row's choice takes over the fastest method."""
    for layer, times in measured.items():
        costs = {
            m: np.nan_to_num(
                np.dot(convolution_features(layer, m, options.xla), row[1]),
                nan=math.inf,
            )
            for m in times
        }
        chosen, best = min(costs, key=costs.get), min(times, key=times.get)
        ratio = times[chosen] / times[best]
        print(f"{layer}: {chosen}, {ratio:.2f} times the fastest, {best}")


if __name__ == "__main__":
    main()
