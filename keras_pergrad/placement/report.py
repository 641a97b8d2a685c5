"""The report of a placement, as data and as text."""

import collections
import dataclasses
import sys
import textwrap
from typing import Any

from keras_pergrad.common.arguments import named_arguments
from keras_pergrad.common.text import first_few
from keras_pergrad.placement.graph import CALL, XLA
from keras_pergrad.placement.operations import TO_DEVICE, Copy, Operation

_WIDTH = 80
#: What hides ops → what is said of it, and what shows them.
_OPAQUE_TEXTS = {
    XLA: ("is compiled by XLA as one piece", "jit_compile=False"),
    CALL: (
        "is a call of a function, not inlined",
        "a function that TensorFlow may inline (no _noinline)",
    ),
}


#: A hazard's severity → what the report calls it. It is no error found.
_SEVERITIES = {"wrong": "known to be wrong on some versions"}


@dataclasses.dataclass
class PlacementReport:
    """Where a training step ran.

    A quantity that could not be obtained is `None`, never 0.

    Attributes:
        device: the accelerator's name (`"GPU:0"`), or `None`.
        platform: `"Metal"`, `"CUDA"`, ..., `"CPU"` without an accelerator.
        variables: device → how many of the model's and optimizer's
            variables live there.
        operations: a list of `Operation`, without those in opaque parts.
        copies: a list of `Copy`, or `None` where none can be seen.
        opaque: parts that TensorFlow does not show, `(name, device, why)`:
            with any of them there are no counts.
        hazards: a list of `Hazard`.
        notes: sentences about how the figures were obtained.
        deep: a `DeepReport`, with `deep=True`.
        prediction: the plugin's version if this is a prediction, or
            `"a table of your own"`.
        errors: with a prediction, ops at which the step would stop.
    """

    device: str | None
    platform: str
    variables: dict[str, int] = dataclasses.field(default_factory=dict)
    operations: list[Operation] = dataclasses.field(default_factory=list)
    copies: list[Copy] | None = dataclasses.field(default_factory=list)
    opaque: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    hazards: list[Any] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    deep: object = None
    prediction: str | None = None
    errors: list[str] = dataclasses.field(default_factory=list)

    @property
    def known(self) -> bool:
        """Whether all ops of the step could be seen."""
        return bool(self.operations) and not self.opaque

    def _count(self, cpu):
        if not self.known:
            return None
        return sum((o.kind == "cpu") == cpu for o in self.operations)

    @property
    def ops_on_accelerator(self) -> int | None:
        """Ops placed on the accelerator, each counted once."""
        return self._count(cpu=False)

    @property
    def ops_on_cpu(self) -> int | None:
        """Ops placed on the CPU, each counted once."""
        return self._count(cpu=True)

    @property
    def device_copies(self) -> int | None:
        """Copies between host and accelerator memory, each counted once."""
        if not self.known or self.copies is None:
            return None
        return len(self.copies)

    @named_arguments
    def counts(self, kind: str) -> dict[str, int] | None:
        """How many ops of each type there are, each counted once.

        Args:
            kind: `"device"`, `"generic"` or `"cpu"`.

        Returns:
            A dict from op type to a number, or `None` if more of these ops
            may be in an opaque part.
        """
        if not self.known:
            return None
        return dict(
            collections.Counter(
                operation.op
                for operation in self.operations
                if operation.kind == kind
            )
        )

    def fallbacks(self) -> list[tuple[str, str, int, tuple[str, ...]]]:
        """Ops on the CPU that could be seen, by type and reason.

        Returns:
            A list of `(op, reason, number, layers)`, most frequent first.
        """
        groups = {}
        for operation in self.operations:
            if operation.kind == "cpu" and operation.reason:
                key = operation.op, operation.reason
                groups.setdefault(key, []).append(operation.layer)
        rows = [
            (op, why, len(layers), tuple(dict.fromkeys(filter(None, layers))))
            for (op, why), layers in groups.items()
        ]
        return sorted(rows, key=lambda row: (-row[2], row[0]))

    def __str__(self) -> str:
        return "\n".join([_title_of(self), *map(_wrap, _report_lines(self))])


def _wrap(line):
    text = line.lstrip()
    indent = " " * (2 + len(line) - len(text))
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + " " * 4,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _layer_list(layers):
    return f" [{first_few(layers)}]" if layers else ""


def _title_of(report):
    if report.prediction:
        return (
            f"Placement predicted for {report.platform}, "
            f"{report.prediction}. Nothing was run there."
        )
    if report.device is None:
        title = "Placement: the CPU only. TensorFlow lists no accelerator."
        if sys.platform == "darwin":
            title += "\n  why: run python -m keras_pergrad doctor"
        return title
    return f"Placement on {report.device} ({report.platform}) and the CPU"


def _report_lines(report):
    if report.variables:
        placement = ", ".join(
            f"{n} on {d}" for d, n in report.variables.items()
        )
        yield f"variables: {placement}"
    if report.opaque:
        yield from _opaque_lines(report.opaque)
    if report.known:
        yield from _operation_lines(report)
    for error in report.errors:
        yield f"STOPS: {error}"
    for hazard in report.hazards:
        severity = _SEVERITIES.get(hazard.severity, hazard.severity)
        yield f"{severity}: {hazard.message}{_layer_list(hazard.layers)}"
    for note in report.notes:
        yield f"note: {note}"
    if report.deep is not None:
        yield from report.deep.lines(report.device)


def _opaque_lines(parts, limit=3):
    for name, device, cause in parts[:limit]:
        where = f" on {device}" if device else ""
        yield f"opaque: {name}{where} {_OPAQUE_TEXTS[cause][0]}"
    if len(parts) > limit:
        yield f"opaque: {len(parts) - limit} more parts"
    causes = {cause for _, _, cause in parts}
    remedies = [
        remedy for kind, (_, remedy) in _OPAQUE_TEXTS.items() if kind in causes
    ]
    yield (
        f"TensorFlow does not show what is inside, so ops and copies are "
        f"not counted. What shows them: {' and '.join(remedies)}."
    )


def _operation_lines(report):
    counts = collections.Counter(o.kind for o in report.operations)
    device, generic, cpu = (counts[k] for k in ("device", "generic", "cpu"))
    if report.device is None and not report.prediction:
        yield f"ops of one step: {cpu}, all on the CPU"
        return
    name = report.device or report.platform
    yield (
        f"ops of one step: {device + generic} on {name} "
        f"({device} {report.platform} kernels, {generic} of "
        f"TensorFlow's host kernels), {cpu} on the CPU"
    )
    for op, why, number, layers in report.fallbacks():
        times = f" ×{number}" if number > 1 else ""
        yield f"  on the CPU: {op}{times}: {why}{_layer_list(layers)}"
    if report.copies is not None:
        directions = [copy.direction for copy in report.copies]
        there = directions.count(TO_DEVICE)
        yield (
            f"copies a step: {len(directions)} ({there} to the device, "
            f"{len(directions) - there} back)"
        )
