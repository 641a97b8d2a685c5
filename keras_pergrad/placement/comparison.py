"""The comparison of devices: whether gradients are equal, and their speed."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.checking import numerics
from keras_pergrad.checking.check import check_gradients
from keras_pergrad.checking.check_table import CheckRow
from keras_pergrad.checking.execution import TracedMode
from keras_pergrad.common.arguments import named_arguments
from keras_pergrad.common.machine import accelerators, requested_devices
from keras_pergrad.keras_internals.graphs.runs import (
    RUNTIME,
    GraphCopy,
    as_in_fit,
)
from keras_pergrad.keras_internals.replicas.advice import advising
from keras_pergrad.keras_internals.state.model import ModelState
from keras_pergrad.modes.base import gradient_modes
from keras_pergrad.placement import graph
from keras_pergrad.placement.metal import CONTRACTIONS, FUSED_AFTER

_CPU = "CPU:0"
_FUSED = " + "  # between the ops that a device makes one op of
_MAX_OPS = 40  # ops judged one by one
_SUM_OPS = ("Sum", "Mean", "MatMul", "Conv", "BiasAddGrad", "AddN", "Einsum")
_SUM_OPS += ("BatchMatMul", "UnsortedSegment", "AvgPool", "Softmax")
_PRODUCT_OPS = ("MatMul", "Conv", "Batch", "Einsum")


@dataclasses.dataclass(frozen=True)
class Suspect:
    """The suspected cause of a difference.

    Attributes:
        op: the type of the op that is wrong when it is given the CPU's own
            inputs, `""` if there is none. `"MatMul + BiasAdd + Relu"`: ops
            that are wrong only together, where the device makes one of them.
        name: its name in the graph, `""` if there is none.
        layer: its layer, else the one where the numbers first differ, or `""`.
        error: the largest difference of its output, or `None`.
    """

    op: str
    name: str
    layer: str
    error: float | None = None

    def __str__(self) -> str:
        where = f" in layer {self.layer}" if self.layer else ""
        if _FUSED in self.op:
            return (
                f"{self.op}{where} are wrong where they are fused: given the "
                f"CPU's inputs, what comes out differs by {self.error:.3g} "
                f"({self.name}), and each of them alone is right"
            )
        if self.op:
            return (
                f"{self.op}{where} is wrong: given the CPU's inputs, its "
                f"output differs by {self.error:.3g} ({self.name})"
            )
        return (
            f"first difference{where}; no op is wrong by itself, so it is one "
            "in a loop, or one that is fused with others than its bias and "
            "activation"
        )


@dataclasses.dataclass(frozen=True)
class DeviceComparison(CheckRow):
    """The row of `check_gradients` for one device.

    Attributes:
        suspect: a `Suspect` if a gradient is wrong there, else `None`.
    """

    suspect: Suspect | None = None

    @property
    def ok(self) -> bool:
        """Whether it was compared, and rounding explains every difference."""
        return self.verdict in (numerics.EXACT, numerics.ROUNDING)

    @property
    def agreement(self) -> float | None:
        """The largest relative difference, `None` if refused."""
        return self.relative


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `compare_devices` found. `print` it.

    Attributes:
        cpu_ms: median time of a step's gradients on the CPU.
        devices: a list of `DeviceComparison`.
        notes: sentences about how it was compared.
    """

    cpu_ms: float | None
    devices: list[DeviceComparison]
    notes: list[str]

    @property
    def ok(self) -> bool:
        """Whether every device gives the right gradients."""
        return all(device.ok for device in self.devices)

    def __str__(self) -> str:
        lines = []
        if self.cpu_ms is not None:
            lines.append(f"CPU: {self.cpu_ms:.2f} ms for the gradients")
        for device in self.devices:
            lines += _device_lines(device, self.cpu_ms)
        if not self.devices:
            lines.append("no accelerator to compare it with")
        return "\n".join([*lines, *(f"note: {n}" for n in self.notes)])


