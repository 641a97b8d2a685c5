"""A placement report as text of at most 80 columns."""

import collections
import sys
import textwrap

from keras_pergrad.analysis.placement import calls
from keras_pergrad.analysis.placement import copies as copying

_WIDTH = 80


def _wrap(line, indent=2, hang=4):
    return textwrap.fill(
        line,
        _WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _names(layers, most=3):
    rest = f" and {len(layers) - most} more" if len(layers) > most else ""
    return f" [{', '.join(layers[:most])}{rest}]" if layers else ""


def render(report):
    """Return the text of a `PlacementReport`."""
    lines = [_title(report)]
    if report.variables:
        where = ", ".join(f"{n} on {d}" for d, n in report.variables.items())
        lines.append(_wrap(f"variables: {where}"))
    lines += _opaque(report.opaque)
    if report.known:
        lines += _operations(report)
    lines += [_wrap(f"STOPS: {error}") for error in report.errors]
    for hazard in report.hazards:
        text = f"{hazard.severity}: {hazard.message}{_names(hazard.layers)}"
        lines.append(_wrap(text))
    lines += [_wrap(f"note: {note}") for note in report.notes]
    if report.deep is not None:
        lines += [_wrap(line) for line in report.deep.lines(report.device)]
    return "\n".join(lines)


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


def _opaque(parts, most=3):
    if not parts:
        return []
    lines = []
    for name, device, why in parts[:most]:
        where = f" on {device}" if device else ""
        if why == calls.XLA:
            said = f"{name}{where} is compiled by XLA as one piece"
        else:
            said = f"{name}{where} is a call of a function, not inlined"
        lines.append(_wrap(f"opaque: {said}"))
    if len(parts) > most:
        lines.append(_wrap(f"opaque: {len(parts) - most} more parts"))
    shows = {
        calls.XLA: "jit_compile=False",
        calls.CALL: "a function that TensorFlow may inline (no _noinline)",
    }
    ways = [shows[why] for why in shows if why in {p[2] for p in parts}]
    lines.append(
        _wrap(
            f"TensorFlow does not show what is inside, so ops and copies are "
            f"not counted. What shows them: {' and '.join(ways)}."
        )
    )
    return lines


def _operations(report):
    kinds = collections.Counter(o.kind for o in report.operations)
    device, generic, cpu = (kinds[k] for k in ("device", "generic", "cpu"))
    if report.device is None and not report.prediction:
        return [_wrap(f"ops of one step: {cpu}, all on the CPU")]
    name = report.device or report.platform
    lines = [
        _wrap(
            f"ops of one step: {device + generic} on {name} "
            f"({device} {report.platform} kernels, {generic} of "
            f"TensorFlow's host kernels), {cpu} on the CPU"
        )
    ]
    for op, why, number, layers in report.fallbacks():
        times = f" ×{number}" if number > 1 else ""
        text = f"on the CPU: {op}{times}: {why}{_names(layers)}"
        lines.append(_wrap(text, 4))
    return lines if report.prediction else [*lines, _wrap(_copies(report))]


def _copies(report):
    if report.copies is None:
        return "copies a step: not known"
    total = report.device_copies
    if total is None:
        at_least = sum(c.runs or 0 for c in report.copies)
        open_ones = [c.layer for c in report.copies if c.runs is None]
        where = _names(tuple(dict.fromkeys(filter(None, open_ones))))
        return (
            f"copies a step: at least {at_least}, and {len(open_ones)} in a "
            f"loop or branch whose course cannot be read{where} (deep=True "
            f"counts them)"
        )
    ways = copying.by_direction(report.copies)
    return (
        f"copies a step: {total} ({ways[copying.TO_DEVICE]} to the device, "
        f"{ways[copying.TO_HOST]} back)"
    )
