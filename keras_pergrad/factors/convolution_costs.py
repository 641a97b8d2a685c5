"""The cost of each method for a convolution's norms and weighted sum.

Microseconds a sample, from static shapes: what is multiplied and what is
copied, each at the rate of the device. Only their order matters.
"""

import dataclasses
import math

from keras_pergrad.factors.convolution_methods import (
    has_filter_gradient,
    is_depthwise,
    is_one_op,
)

# A size that is not known when tracing is taken for this one. What grows with
# its square is not chosen then.
GUESSED_SIZE = 16
OF_ANY_SIZE = ("taps", "patches", "tap_norms")


def costs(windows, groups, big, *, small, rates, xla=False):
    """Return method → microseconds for norms and weighted sum, where usable.

    They are linear in the rates.

    Args:
        windows: the `Windows` of the layer.
        groups: the number of channel groups.
        big, small: the channels of either side, all groups together.
        rates: `ConvolutionRates`.
        xla: whether XLA compiles.
    """
    if not windows.is_static:
        microseconds = costs(
            _with_guessed_sizes(windows),
            groups,
            big,
            small=small,
            rates=rates,
            xla=xla,
        )
        return {name: microseconds[name] for name in OF_ANY_SIZE}
    taps, count = windows.taps, windows.count
    window = taps * big // groups
    entries = window * small
    multiply = rates.multiply * count * entries
    whole = rates.whole * count * entries
    # The filter gradient of the batch.
    second_pass = rates.filter_gradient + 1.2 * whole
    hold = rates.hold * entries
    # With groups every tensor is transposed first.
    copy = rates.copy * (1 if groups == 1 else 4)
    stride_cost = rates.skip if max(windows.strides) > 1 else 0
    slice_cost = rates.call + stride_cost * count * big
    depthwise = is_depthwise(groups, big)
    if depthwise:
        second_pass += rates.depthwise * entries
        by_tap = taps * (slice_cost + rates.channel * count * max(big, small))
        if is_one_op(windows, xla):
            products = taps * count * max(big, small)
            by_tap = 6 * rates.call + rates.all_taps * products
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
        + (rates.patch_gram + whole if groups == 1 else second_pass),
    }
    pixels = math.prod(windows.padded_sizes)
    microseconds["pixel_gram"] = (
        rates.pixel_gram
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
        loop = rates.loop + rates.turn * count * entries + hold
        microseconds["loop"] = math.inf if xla or depthwise else loop
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


def norm_bytes(method, windows, groups, *, big, small):
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
