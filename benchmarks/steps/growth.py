"""How the clipped step grows with the batch, beside the plain one."""

from benchmarks.harness.rivals import RIVALS as ALL

SIZES = tuple(2**k for k in range(4, 11))
#: What takes turns; each is compared with the plain step of its kind.
UNITS = {
    "ours": "plain",
    "ours_accumulated": "plain",
    "ours_replicas": "plain_replicas",
}
RIVALS = (
    "plain",
    "ours",
    "ours_accumulated",
    "plain_replicas",
    "ours_replicas",
)


def times(found):
    """{rival: {batch: milliseconds}} of a model's part of the results."""
    by_rival = {}
    for key, entry in found.items():
        rival, _, batch = key.partition("@")
        if "ms" in entry:
            by_rival.setdefault(rival, {})[int(batch)] = entry["ms"][0]
    return by_rival


def rows(section):
    """Cells of a table: the plain step's milliseconds, and the ratios."""
    for model, found in section.items():
        taken = times(found)
        for rival in ("plain", *UNITS):
            mine, unit = taken.get(rival, {}), taken.get(UNITS.get(rival), {})
            if not mine:
                continue
            cells = [f"{model}, {ALL[rival].label}"]
            for size in SIZES:
                if size not in mine:
                    cells.append("–")
                elif rival == "plain":
                    cells.append(f"{mine[size]:.3g} ms")
                else:
                    cells.append(f"{mine[size] / unit[size]:.2f}×")
            yield cells


def draw(section, path):
    """Draws times and ratios against the size, a column a model."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        2,
        len(section),
        figsize=(3.2 * len(section) + 1, 5.6),
        squeeze=False,
        sharex=True,
        layout="constrained",
    )
    for (above, below), (model, found) in zip(axes.T, section.items()):
        taken = times(found)
        for rival, mine in taken.items():
            label = ALL[rival].label
            above.plot(*zip(*mine.items()), marker=".", label=label)
            unit = taken.get(UNITS.get(rival), {})
            ratios = [mine[n] / unit[n] if unit else 1 for n in mine]
            below.plot(list(mine), ratios, marker=".")
        above.set_title(model)
        above.set_xscale("log", base=2)
        above.set_yscale("log")
        below.set_ylim(0)
        below.set_xticks(SIZES, [str(size) for size in SIZES], fontsize=7)
        below.set_xlabel("batch size")
    axes[0, 0].set_ylabel("step, ms")
    axes[1, 0].set_ylabel("× plain step of its kind")
    axes[0, 0].legend(fontsize=6)
    figure.savefig(path, dpi=110)
    plt.close(figure)
