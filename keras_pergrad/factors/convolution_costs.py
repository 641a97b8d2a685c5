"""The cost of each method for a convolution's norms and weighted sum.

Microseconds a sample on two CPU cores, from static shapes: what is multiplied
and what is copied, each at the rate measured by benchmarks/conv_methods.py.
Only their order matters.
"""

import dataclasses
import math
from typing import NamedTuple

from keras_pergrad.factors.convolution_methods import (
    has_filter_gradient,
    is_depthwise,
    is_one_op,
)

# Gradients with more entries are not held just to save a second pass.
HELD = 2**17
# Microseconds for each number of a depthwise kernel and each sample that
# TensorFlow's filter gradient takes; 0.01 to 0.3 were measured.
DEPTHWISE_RATE = 0.03
# Microseconds for a multiplication in the op that gives all taps of one.
ALL_TAPS_RATE = 0.2e-3
# A size that is not known when tracing is taken for this one. What grows with
# its square is not chosen then.
GUESSED_SIZE = 16
OF_ANY_SIZE = ("taps", "patches", "tap_norms")


class Rates(NamedTuple):
    """How long TensorFlow takes, in microseconds.

    Attributes:
        call: to call an op, for each sample of a batch of 64.
        row: to look up a row.
        copy: to copy a number.
        long_copy: to copy one in a row of a window.
        skip: in addition to `copy`, if the slice has a stride.
        channel: to multiply one by another in its own channel, and add.
        multiply: for a multiplication in a matmul of each sample.
        gram: for one in a Gram matrix.
        group: for the Gram matrices of a group of channels, in addition.
        unfold: for one in the convolution that unfolds a row of windows.
        whole: for one in a product of the whole batch.
        shift: to add a number of a Gram matrix at a tap.
        hold: to write a number of a gradient, square it and take it into the
            weighted sum.
    """

    call: float
    row: float
    copy: float
    long_copy: float
    skip: float
    channel: float
    multiply: float
    gram: float
    group: float
    unfold: float
    whole: float
    shift: float
    hold: float


PLAIN = Rates(
    call=1.5,
    row=3.5e-3,
    copy=0.33e-3,
    long_copy=0.33e-3,
    skip=6e-3,
    channel=0.5e-3,
    multiply=9.5e-6,
    gram=14e-6,
    group=1,
    unfold=19e-6,
    whole=9.5e-6,
    shift=0.5e-3,
    hold=0.6e-3,
)
# Copies and gradients that are held are slow in XLA's code for a CPU, so the
# choice is often a Gram matrix of pixels.
XLA = Rates(
    call=0.012,
    row=3.1e-3,
    copy=1.6e-3,
    long_copy=1.4e-3,
    skip=0,
    channel=0.55e-3,
    multiply=12e-6,
    gram=25e-6,
    group=4,
    unfold=3e-6,
    whole=14e-6,
    shift=0.3e-3,
    hold=3.1e-3,
)


def costs(windows, groups, big, small, xla=False):
    """Return method → microseconds for norms and weighted sum, where usable.

    `big` and `small` are the channels of either side, all groups together.
    """
    if not windows.is_static:
        microseconds = costs(
            _with_guessed_sizes(windows), groups, big, small, xla
        )
        return {name: microseconds[name] for name in OF_ANY_SIZE}
    rates = XLA if xla else PLAIN
    taps, count = windows.taps, windows.count
    window = taps * big // groups
    entries = window * small
    multiply = rates.multiply * count * entries
    whole = rates.whole * count * entries
    # The filter gradient of the batch.
    second_pass = 5 + 1.2 * whole
    hold = rates.hold * entries
    # With groups every tensor is transposed first.
    copy = rates.copy * (1 if groups == 1 else 4)
    stride_cost = rates.skip if max(windows.strides) > 1 else 0
    slice_cost = rates.call + stride_cost * count * big
    depthwise = is_depthwise(groups, big)
    if depthwise:
        second_pass += DEPTHWISE_RATE * entries
        by_tap = taps * (slice_cost + rates.channel * count * max(big, small))
        if is_one_op(windows, xla):
            by_tap = 6 * rates.call + ALL_TAPS_RATE * taps * count * max(
                big, small
            )
    else:
        by_tap = taps * (slice_cost + copy * count * big) + multiply
    unfolded = count * taps * (rates.row + copy * big)
    # Many small products.
    group_overhead = 0 if groups == 1 else rates.group * groups
    microseconds = {
        "taps": by_tap + hold,
        "patches": unfolded + multiply + hold,
        "tap_norms": by_tap + 0.5 * hold + second_pass,
        "patch_gram": group_overhead
        + unfolded
        + rates.gram * count**2 * (taps * big + small)
        # With one group the weighted sum reuses the windows.
        + (1 + whole if groups == 1 else second_pass),
    }
    pixels = math.prod(windows.padded_sizes)
    microseconds["pixel_gram"] = (
        8
        + group_overhead
        + rates.gram * (pixels**2 * big + count**2 * small)
        + rates.shift * groups * taps * count**2
        + second_pass
    )
    if not windows.is_dilated and groups == 1:
        row = windows.kernel[-1] * big
        rows = math.prod(windows.padded_sizes[:-1]) * windows.positions[-1]
        microseconds["identity"] = (
            rates.unfold * rows * row**2
            + count * window / row * (rates.row + rates.long_copy * row)
            + multiply
            + hold
        )
    if has_filter_gradient(windows, groups, big):
        # XLA runs the ops of one sample on one thread.
        loop = 100 + 1.5 * multiply + hold
        microseconds["loop"] = math.inf if xla or depthwise else loop
    if entries > HELD:
        for name in ("taps", "patches", "identity", "loop"):
            if name in microseconds:
                microseconds[name] += 1e9
    return microseconds


def _with_guessed_sizes(windows):
    """Return the windows with a number for each size that is not known."""
    numbers = {
        name: tuple(
            k if isinstance(k, int) else guess for k in getattr(windows, name)
        )
        for name, guess in (
            ("sizes", GUESSED_SIZE),
            ("positions", GUESSED_SIZE),
            ("before", 0),
            ("after", 0),
        )
    }
    return dataclasses.replace(windows, **numbers)


def norm_bytes(method, windows, groups, big, small):
    """Return how many numbers a sample the method holds at its peak."""
    taps, count = windows.taps, windows.count
    entries = taps * big // groups * small
    pixels = math.prod(windows.padded_sizes)
    padded = pixels * big
    tap_numbers = count * big
    if is_depthwise(groups, big):
        # The taps are taken side by side, where it is not by one op.
        tap_numbers = (
            (1 if is_one_op(windows) else taps) * count * max(big, small)
        )
    return {
        "taps": entries + padded + tap_numbers,
        "tap_norms": entries // taps + padded + tap_numbers,
        "patches": entries + count * taps * big,
        "identity": entries + count * taps * big,
        "loop": entries + padded,
        "patch_gram": count * taps * big + 2 * groups * count**2,
        "pixel_gram": padded + groups * (pixels**2 + 2 * count**2),
    }[method]
