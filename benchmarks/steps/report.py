"""The results as Markdown tables, with the picture beside them."""

from benchmarks.harness.models import LARGE, STANDARD
from benchmarks.harness.rivals import BOTH, CLIPPED, REAL_MODELS, RIVALS
from benchmarks.harness.tables import table
from benchmarks.steps import growth, picture, real_models, targets

_TITLES = {
    CLIPPED: "Clipped step: milliseconds (times plain Keras)",
    "materialised": "All per-sample gradients written out",
    "xla": "Clipped step under XLA: milliseconds (times plain Keras under XLA)",
}

#: Whose first steps are told.
_TIMED = ("plain", "ours", "plain_xla", "ours_xla")
_REAL_TITLE = "## Models that people train, clipped"


def write(stored, path):
    """Writes PATH.md and PATH.png beside the stored results."""
    path.with_suffix(".md").write_text(markdown(stored))
    picture.draw(stored, path.with_suffix(".png"))
    if "growth" in stored:
        growth.draw(stored["growth"], path.with_name(f"{path.stem}_growth.png"))


def markdown(stored):
    """All tables."""
    parts = ["# Results", _machine(stored["machine"])]
    for task in _TITLES:
        if task in stored:
            parts += [f"## {_TITLES[task]}", _times(stored[task])]
    if "growth" in stored:
        parts += ["## Growth with the batch, clipped", _growth(stored)]
    if "alone" in stored:
        found = {m: _by_rival(v) for m, v in stored["alone"].items()}
        parts += ["## Peak memory, clipped, MB", _alone(found, "peak_mb")]
        timed = {
            m: {r: v for r, v in rivals.items() if r in _TIMED}
            for m, rivals in found.items()
        }
        parts += ["## First step, clipped, ms", _alone(timed, "first_ms")]
    if "large" in stored:
        parts += ["## Large layers, clipped", _large(stored["large"])]
    if REAL_MODELS in stored:
        section = stored[REAL_MODELS]
        parts += [_REAL_TITLE, real_models.table(section)]
    parts += ["## Targets", targets.table(stored), _reasons(stored)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _machine(machine):
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} "
        f"threads for everyone, no accelerator, {machine['system']}. "
        f"{versions}."
    )


def _split(key):
    rival, _, batch = key.partition("@")
    return rival, int(batch)


def _times(section):
    """Rivals down, models across."""
    models = [m for m in STANDARD if m in section]
    rows = []
    for rival, entry in RIVALS.items():
        cells = []
        for model in models:
            found = _by_rival(section[model])
            cells.append(_cell(found.get(rival)))
        if any(cell != "" for cell in cells):
            label = f"**{entry.label}**" if rival == "ours" else entry.label
            rows.append([label, *cells])
    return table(["", *models], rows)


def _cell(found):
    if found is None:
        return ""
    if "error" in found:
        return "–"
    text = number(found["ms"][0])
    if "ratio" in found:
        text += f" ({number(found['ratio'][0])}×)"
    return text


def number(value):
    """Three digits that count."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _growth(stored):
    sizes = [f"{size:,}" for size in growth.SIZES]
    return table(["", *sizes], list(growth.rows(stored["growth"])))


def _by_rival(found):
    return {_split(key)[0]: value for key, value in found.items()}


def _alone(section, field):
    models = [m for m in STANDARD if m in section]
    rows = []
    for rival, entry in RIVALS.items():
        found = [section[m].get(rival, {}).get(field) for m in models]
        if any(value is not None for value in found):
            cells = ["–" if v is None else f"{v:.0f}" for v in found]
            rows.append([entry.label, *cells])
    return table(["", *models], rows)


def _large(section):
    rows = []
    for model in LARGE:
        for key, found in section.get(model, {}).items():
            rival, batch = _split(key)
            rows.append(
                [
                    f"{model}, batch {batch}",
                    RIVALS[rival].label,
                    _cell(found),
                    f"{found['peak_mb']:.0f}" if "peak_mb" in found else "–",
                ]
            )
    return table(["", "", "ms", "peak MB"], rows)


def _reasons(stored):
    """Why a cell is empty, and who disagrees with us."""
    lines = []
    for task in BOTH:
        for model, found in stored.get(task, {}).items():
            for key, entry in found.items():
                rival, _ = _split(key)
                note = _note(rival, entry)
                if note:
                    label = RIVALS[rival].label
                    lines.append(f"- {task}, {model}, {label}: {note}")
    return "\n".join(["Empty cells and disagreements:", "", *lines])


def _note(rival, entry):
    if "error" in entry:
        return entry["error"]
    if rival.endswith(("plain", "plain_xla")) or rival == "ours_statistics":
        return None
    difference = entry.get("difference")
    if difference is not None and difference > 1e-3:
        return f"gradients differ from ours by {difference:.1e}"
    return None
