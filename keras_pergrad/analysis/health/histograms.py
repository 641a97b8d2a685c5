"""Histograms of gradients."""

import numpy as np

from keras_pergrad.analysis.health.reading import Histogram

BINS = 30


def histogram(values):
    """Return the `Histogram` of an array's finite values, in equal bins."""
    flat = np.asarray(values).reshape(-1)
    finite = np.isfinite(flat)
    if not finite.all():
        flat = flat[finite]
    if not flat.size:
        return Histogram((0,), (0.0, 1.0))
    low, high = float(flat.min()), float(flat.max())
    if not low < high:
        return Histogram((flat.size,), _around(low))
    edges = np.linspace(low, high, BINS + 1)
    # A tenth of the time of np.histogram.
    scale = BINS / (high - low)
    if not np.isfinite(scale):
        return Histogram((flat.size,), _around(low))
    places = ((flat - low) * scale).astype(np.int32)
    counts = np.bincount(np.minimum(places, BINS - 1), minlength=BINS)
    return Histogram(tuple(counts.tolist()), tuple(edges.tolist()))


def _around(value):
    """Return two edges with a value between them."""
    off = abs(value) * 1e-3 or 1e-3
    return value - off, value + off
