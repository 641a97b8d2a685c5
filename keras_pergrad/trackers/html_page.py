"""The tracker that writes a page: no script, no other file, no network."""

import contextlib
import math
import os
import time
from collections.abc import Sequence
from html import escape
from typing import Any

from keras_pergrad.common import text as tables
from keras_pergrad.runs import drawing
from keras_pergrad.runs.alignment import even_indices
from keras_pergrad.runs.page import figure, main, whole
from keras_pergrad.runs.report import format_number
from keras_pergrad.trackers.tracker import Tracker

# Measurements that a chart, and a line in the table, shows.
_MAX_CHART_STEPS, _MAX_TABLE_STEPS = 200, 40
_REFRESH_SECONDS = 5
# Times that it took to write the page until it is written again.
_PAUSE = 20
_NAN = float("nan")
# A count for who compares repetitions bit by bit: the logs have it.
_NOT_DRAWN = ("bitwise_equal_variables",)
_CAPTIONS = {
    "loss": "The compiled loss of the measured batch, over the updates.",
    "gradient_norm": "Norm of the mean gradient, in loss per unit of weight.",
    "gradient_variance": "Trace of the covariance of the samples' gradients, "
    "in the unit of the squared norm.",
    "gradient_noise_scale": "Variance over the squared norm, in samples.",
    "gradient_snr": "Signal over noise of the batch, without unit.",
    "gradient_repeat_deviation": "Largest distance of a repeated gradient, "
    "as a share of the norm.",
    "gradient_norm_test": "Standard error of the mean gradient over its norm: "
    "above 1 the batch is mostly noise.",
    "gradient_inner_product_test": "Standard error of the samples' slopes "
    "along the mean gradient, over its squared norm.",
    "gradient_orthogonality_test": "Standard error sideways to the mean "
    "gradient, over its norm.",
    "gradient_cabs": "The batch size that suits the rate, in samples.",
    "gradient_snr_by_weight": "Squared mean over variance of a weight's "
    "gradient, averaged over the weights.",
    "gradient_early_stopping": "Evidence that only noise is left: for "
    "stopping, above 0.",
    "gradient_update_ratio": "Norm of the last update over that of the "
    "weights.",
    "gradient_distance": "Distance of the weights from where fit began.",
    "gradient_alpha": "Where the last update went on a parabola: 0 is its "
    "least loss, above 1 the loss rises.",
    "gradient_dead_units": "Share of the units that no sample moves.",
    "gradient_vanishing_layers": "How many layers have a gradient over their "
    "weights, by norms, below 1e-4 of the median layer.",
    "gradient_exploding_layers": "How many have one above 1,000.",
}
_FACT_FIELDS = (
    "seed",
    "device",
    "batch_size",
    "steps_per_epoch",
    "probe_samples",
)


class Page(Tracker):
    """Writes one page that shows the loss and the figures over the steps.

    It is for light and dark, needs no network, and is rewritten at the
    measurements, in one move: a browser that has it open loads it again every
    few seconds until the run has ended. Where measurements follow at once,
    some are passed over: the page takes at most a twentieth of the time.
    `callbacks.GradientVariance` with `log_dir` writes one for each run,
    `index.html` in the run's directory.

    Args:
        path: of the file to write.
        earlier: the readings before, of a run that is resumed.

    Example:

    >>> import tempfile, keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.eye(4), np.ones((4, 3))
    >>> page = kpg.trackers.Page(f"{tempfile.mkdtemp()}/gradients.html")
    >>> watch = kpg.callbacks.GradientVariance(probe=(x, y), trackers=[page])
    >>> history = model.fit(x, y, verbose=0, callbacks=[watch])
    """

    def __init__(
        self, path: str | os.PathLike[str], earlier: Sequence[Any] = ()
    ):
        self.path: str = os.fspath(path)
        self._earlier = list(earlier)
        self._run, self._readings, self._next_save = None, [], 0.0
        self._advice, self._state = None, "ended"

    def begin(self, run: Any) -> None:
        self._advice, self._state = None, "ended"
        self._run, self._readings, self._next_save = run, self._earlier, 0.0
        self._earlier = []

    def write(self, reading: Any) -> None:
        earlier = [r for r in self._readings if r.step < reading.step]
        self._readings = [*earlier, reading]
        start = time.monotonic()
        if start >= self._next_save:
            self._save(running=True)
            now = time.monotonic()
            self._next_save = now + _PAUSE * (now - start)

    def advise(self, advice: Any) -> None:
        self._advice = advice

    def interrupt(self) -> None:
        self._state = "interrupted"

    def end(self) -> None:
        if self._readings:
            self._save(running=False)
        self._readings = []

    def _save(self, running):
        refresh = f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">'
        text = whole(
            _title(self._run),
            _page_content(
                self._run,
                self._readings,
                "still running" if running else self._state,
                self._advice,
            ),
            refresh * running,
        )
        # Beside it, so that no browser sees half of a page.
        temporary = f"{self.path}.new"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise


