"""The page of a recorded run: no script, no other file, no network."""

import math
import os
import time
from html import escape

from keras_pergrad.common import text as tables
from keras_pergrad.common.arguments import named_arguments
from keras_pergrad.common.page import figure, main, whole, write
from keras_pergrad.common.pictures import gallery
from keras_pergrad.runs import drawing, records
from keras_pergrad.runs.alignment import even_indices
from keras_pergrad.runs.figures import FIGURES, Figure
from keras_pergrad.runs.recorder import read_advice
from keras_pergrad.runs.report import format_number

# Measurements that a chart, and a line in the table, shows.
_MAX_CHART_STEPS, _MAX_TABLE_STEPS = 200, 40
_NAN = float("nan")
_LOSS = Figure("loss", "Compiled loss of the measured batch")
# Headings of the numbers of a variable; others are their names in words.
_HEADS = {"snr": "signal over noise", "norm": "norm of the mean gradient"}
_FACTS = "seed", "device", "batch_size", "steps_per_epoch", "probe_samples"


@named_arguments
def page(
    path: str | os.PathLike[str], *, to: str | os.PathLike[str] | None = None
) -> str:
    """Write a page that shows a recorded run, even one still in progress.

    It has the loss and all figures over the updates, the advice, and the
    numbers of each variable. It is for light and dark, and needs no other
    file and no network. `keras-pergrad show DIR` does the same.

    Args:
        path: the run's directory.
        to: the file to write; None: `index.html` in the run's directory.

    Returns:
        The path of the file. Charts need the extra `keras-pergrad[plot]`;
        without it the page says so.

    Raises:
        FileNotFoundError: `path` is not a run.
        ValueError: the run has no records yet, its records are of another
            version, or damaged.

    Example:

    ```python
    for path in kpg.runs.list_runs("runs"):
        print(kpg.runs.page(path))
    ```
    """
    run = records.read_run(path)
    readings = run.readings
    if not readings:
        raise ValueError(
            f"The run {run.path!r} expected a record or more. Received: none "
            "yet."
        )
    title = f"Gradients of {run.info['run']}"
    content = _content(title, run.info, readings, advice=read_advice(run.path))
    target = os.path.join(run.path, "index.html") if to is None else to
    return write(target, whole(title, content))


def _content(title, info, readings, *, advice):
    last = readings[-1]
    shown = [readings[i] for i in even_indices(len(readings), _MAX_CHART_STEPS)]
    facts = [
        f"{name.replace('_', ' ')} {info[name]}"
        for name in _FACTS
        if info.get(name) is not None
    ] + [f"{name} {value}" for name, value in info["tags"].items()]
    measured = time.strftime("%Y-%m-%d %H:%M", time.localtime(last.time))
    return main(
        [
            f"<h1>{escape(title)}</h1>",
            f'<p class="muted">{len(readings)} measurements of {last.samples} '
            f"samples, the last at step {last.step}, {measured}</p>",
            f'<p class="muted">{escape(" · ".join(facts))}</p>',
            *[
                f"<p>{name}: {escape(', '.join(paths))}</p>"
                for name, paths in last.layers.items()
                if paths
            ],
            *_advice_html(advice),
            gallery(_charts(shown, last)),
            _table(readings),
        ]
    )


def _advice_html(advice):
    """Return paragraphs of advice; None: none was given."""
    if advice is None:
        return []
    lines = [f"<p>{name}: {escape(text)}</p>" for name, text in advice]
    return ["<h2>Advice</h2>", *(lines or ["<p>Nothing to advise.</p>"])]


def _charts(readings, last):
    """Yield the charts of the loss, of all figures and of the norms."""
    losses = [_NAN if r.loss is None else r.loss for r in readings]
    if not all(map(math.isnan, losses)):
        yield _chart(_LOSS, losses, readings)
    for name in _names(readings, "figures"):
        shown = FIGURES.get(name, Figure(name, name))
        if shown.is_drawn:
            values = [r.figures.get(name, _NAN) for r in readings]
            yield _chart(shown, values, readings)
    norms = last.histograms.get("sample_norms")
    if norms is not None:
        title = "Norms of the samples' gradients"
        yield figure(title, drawing.bars(title, norms), "At the last step.")


def _chart(shown, values, readings):
    """Return a chart of a figure, titled by the first clause of its caption."""
    title, _, note = shown.caption.rstrip(".").partition(": ")
    notes = [note[:1].upper() + note[1:]] if note else []
    notes += [f"Unit: {shown.unit}"] if shown.unit else []
    last = f"Last: {format_number(values[-1])}"
    infinite = [str(r.step) for r, v in zip(readings, values) if math.isinf(v)]
    if infinite:
        last += f"; infinite at step {', '.join(infinite[:5])}"
    steps = [r.step for r in readings]
    drawn = drawing.chart(title, steps, [drawing.Line(values)])
    # The name in the logs and records stands last, where it is not the title.
    names = [f"In the logs: {shown.name}"] if shown.name != title else []
    return figure(title, drawn, ". ".join([*notes, last, *names]))


def _names(readings, field):
    """Return the names in any reading, in order."""
    return dict.fromkeys(name for r in readings for name in getattr(r, field))


def _table(readings):
    """Return each variable's last numbers, with their lines over the steps."""
    sampled = [
        readings[i] for i in even_indices(len(readings), _MAX_TABLE_STEPS)
    ]
    last, steps = sampled[-1], [r.step for r in sampled]
    names = list(_names(sampled, "by_variable"))
    rows = []
    for i, path in enumerate(last.variable_names):
        cells = [escape(path)]
        for name in names:
            series = [r.by_variable.get(name) for r in sampled]
            values = [_NAN if v is None else float(v[i]) for v in series]
            line = drawing.sparkline(steps, values)
            cells.append(f"{line} {format_number(values[-1])}")
        rows.append([f"<td>{cell}</td>" for cell in cells])
    heads = [_HEADS.get(name, name.replace("_", " ")) for name in names]
    table = tables.cells_as_html(["variable", *heads], rows)
    return f"<h2>By variable</h2>{table}"
