"""A placement report as text of at most 80 columns."""

import collections
import sys
import textwrap

from keras_pergrad.analysis.placement import copies as copying
from keras_pergrad.analysis.placement.graph import CALL, XLA
from keras_pergrad.common.tables import first_few

_WIDTH = 80
#: What hides ops → what is said of it, and what shows them.
_OPAQUE = {
    XLA: ("is compiled by XLA as one piece", "jit_compile=False"),
    CALL: (
        "is a call of a function, not inlined",
        "a function that TensorFlow may inline (no _noinline)",
    ),
}


def render(report):
    """Return the text of a `PlacementReport`."""
    return "\n".join([_title(report), *map(_wrap, _lines(report))])


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


def _names(layers):
    return f" [{first_few(layers)}]" if layers else ""


def _title(report):
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


def _lines(report):
    if report.variables:
        where = ", ".join(f"{n} on {d}" for d, n in report.variables.items())
        yield f"variables: {where}"
    if report.opaque:
        yield from _opaque(report.opaque)
    if report.known:
        yield from _operations(report)
    for error in report.errors:
        yield f"STOPS: {error}"
    for hazard in report.hazards:
        yield f"{hazard.severity}: {hazard.message}{_names(hazard.layers)}"
    for note in report.notes:
        yield f"note: {note}"
    if report.deep is not None:
        yield from report.deep.lines(report.device)


def _opaque(parts, most=3):
    for name, device, why in parts[:most]:
        where = f" on {device}" if device else ""
        yield f"opaque: {name}{where} {_OPAQUE[why][0]}"
    if len(parts) > most:
        yield f"opaque: {len(parts) - most} more parts"
    kinds = {why for _, _, why in parts}
    ways = [way for kind, (_, way) in _OPAQUE.items() if kind in kinds]
    yield (
        f"TensorFlow does not show what is inside, so ops and copies are "
        f"not counted. What shows them: {' and '.join(ways)}."
    )


def _operations(report):
    kinds = collections.Counter(o.kind for o in report.operations)
    device, generic, cpu = (kinds[k] for k in ("device", "generic", "cpu"))
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
        yield f"  on the CPU: {op}{times}: {why}{_names(layers)}"
    if not report.prediction:
        yield f"copies a step: {_copies(report.copies, report.device_copies)}"


def _copies(copies, total):
    if copies is None:
        return "not known"
    if total is None:
        at_least = sum(copy.runs or 0 for copy in copies)
        unread = [copy.layer for copy in copies if copy.runs is None]
        return (
            f"at least {at_least}, and {len(unread)} in a loop or branch "
            f"whose course cannot be read"
            f"{_names(list(dict.fromkeys(filter(None, unread))))} "
            f"(deep=True counts them)"
        )
    ways = copying.by_direction(copies)
    return (
        f"{total} ({ways[copying.TO_DEVICE]} to the device, "
        f"{ways[copying.TO_HOST]} back)"
    )