def _device_lines(device, cpu_ms):
    speed = ""
    if device.step_ms and cpu_ms:
        ratio = cpu_ms / device.step_ms
        fast = f"{ratio:.2g}× faster"
        speed = fast if ratio >= 1 else f"{1 / ratio:.2g}× slower"
        speed = f"{speed} ({device.step_ms:.2f} ms)"
    yield f"{device.device}: {speed or device.verdict}"
    if device.reason:
        yield f"  {device.reason}"
    elif not device.wrong:
        yield f"  gradients: {device.verdict} ({device.relative:.1g})"
    for name in device.wrong[:5]:
        yield f"  {device.verdicts[name].sentence(name)}"
    if len(device.wrong) > 5:
        yield f"  and {len(device.wrong) - 5} more"
    if device.suspect is not None:
        yield f"  {device.suspect}"


@advising()
@named_arguments
def compare_devices(
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    devices: Sequence[str] | None = None,
    repeats: int = 3,
    verbose: int = 1,
) -> Comparison:
    """Compare a model's gradients and speed on each device with the CPU's.

    The rows of `check_gradients` for the batch gradient as a graph, by device:
    the gradients of a batch are judged by those of single samples in float64.
    If a difference is more than rounding, the function searches for
    the op that causes it: each op gets the CPU's numbers and is judged alone.
    The model is left as it is.

    Args:
        model: a compiled `keras.Model` or `PerGradModel`.
        x: one batch of inputs.
        y: its targets.
        devices: names such as `"GPU:0"`; by default every accelerator.
        repeats: how often each device is timed; the median counts.
        verbose: whether to show a progress bar.

    Returns:
        A `Comparison`.

    Raises:
        ValueError: a device that does not exist, `repeats` below 1, or a model
            that `check_gradients` refuses.

    Example:

    >>> import keras, numpy
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x, y = numpy.ones((8, 4)), numpy.ones((8, 1))
    >>> compared = kpg.diagnose.compare_devices(
    ...     model, x, y, devices=["CPU:0"], verbose=0
    ... )
    >>> compared.ok
    True
    """
    names = requested_devices(devices)
    check = check_gradients(
        model,
        x,
        y,
        gradient_modes=["batch"],
        devices=list(dict.fromkeys([_CPU, *names])),
        repeats=repeats,
        settings=["graph"],
        verbose=verbose,
    )
    rows = {row.device: row for row in check.rows}
    comparisons = []
    for name in names:
        row, suspect = rows[name], None
        if row.wrong and name != _CPU:
            suspect = _find_suspect(model, x, y, device=name)
        comparisons.append(DeviceComparison(**vars(row), suspect=suspect))
    notes = [*check.notes, *_notes(names, rows[_CPU])]
    return Comparison(rows[_CPU].step_ms, comparisons, notes)


def _notes(names, cpu):
    if cpu.verdict == numerics.WRONG:
        yield "the CPU's own gradients are wrong: see kpg.check_gradients"
    if _CPU in names:
        others = ", ".join(device.name for device in accelerators())
        yield (
            f"{_CPU} says nothing of another device. Accelerators to name "
            f"here: {others or 'none'}."
        )


