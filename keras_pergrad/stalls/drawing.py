"""Drawings of wait and compute, over batches or over epochs."""

import numpy as np

from keras_pergrad.common.optional import import_extra

MOST_GROUPS = 512


def plot_timeline(timeline, ax=None):
    """Stack compute and wait of an epoch's batches; return the axes.

    Neighbours are drawn by their mean where there are many. `timeline` is that
    of `measure_epoch`.
    """
    ax = _axes(ax)
    first, (wait, compute), size = grouped_means(timeline)
    labels = ["compute", "wait for data"]
    ax.stackplot(first, 1e3 * compute, 1e3 * wait, labels=labels, step="post")
    if size > 1:
        ax.set_title(f"means of {size} batches")
    ax.set_xlabel("batch")
    ax.set_ylabel("ms")
    ax.legend()
    return ax


def grouped_means(timeline, most=MOST_GROUPS):
    """Return the first batch of each group, the means, and the groups' size.

    There are at most `most` groups, of a size that is a power of two. The means
    have shape (columns of the timeline, groups).
    """
    batches = len(timeline)
    size = 1
    while size * most < batches:
        size *= 2
    first = np.arange(0, batches, size)
    sums = np.add.reduceat(timeline, first, axis=0)
    counts = np.minimum(batches - first, size)
    return first, (sums / counts[:, None]).T, size


def plot_epochs(reports, ax=None):
    """Stack the shares of the time of each epoch with figures."""
    ax = _axes(ax)
    measured = [
        (epoch, report)
        for epoch, report in enumerate(reports, 1)
        if report.data_stall_fraction is not None
    ]
    epochs = [epoch for epoch, _ in measured]
    bottom = [0.0] * len(measured)
    for label, share_of in (
        ("step", lambda r: r.step_fraction),
        ("copy to device", lambda r: r.copy_fraction),
        ("load", lambda r: r.stall_load_fraction),
        ("transform", lambda r: r.stall_transform_fraction),
        ("wait for data", _unexplained_share),
    ):
        shares = [share_of(report) or 0.0 for _, report in measured]
        if any(shares):
            ax.bar(epochs, shares, bottom=bottom, label=label)
        bottom = [low + share for low, share in zip(bottom, shares)]
    ax.set_xlabel("epoch")
    ax.locator_params("x", integer=True)
    ax.set_ylabel("share of the time")
    ax.set_ylim(0, 1)
    ax.legend()
    return ax


def _unexplained_share(report):
    if report.stall_load_fraction is None:
        return report.data_stall_fraction
    return 0.0


def _axes(ax):
    pyplot = import_extra("matplotlib.pyplot", "Drawing", "plot")
    if ax is None:
        _, ax = pyplot.subplots(figsize=(8, 3), layout="constrained")
    return ax
