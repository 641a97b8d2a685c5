"""The table that `explain` returns: its data, and how it prints."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from keras_pergrad.common.machine import as_text
from keras_pergrad.common.text import first_few, html_page, text_page

COLUMNS = (
    "layer",
    "served by",
    "variable",
    "used in",
    "norms",
    "sum",
    "materialized",
    "held",
)


@dataclasses.dataclass(frozen=True)
class VariableRow:
    """How the per-sample gradients of one variable are computed.

    Attributes:
        path: the variable's path.
        shape: its shape.
        norms: the method for the norms.
        sum: the method for the weighted sum.
        materialized_bytes: what all n gradients would take, written out.
        held_bytes: what the norms hold at their peak, in addition to the
            layer's input and output gradient; None if a shape is not known.
        shared: whether it is used several times; the uses are then joined.
        ops: for each use the type of the op that combines it with the data, or
            the class of the layer whose rule supports it.
    """

    path: str
    shape: tuple[int, ...]
    norms: str
    sum: str
    materialized_bytes: int
    held_bytes: int | None
    shared: bool = False
    ops: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class VouchedOp:
    """An op for which `compile(vouched=...)` vouches.

    Attributes:
        op: its type.
        name: its name in the step.
        layer: the name of its layer, or None.
    """

    op: str
    name: str
    layer: str | None


@dataclasses.dataclass(frozen=True)
class LayerRow:
    """How one layer with weights is supported.

    Attributes:
        layer: its name.
        path: its name after the names of the layers around it, such as
            "block/dense".
        type: its class.
        served_by: "ops": by the rules of the ops that use its weights;
            "rule": by a rule of the layer; "fallback": an op is
            differentiated for one sample after the other; "refused";
            "unused": neither the outputs nor what is given to `add_loss`
            depend on its trainable variables; or "unknown": likewise, but the
            model has a loss of its own, which may.
        reason: why the fallback serves it, why it is not known, or the text
            of the refusal.
        calls: how often a weight of it is used in a forward pass.
        variables: a `VariableRow` for each variable that it yields.
        verdict: what is known of its samples. "proved": none are mixed, by
            the types of all ops; "vouched": likewise, but for ops in it that
            the user vouches for; "refused", for the `reason`; "open": another
            layer is refused, or the outputs do not depend on this one.
        vouched: a `VouchedOp` for each of these ops.
    """

    layer: str
    path: str
    type: str
    served_by: str
    reason: str | None
    calls: int
    variables: tuple[VariableRow, ...] = ()
    verdict: str = "open"
    vouched: tuple[VouchedOp, ...] = ()


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The table that `explain` returns; iterate over it for its rows.

    Attributes:
        model: the model's name.
        batch_size: the number of samples that was given to `explain`.
        jit_compile: whether the step would be compiled by XLA.
        rows: a `LayerRow` for each layer that has weights or is refused.
        split: what `Accumulated` does with a batch, where the model is
            compiled with it; else None.
        ops: how many ops of the forward and the backward pass were examined.
        vouched: a `VouchedOp` for each that the user vouches for.
        products: what is lost of products, where a GPU makes them of fewer
            bits than the model has; else None.
    """

    model: str
    batch_size: int
    jit_compile: bool
    rows: tuple[LayerRow, ...]
    split: str | None = None
    ops: int = 0
    vouched: tuple[VouchedOp, ...] = ()
    products: str | None = None
    _memory: Any = dataclasses.field(default=None, repr=False, compare=False)

    @functools.cached_property
    def memory(self):
        """The peak memory of a step, a `StepMemory`.

        It is measured when this is first read, in some seconds: a copy of the
        model runs three steps, on a CPU in a process of its own. They are of
        the model's gradient mode, or of `Vectorized(ClippedMean(1.0))` instead
        of "batch". What is not compiled is trained by SGD on the mean squared
        error. Without `x` the samples are zeros; without `y` so are the
        targets, like the outputs, or class numbers for a sparse loss.

        Raises:
            ValueError: the model cannot be saved, loaded or trained in the
                mode.
            MemoryError: the steps need more memory than is free.
        """
        return self._memory()

    def __iter__(self) -> Iterator[LayerRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def refused(self) -> list[LayerRow]:
        """The rows of layers that a per-sample mode refuses."""
        return [row for row in self.rows if row.served_by == "refused"]

    @property
    def verdict(self) -> str:
        """What is known of the model: "proved", "vouched" or "refused"."""
        if self.refused:
            return "refused"
        return "vouched" if self.vouched else "proved"

    @property
    def summary(self) -> str:
        """One line on whether the samples are kept separate."""
        if self.refused:
            rows = zip(self.rows, _unique_labels(self.rows))
            labels = [own for row, own in rows if row.served_by == "refused"]
            return (
                f"Samples are not kept separate: {first_few(labels)} refused."
            )
        proved = f"all {self.ops} ops"
        if self.vouched:
            op_types = ", ".join(sorted({one.op for one in self.vouched}))
            proved = (
                f"{self.ops - len(self.vouched)} of {self.ops} ops, vouched "
                f"for by you: {len(self.vouched)} ({op_types})"
            )
        return (
            f"Samples are kept separate: proved for {proved}; the loss is "
            "looked at when training begins."
        )

    @property
    def materialized_bytes(self) -> int:
        """What all per-sample gradients would take, written out."""
        return sum(v.materialized_bytes for v in self._variables())

    @property
    def held_bytes(self) -> int:
        """What the norms hold in total, where the shapes are known."""
        return sum(v.held_bytes or 0 for v in self._variables())

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as plain dicts, for JSON or a data frame."""
        return [dataclasses.asdict(row) for row in self.rows]

    def _variables(self):
        return {v.path: v for row in self.rows for v in row.variables}.values()

    def _title(self):
        xla = "on" if self.jit_compile else "off"
        return (
            f"Per-sample gradients of {self.model!r}, batch of "
            f"{self.batch_size}, XLA {xla}"
        )

    def _sums(self):
        """Yield what all layers take, where none is refused."""
        if not self.refused:
            yield (
                "All gradients written out: "
                f"{_size(self.materialized_bytes)}; held for the norms: "
                f"{_size(self.held_bytes)}. `.memory` measures the peak of a "
                "step."
            )

    def _notes(self):
        """Yield the notes: the split, the products, and the layers' reasons."""
        if self.split:
            yield self.split
        if self.products:
            yield self.products
        places = [f"{v.op} in {v.layer or self.model}" for v in self.vouched]
        if places:
            yield f"vouched for: {', '.join(dict.fromkeys(places))}"
        labels_by_reason = {}
        for row, label in zip(self.rows, _unique_labels(self.rows)):
            if row.reason:
                key = row.served_by, row.reason
                labels_by_reason.setdefault(key, []).append(label)
        for (served_by, reason), labels in labels_by_reason.items():
            yield f"{first_few(labels)}: {served_by}: {reason}"

    def __str__(self) -> str:
        notes = [*self._sums(), self.summary, *self._notes()]
        rows = _row_cells(self.rows)
        return text_page(
            self._title(), COLUMNS, rows, notes=notes, left=COLUMNS[:6]
        )

    # A prompt shows this; a notebook uses the next method.
    __repr__ = __str__

    def _repr_html_(self):
        lines = [*self._sums(), self.summary]
        rows = _row_cells(self.rows)
        return html_page(
            self._title(), COLUMNS, rows, sentences=lines, notes=self._notes()
        )


def _unique_labels(rows):
    """Yield names, each with enough of its path to be unique."""
    paths = [row.path.split("/") for row in rows]
    for path_parts in paths:
        for count in range(1, len(path_parts) + 1):
            suffix = path_parts[-count:]
            if sum(path[-count:] == suffix for path in paths) == 1:
                break
        yield "/".join(suffix)


def _row_cells(rows):
    for row, label in zip(rows, _unique_labels(rows)):
        head = [f"{label} ({row.type})", row.served_by]
        if row.calls > 1:
            head[0] += f" ×{row.calls}"
        if not row.variables:
            yield [*head, *[""] * 6]
        for variable in row.variables:
            name = variable.path.split("/")[-1]
            yield [
                *head,
                name + (" (shared)" if variable.shared else ""),
                ", ".join(dict.fromkeys(variable.ops)),
                variable.norms,
                variable.sum,
                _size(variable.materialized_bytes),
                _size(variable.held_bytes),
            ]
            head = ["", ""]


def _size(count):
    return "?" if count is None else as_text(count)
