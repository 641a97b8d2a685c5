"""The times relative to the plain Keras step, as a picture."""

from benchmarks.harness.models import STANDARD
from benchmarks.harness.rivals import BOTH, OURS, REFERENCES, RIVALS

#: The scale is the same in all panels.
LEAST, MOST = 0.05, 400
TICKS = (0.1, 1, 10, 100)


def draw(stored, path):
    """Draws one panel a model for each task; lower is better."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks = [task for task in BOTH if task in stored]
    if not tasks:
        return
    models = [m for m in STANDARD if any(m in stored[t] for t in tasks)]
    figure, axes = plt.subplots(
        len(tasks),
        len(models),
        figsize=(2.2 * len(models) + 2, 4.2 * len(tasks) + 0.6),
        squeeze=False,
        sharey="row",
    )
    for row, task in zip(axes, tasks):
        rivals = _present(stored[task])
        for axis, model in zip(row, models):
            _panel(axis, rivals, stored[task].get(model, {}))
            axis.set_title(f"{model}, {task}", fontsize=9)
        row[0].set_yticks(range(len(rivals)))
        row[0].set_yticklabels([RIVALS[r].label for r in rivals], fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("× plain Keras step", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _present(section):
    """Rivals with a time on some model, the first of the list on top."""
    timed = {
        key.partition("@")[0]
        for found in section.values()
        for key, entry in found.items()
        if "ratio" in entry
    }
    return [rival for rival in reversed(RIVALS) if rival in timed]


def _panel(axis, rivals, found):
    found = {k.partition("@")[0]: v for k, v in found.items()}
    for place, rival in enumerate(rivals):
        entry = found.get(rival, {})
        if "ratio" not in entry:
            axis.text(0.02, place, "–", va="center", transform=_left(axis))
            continue
        middle, low, high = entry["ratio"]
        colour = _colour(rival)
        axis.hlines(place, LEAST, middle, color=colour, linewidth=1)
        axis.hlines(place, low, high, color=colour, linewidth=5, alpha=0.4)
        axis.plot(middle, place, "o", color=colour, markersize=6)
        axis.annotate(
            f"{middle:.2g}" if middle < 10 else f"{middle:.0f}",
            (middle, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    axis.set_xscale("log")
    axis.set_xlim(LEAST, MOST)
    axis.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS], fontsize=7)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)


def _left(axis):
    """Places across in parts of the panel, up and down in rivals."""
    return axis.get_yaxis_transform()


def _colour(rival):
    if rival in OURS:
        return "tab:orange"
    return "silver" if rival in REFERENCES else "tab:blue"
