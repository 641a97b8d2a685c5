"""The results as Markdown tables, with the picture beside them."""

from benchmarks import picture, targets
from benchmarks.models import LARGE, STANDARD
from benchmarks.rivals import BOTH, CLIPPED, RIVALS

_TITLES = {
    CLIPPED: "Clipped step: milliseconds (times plain Keras)",
    "materialised": "All per-sample gradients written out",
}


def write(stored, path):
    """Writes PATH.md and PATH.png beside the stored results."""
    text = markdown(stored)
    path.with_suffix(".md").write_text(text)
    picture.draw(stored, path.with_suffix(".png"))


def markdown(stored):
    """All tables."""
    parts = ["# Results", _machine(stored["machine"])]
    for task in BOTH:
        if task in stored:
            parts += [f"## {_TITLES[task]}", _times(stored[task])]
    if "growth" in stored:
        parts += ["## Growth with the batch, clipped", _growth(stored)]
    if "alone" in stored:
        for task, found in _by_task(stored["alone"]).items():
            parts += [f"## Peak memory, {task}, MB", _alone(found, "peak_mb")]
            parts += [f"## First step, {task}, ms", _alone(found, "first_ms")]
    if "large" in stored:
        parts += ["## Large layers, clipped", _large(stored["large"])]
    parts += ["## Targets", targets.table(stored), _reasons(stored)]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(head, rows):
    """A Markdown table."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
            found = {_split(k)[0]: v for k, v in section[model].items()}
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
    rows = []
    for model, found in stored["growth"].items():
        rivals = {}
        for key, entry in found.items():
            rival, batch = _split(key)
            rivals.setdefault(rival, {})[batch] = entry["ms"][0]
        cells = [model]
        for times in rivals.values():
            small, large = (times[batch] for batch in sorted(times))
            cells.append(
                f"{number(small)} → {number(large)} ({large / small:.2f}×)"
            )
        rows.append(cells)
    head = ["", *(RIVALS[rival].label for rival in rivals)]
    return table(head, rows)


def _by_task(section):
    """{task: {model: {rival: measurement}}} of what was measured alone."""
    tasks = {}
    for model, by_task in section.items():
        for task, found in by_task.items():
            entries = {_split(k)[0]: v for k, v in found.items()}
            tasks.setdefault(task, {})[model] = entries
    return tasks


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
