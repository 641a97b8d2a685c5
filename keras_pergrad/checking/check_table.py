"""The result of `check_gradients`: its data, its text and its meaning."""

import dataclasses

from keras_pergrad.checking.numerics import (
    EXACT,
    ROUNDING,
    TENSOR_FLOAT_32,
    WRONG,
    Verdict,
)
from keras_pergrad.common.text import WIDTH, first_few, html_page, text_page

REFUSED = "refused"
CANNOT_TELL = "cannot tell"
#: Above this part of a gradient's size, a limit for rounding says nothing.
LARGEST_LIMIT = 0.25
COLUMNS = (
    "mode",
    "device",
    "how",
    "verdict",
    "error",
    "relative",
    "limit",
    "repeats",
    "ms",
)


@dataclasses.dataclass(frozen=True)
class CheckRow:
    """One way to compute the gradient, and how it compares.

    Attributes:
        mode: the gradient mode.
        device: its device.
        setting: `"eager"`, `"graph"` or `"xla"`.
        verdict: `"exact"`, `"rounding"`, `"wrong"` or `"refused"`; or
            `"cannot tell"`: within the limit, but the limit is above a quarter
            of the gradient's size and would hide most mistakes.
        verdicts: variable's path → `Verdict`, the worst of all repeats.
        between_repeats: the largest difference between repeats.
        step_ms: the median time of a step's gradients.
        reason: why it was refused, or is wrong without having been run;
            else `""`.
        dtype: the format of its products, by which it was judged, or `""`.
    """

    mode: str
    device: str
    setting: str
    verdict: str
    verdicts: dict[str, Verdict] = dataclasses.field(default_factory=dict)
    between_repeats: float | None = None
    step_ms: float | None = None
    reason: str = ""
    dtype: str = ""

    @property
    def worst(self) -> tuple[str, Verdict] | None:
        """`(path, Verdict)` of the variable worst relative to its limit."""
        if not self.verdicts:
            return None
        return max(
            self.verdicts.items(),
            key=lambda item: item[1].relative / item[1].tolerance,
        )

    @property
    def error(self) -> float | None:
        """The largest absolute difference, `None` if refused."""
        return max((v.error for v in self.verdicts.values()), default=None)

    @property
    def relative(self) -> float | None:
        """The largest relative difference, `None` if refused."""
        return max((v.relative for v in self.verdicts.values()), default=None)

    @property
    def wrong(self) -> list[str]:
        """The paths whose difference rounding does not explain."""
        return [path for path, v in self.verdicts.items() if not v.ok]


@dataclasses.dataclass(frozen=True)
class GradientCheck:
    """The table that `check_gradients` returns; `print` it.

    Attributes:
        model: the model's name.
        samples: the size of the batch.
        reference: what the rows were compared with.
        rows: a list of `CheckRow`.
        notes: sentences about how it was checked.
    """

    model: str
    samples: int
    reference: str
    rows: list[CheckRow]
    notes: list[str]

    @property
    def ok(self) -> bool:
        """Whether at least one row was compared and none is wrong."""
        verdicts = {row.verdict for row in self.rows}
        return WRONG not in verdicts and bool(verdicts & {EXACT, ROUNDING})

    @property
    def wrong(self) -> list[CheckRow]:
        """The rows that rounding does not explain."""
        return [row for row in self.rows if row.verdict == WRONG]

    @property
    def refused(self) -> list[CheckRow]:
        """The rows that could not be compared."""
        return [row for row in self.rows if row.verdict == REFUSED]

    @property
    def answer(self) -> str:
        """A few plain sentences on whether the gradients are consistent."""
        compared = [row for row in self.rows if row.verdict != REFUSED]
        if not compared:
            return "No answer: every way to the gradient was refused."
        if {row.verdict for row in compared} == {CANNOT_TELL}:
            return _cannot_tell_sentence(compared)
        sentences = [_agreement_sentence(compared), _repeats_sentence(compared)]
        if self.refused:
            modes = ", ".join(dict.fromkeys(row.mode for row in self.refused))
            sentences.append(f"Not compared in every way: {modes}.")
        return " ".join(sentences)

    def _lines(self):
        for row in self.wrong:
            if row.worst is not None:
                path, verdict = row.worst
                more = len(row.wrong) - 1
                others = f" (and {more} more)" if more else ""
                yield f"{_place_of(row)}: {verdict.sentence(path)}{others}"
        rows_by_reason = {}
        for row in self.rows:
            if row.reason:
                key = row.verdict, row.reason
                rows_by_reason.setdefault(key, []).append(row)
        for (verdict, reason), rows in rows_by_reason.items():
            modes = ", ".join(dict.fromkeys(row.mode for row in rows))
            yield f"{modes}: {verdict}: {reason}"
        for note in self.notes:
            yield f"note: {note}"

    def _title(self):
        return (
            f"Gradients of {self.model!r}, batch of {self.samples}, "
            f"against {self.reference}"
        )

    def __str__(self) -> str:
        rows, notes = map(_row_cells, self.rows), [*self._lines(), self.answer]
        return text_page(
            self._title(),
            COLUMNS,
            rows,
            notes=notes,
            left=COLUMNS[:4],
            width=WIDTH,
        )

    def _repr_html_(self):
        rows = map(_row_cells, self.rows)
        return html_page(
            self._title(),
            COLUMNS,
            rows,
            sentences=[self.answer],
            notes=self._lines(),
        )


