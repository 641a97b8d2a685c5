"""The cost of each method for a convolution's norms and weighted sum.

Microseconds a sample on two CPU cores, from static shapes: a constant, the
multiplications, and the numbers copied, each at the rate measured by
benchmarks/conv_methods.py. Only their order matters.
"""

import math

from keras_pergrad.factors.convolution_methods import has_filter_gradient

MULTIPLY = 9.5e-6
COPY = 0.33e-3
# Writing a gradient, squaring it and taking it into the weighted sum.
HOLD = 0.6e-3
# Gradients with more entries are not held just to save a second pass.
HELD = 2**17


def costs(windows, groups, big, small):
    """Return the microseconds for norms and weighted sum of usable methods.

    Args:
        windows: the `Windows`.
        groups: the number of groups.
        big, small: the channels of either side, all groups together.

    Returns:
        A dict by method name.
    """
    taps, count = windows.taps, windows.count
    window = taps * big // groups
    entries = window * small
    multiply = MULTIPLY * count * entries
    again = 5 + 1.2 * multiply
    held = HOLD * entries
    # With groups every tensor is transposed first.
    copies = COPY * (1 if groups == 1 else 4)
    by_tap = taps * (1.5 + copies * count * big) + multiply
    unfolded = count * taps * (3.5e-3 + copies * big)
    found = {
        "taps": by_tap + held,
        "patches": unfolded + multiply + held,
        "tap_norms": by_tap + 0.5 * held + again,
        "patch_gram": unfolded
        + 1.5 * MULTIPLY * count**2 * (taps * big + small)
        # With one group the weighted sum reuses the windows.
        + (1 + multiply if groups == 1 else again),
    }
    pixels = math.prod(windows.padded_sizes)
    found["pixel_gram"] = (
        8
        + 1.5 * MULTIPLY * (pixels**2 * big + count**2 * small)
        + 0.5e-3 * groups * taps * count**2
        + again
    )
    if not windows.dilated and groups == 1:
        row = windows.kernel[-1] * big
        rows = math.prod(windows.padded_sizes[:-1]) * windows.positions[-1]
        found["identity"] = (
            2 * MULTIPLY * rows * row**2
            + count * window / row * (3.5e-3 + COPY * row)
            + multiply
            + held
        )
    if has_filter_gradient(windows, groups, big):
        found["loop"] = 100 + 1.5 * multiply + held
    if entries > HELD:
        for name in ("taps", "patches", "identity", "loop"):
            if name in found:
                found[name] += 1e9
    return found


def norm_bytes(method, windows, groups, big, small):
    """Return how many numbers a sample the method holds at its peak."""
    taps, count = windows.taps, windows.count
    entries = taps * big // groups * small
    pixels = math.prod(windows.padded_sizes)
    padded = pixels * big
    return {
        "taps": entries + padded + count * big,
        "tap_norms": entries // taps + padded + count * big,
        "patches": entries + count * taps * big,
        "identity": entries + count * taps * big,
        "loop": entries + padded,
        "patch_gram": count * taps * big + 2 * groups * count**2,
        "pixel_gram": padded + groups * (pixels**2 + 2 * count**2),
    }[method]