def _find_suspect(model, x, y, *, device):
    """Return the first op that is wrong when given the CPU's numbers."""
    data = as_in_fit(keras.utils.pack_x_y_sample_weight(x, y))
    data = data if isinstance(data, tuple) else (data,)
    with ModelState(model):
        step = TracedMode(model, gradient_modes.get("batch"), data)
    concrete, values = step.traced
    names = [op.name for op in concrete.graph.get_operations()]
    layer_of = graph.Layers(model, names)
    with GraphCopy(concrete, device=f"/device:{_CPU}") as cpu:
        cpu_values = {
            t.name: value for t, value in _run_all(cpu, values).items()
        }
    first_wrong, tried_count = None, 0
    with GraphCopy(concrete, device=f"/device:{device}") as copied:
        device_values = _run_all(copied, values)
        for op in copied.graph.get_operations():
            outputs = [t for t in op.outputs if t in device_values]
            outputs = [t for t in outputs if t.dtype.is_floating]
            if all(
                _judge_output(op, cpu_values, t, value=device_values[t]).ok
                for t in outputs
            ):
                continue
            first_wrong = first_wrong or op.name
            # Fed with the CPU's numbers, an op that is still wrong is a cause;
            # one that is right then only passed on an earlier difference.
            feeds = {
                t: cpu_values[t.name] for t in op.inputs if t.name in cpu_values
            }
            if len(feeds) < sum(t.dtype != tf.resource for t in op.inputs):
                continue  # an input cannot be fed
            tried_count += 1
            if tried_count > _MAX_OPS:
                break
            single_outputs = copied.run(values, fetches=outputs, feeds=feeds)
            for tensor, value in zip(outputs, single_outputs):
                verdict = _judge_output(op, cpu_values, tensor, value=value)
                if not verdict.ok:
                    where = layer_of(op.name)
                    return Suspect(op.type, op.name, where, error=verdict.error)
        for ops in _fusible(copied.graph):
            error = _error_of_fused(ops, copied, values, cpu_values=cpu_values)
            if error is not None:
                name = ops[-1].name
                together = _FUSED.join(op.type for op in ops)
                return Suspect(together, name, layer_of(name), error=error)
    return Suspect("", "", layer_of(first_wrong) if first_wrong else "")


def _fusible(traced):
    """Yield the ops that a device may compute as one: product, bias, more."""
    for last in traced.get_operations():
        ops = [last]
        while ops[0].type in FUSED_AFTER and ops[0].inputs:
            ops.insert(0, ops[0].inputs[0].op)
        if len(ops) > 1 and ops[0].type in CONTRACTIONS:
            yield ops


def _error_of_fused(ops, copied, values, *, cpu_values):
    """Return by how much ops given the CPU's numbers are wrong; None: right.

    Only what the last of them gives is fetched, so that they can be fused.
    """
    inner = {op.name for op in ops}
    given = [t for op in ops for t in op.inputs if t.op.name not in inner]
    feeds = {t: cpu_values[t.name] for t in given if t.name in cpu_values}
    output = ops[-1].outputs[0]
    if len(feeds) < len(given) or output.name not in cpu_values:
        return None
    [value] = copied.run(values, fetches=[output], feeds=feeds)
    verdict = _judge_output(ops[0], cpu_values, output, value=value)
    return None if verdict.ok else verdict.error


def _run_all(copied, values):
    """Return all tensors of the graph that can be fetched and fed."""
    skipped = RUNTIME - {"Const"}
    outputs = [
        tensor
        for op in copied.graph.get_operations()
        if op.type not in skipped
        for tensor in op.outputs
    ]
    handles = (tf.resource, tf.variant, tf.string)
    tensors = [t for t in [*copied.inputs, *outputs] if t.dtype not in handles]
    return dict(zip(tensors, copied.run(values, fetches=tensors)))


def _judge_output(op, cpu_values, tensor, *, value):
    """Judge one output; its inputs determine how much is rounding."""
    inputs = [cpu_values[t.name] for t in op.inputs if t.name in cpu_values]
    terms, scale, dtype = 1, 0.0, tensor.dtype.name
    if op.type.startswith(_SUM_OPS) and inputs:
        terms = max(1, *(np.size(a) for a in inputs))
        float_inputs = [a for a in inputs if np.asarray(a).dtype.kind == "f"]
        sizes = [float(np.max(np.abs(a), initial=0.0)) for a in float_inputs]
        is_product = op.type.startswith(_PRODUCT_OPS)
        scale = float(np.prod(sizes)) if is_product else max(sizes, default=0.0)
        dtype = numerics.on_device(dtype, "GPU") if is_product else dtype
    return numerics.judge(
        cpu_values[tensor.name], value, dtype, terms=terms, scale=scale
    )