def _row_cells(row):
    head = [row.mode, row.device, row.setting, row.verdict]
    if not row.verdicts:
        return [*head, *[""] * 5]
    limit = row.worst[1].tolerance
    between = row.between_repeats
    return [
        *head,
        f"{row.error:.1e}",
        f"{row.relative:.1e}",
        f"{limit:.1e}",
        f"{between:.1e}" if between else "0",
        f"{row.step_ms:.2f}",
    ]


def _place_of(row):
    return f"{row.mode} on {row.device}, {row.setting}"


def _agreement_sentence(rows):
    wrong = [row for row in rows if row.verdict == WRONG]
    if not wrong:
        telling = [row for row in rows if row.verdict != CANNOT_TELL]
        sentence = (
            f"Yes: {len(telling)} of {len(rows)} ways give the same gradients"
        )
        if len(telling) < len(rows):
            return f"{sentence}; of the others the number format cannot tell."
        largest = max(row.relative for row in rows)
        if not largest:
            return f"{sentence}, to the last bit."
        return (
            f"{sentence}, to {largest:.1g} of their size, which is "
            f"{_difference_cause(rows)}."
        )
    return (
        f"No: {len(wrong)} of {len(rows)} ways are wrong. "
        f"{_blame_sentence(rows)}"
    )


def _difference_cause(rows):
    """Return what the differences are due to."""
    short_format_devices = [
        row.device for row in rows if row.dtype == TENSOR_FLOAT_32
    ]
    if not short_format_devices:
        return "rounding"
    devices = ", ".join(dict.fromkeys(short_format_devices))
    return (
        f"rounding, on {devices} to the ten bits of TensorFloat-32 "
        "(tf.config.experimental.enable_tensor_float_32_execution(False) "
        "before gives all digits)"
    )


def _cannot_tell_sentence(rows):
    limit = max(row.worst[1].tolerance for row in rows)
    return (
        f"Cannot tell: rounding alone may be {limit:.0%} of a gradient in "
        "this number format, so that no difference means anything. Check the "
        "model in float32 (keras.config.set_dtype_policy('float32') before "
        "it is made)."
    )


def _blame_sentence(rows):
    """Return a sentence on what only the wrong rows have in common."""
    if any(row.reason for row in rows):
        return "Some were not even run: see above."
    right = [row for row in rows if row.verdict != WRONG]
    wrong = [row for row in rows if row.verdict == WRONG]
    paths = [path for row in wrong for path in row.wrong]
    variables = f" ({first_few(list(dict.fromkeys(paths)))})" if paths else ""
    for part, text in (
        ("device", "Look for the op on {} with kpg.diagnose.compare_devices"),
        ("setting", "A kernel or fusion under {} is wrong"),
        ("mode", "What computes it in mode {} is wrong"),
    ):
        # Each wrong row has a right one that differs in this part alone.
        if all(_has_twin(row, right, part) for row in wrong):
            names = ", ".join(dict.fromkeys(getattr(w, part) for w in wrong))
            return f"{text.format(names)}{variables}."
    if not right:
        return f"All differ from the reference{variables}."
    return f"What they have in common is not plain{variables}."


def _has_twin(row, right, part):
    """Whether a row that differs in only one part is right."""
    other_parts = [p for p in ("mode", "device", "setting") if p != part]
    return any(
        all(getattr(row, p) == getattr(twin, p) for p in other_parts)
        for twin in right
    )


def _repeats_sentence(rows):
    differing_rows = [row for row in rows if row.between_repeats]
    if not differing_rows:
        return "Repeats are equal to the last bit."
    largest = max(row.between_repeats for row in differing_rows)
    names = ", ".join(dict.fromkeys(row.mode for row in differing_rows))
    return f"Repeats differ by up to {largest:.1g} ({names})."
