"""A drawing of the values of samples."""

import numpy as np


def plot(values, ax=None):
    """Draw the values in their order; return the matplotlib axes."""
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots()
    ordered = np.sort(values)[::-1]
    rank = np.arange(1, len(ordered) + 1)
    for helps, label in ((True, "helped"), (False, "harmed")):
        chosen = (ordered > 0) if helps else (ordered < 0)
        name = f"{label}: {int(chosen.sum())}"
        shown = np.where(chosen, ordered, 0)
        ax.fill_between(rank, shown, step="mid", label=name)
    ax.set_xlabel("sample, by value")
    ax.set_ylabel("drop of the validation loss")
    ax.legend()
    return ax
