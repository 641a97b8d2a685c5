"""Drawings of wait and compute, over batches or over epochs."""

from keras_pergrad.common.optional import import_extra


def plot_timeline(timeline, ax=None):
    """Stack mean compute and wait; return the matplotlib axes."""
    ax = _axes(ax)
    first, wait, compute = timeline.arrays()
    labels = ["compute", "wait for data"]
    ax.stackplot(first, 1e3 * compute, 1e3 * wait, labels=labels, step="post")
    if timeline.group_size > 1:
        ax.set_title(f"means of {timeline.group_size} batches")
    ax.set_xlabel("batch")
    ax.set_ylabel("ms")
    ax.legend()
    return ax


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