def _title(run):
    return f"Gradients of {run.run}" if run.run else "Gradients"


def _page_content(run, readings, state, advice):
    last = readings[-1]
    shown = [readings[i] for i in even_indices(len(readings), _MAX_CHART_STEPS)]
    facts = [
        f"{name.replace('_', ' ')} {value}"
        for name in _FACT_FIELDS
        if (value := getattr(run, name)) is not None
    ] + [f"{name} {value}" for name, value in run.tags.items()]
    norms = last.histograms.get("sample_norms")
    return main(
        [
            f"<h1>{escape(_title(run))}</h1>",
            f'<p class="muted">step {last.step}, {state} · {len(readings)} '
            f"measurements of {last.samples} samples</p>",
            f'<p class="muted">{escape(" · ".join(facts))}</p>',
            *[
                f"<p>{name}: {escape(', '.join(paths))}</p>"
                for name, paths in last.layers.items()
                if paths
            ],
            *_advice_html(advice),
            '<div class="charts">',
            _loss_figure(shown),
            *[
                _chart_figure(
                    name, [r.figures.get(name, _NAN) for r in shown], shown
                )
                for name in _field_names(shown, "figures")
                if name not in _NOT_DRAWN
            ],
            _norm_figure(norms) if norms is not None else "",
            "</div>",
            _table(shown),
        ]
    )


def _advice_html(advice):
    """Return paragraphs of advice; None: none was given."""
    if advice is None:
        return []
    lines = [f"<p>{item.name}: {escape(item.text)}</p>" for item in advice]
    return ["<h2>Advice</h2>", *(lines or ["<p>Nothing to advise.</p>"])]


def _field_names(readings, field):
    """Return the names in any reading, in order."""
    return dict.fromkeys(name for r in readings for name in getattr(r, field))


def _loss_figure(readings):
    values = [_NAN if r.loss is None else r.loss for r in readings]
    if all(map(math.isnan, values)):
        return ""
    return _chart_figure("loss", values, readings)


def _chart_figure(name, values, readings):
    steps = [r.step for r in readings]
    values = [float(value) for value in values]
    measured = name.removeprefix("train_")
    of_training = " Of the training batches." if measured != name else ""
    note = f"Last: {format_number(values[-1])}"
    if measured in _CAPTIONS:
        note = f"{_CAPTIONS[measured]}{of_training} {note}"
    infinite = [s for s, v in zip(steps, values) if math.isinf(v)]
    if infinite:
        note += f"; infinite at step {', '.join(map(str, infinite[:5]))}"
    return figure(
        name, drawing.chart(name, steps, [drawing.Line(values)]), note
    )


def _norm_figure(histogram):
    title = "Norms of the samples' gradients"
    return figure(title, drawing.bars(title, histogram), "at the last step")


def _table(readings):
    """Return each variable's last values, with their lines over the steps."""
    sampled = [
        readings[i] for i in even_indices(len(readings), _MAX_TABLE_STEPS)
    ]
    last, steps = sampled[-1], [r.step for r in sampled]
    instruments = list(_field_names(sampled, "by_variable"))
    has_histograms = any(name != "sample_norms" for name in last.histograms)
    heads = [
        "variable",
        *instruments,
        *(["gradient"] if has_histograms else []),
    ]
    rows = []
    for i, path in enumerate(last.variable_names):
        cells = [escape(path)]
        for name in instruments:
            series = [r.by_variable.get(name) for r in sampled]
            values = [_NAN if v is None else float(v[i]) for v in series]
            line = drawing.sparkline(steps, values)
            cells.append(f"{line} {format_number(values[-1])}")
        if has_histograms:
            cells.append(_entry_cell(last.histograms.get(f"gradient/{path}")))
        rows.append([f"<td>{cell}</td>" for cell in cells])
    return f"<h2>By variable</h2>{tables.cells_as_html(heads, rows)}"


def _entry_cell(histogram):
    """Return the cell of the entries of a variable's gradient."""
    if histogram is None:
        return ""
    low, high = (format_number(histogram.edges[i]) for i in (0, -1))
    return f"{low} {drawing.bars('', histogram, small=True)} {high}"
