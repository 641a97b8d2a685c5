"""Draws wait and compute of the batches."""


def plot_timeline(timeline, ax=None):
    """Stacks mean compute and wait; returns the matplotlib axes."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "Drawing needs matplotlib, which is not installed. Install it "
            "with: pip install 'keras-pergrad[plot]'"
        ) from error
    if ax is None:
        _, ax = pyplot.subplots(figsize=(8, 3))
    first, wait, compute = timeline.arrays()
    labels = ["compute", "wait for data"]
    ax.stackplot(first, 1e3 * compute, 1e3 * wait, labels=labels, step="post")
    if timeline.group > 1:
        ax.set_title(f"means of {timeline.group} batches")
    ax.set_xlabel("batch")
    ax.set_ylabel("ms")
    ax.legend()
    return ax
