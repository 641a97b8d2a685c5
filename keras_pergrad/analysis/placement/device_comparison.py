"""The same step on every device: whether the numbers agree, and the speed."""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.analysis import numerics
from keras_pergrad.analysis.placement import layers, wrong_op
from keras_pergrad.analysis.placement.step_profile import median_ms
from keras_pergrad.common.arguments import positive_integer
from keras_pergrad.common.devices import accelerators, chosen
from keras_pergrad.keras_internals.graph_session import (
    GraphCopy,
    as_in_fit,
    trace_step,
)
from keras_pergrad.keras_internals.inspection_checks import (
    check_trainable,
    require_one_batch,
)

_DRAWS = re.compile("(Stateless)?(Random|Truncated|Multinomial)|StatefulUni")


@dataclasses.dataclass(frozen=True)
class DeviceComparison:
    """One device against the CPU.

    Attributes:
        device: its name.
        step_ms: median time of loss and gradients there.
        verdicts: what was compared (`"loss"`, `"output 0"`, or a variable's
            path) → `Verdict`.
        suspect: a `Suspect` if something is wrong, else `None`.
    """

    device: str
    step_ms: float
    verdicts: dict
    suspect: object = None

    @property
    def ok(self):
        """Whether rounding explains every difference."""
        return all(verdict.ok for verdict in self.verdicts.values())

    @property
    def wrong(self):
        """The names whose difference rounding does not explain."""
        return [name for name, v in self.verdicts.items() if not v.ok]

    @property
    def agreement(self):
        """The largest relative difference."""
        return max(v.relative for v in self.verdicts.values())


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `compare_devices` found. `print` it.

    Attributes:
        cpu_ms: median time of loss and gradients on the CPU.
        devices: a list of `DeviceComparison`.
        notes: sentences about how it was compared.
    """

    cpu_ms: float
    devices: list
    notes: list

    @property
    def ok(self):
        """Whether every device agrees with the CPU."""
        return all(device.ok for device in self.devices)

    def __str__(self):
        lines = [f"CPU: {self.cpu_ms:.2f} ms for loss and gradients"]
        for device in self.devices:
            lines += _lines(device, self.cpu_ms)
        if not self.devices:
            lines.append("no accelerator to compare it with")
        return "\n".join([*lines, *(f"note: {n}" for n in self.notes)])


def _lines(device, cpu_ms):
    ratio = cpu_ms / device.step_ms
    pace = f"{ratio:.2g}× faster" if ratio >= 1 else f"{1 / ratio:.2g}× slower"
    yield f"{device.device}: {pace} ({device.step_ms:.2f} ms)"
    if device.ok:
        agree = device.agreement
        how = f"agree to {agree:.1g}" if agree else "are equal to the last bit"
        yield f"  loss, outputs and gradients {how}"
    for name in device.wrong[:5]:
        yield f"  {device.verdicts[name].sentence(name)}"
    if len(device.wrong) > 5:
        yield f"  and {len(device.wrong) - 5} more"
    if device.suspect is not None:
        yield f"  {device.suspect}"


def compare_devices(
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    devices: Sequence[str] | None = None,
    repeats: int = 3,
) -> Comparison:
    """Compare a model's numbers and speed on each device with the CPU's.

    Loss, outputs and the gradient of every variable are computed from the
    same weights and the same batch, in graphs as TensorFlow optimises them
    for each device. The model is left as it is.

    If a difference is more than rounding, the function searches for the op
    that causes it: each op gets the CPU's numbers and is judged alone. Errors
    that this misses (inside loops, or only when fused) are found by moving one
    type of op after the other to the CPU.

    Args:
        model: a compiled and built `keras.Model` or `PerGradModel`.
        x: one batch of inputs.
        y: its targets.
        devices: names such as `"GPU:0"`; by default every accelerator. Of
            `"CPU:0"`, which is compared with itself, a note says so.
        repeats: how often each device is timed; the median counts.

    Returns:
        A `Comparison`.

    Raises:
        ValueError: a device that does not exist, a model that is not
            compiled or not built, or `repeats` below 1.

    Example:

    >>> import keras, numpy
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x, y = numpy.ones((8, 4)), numpy.ones((8, 1))
    >>> kpg.compare_devices(model, x, y, devices=["CPU:0"]).ok
    True
    """
    check_trainable(model)
    require_one_batch(model, x, y)
    repeats = positive_integer("repeats", repeats)
    names = chosen(devices)
    (concrete, values), labels, notes = _step(model, as_in_fit((x, y)))
    terms = numerics.terms(model, values[0])
    dtype = numerics.precision(model)
    with GraphCopy(concrete, device="/device:CPU:0") as cpu:
        reference = cpu.run(values)
        cpu_ms = median_ms(cpu, values, repeats)

    def judge(device, outputs):
        how = numerics.on_device(dtype, device), terms
        return numerics.judge_all(labels, reference, outputs, *how)

    if "CPU:0" in names:
        others = ", ".join(device.name for device in accelerators())
        notes.append(
            "CPU:0 was compared with itself, which says nothing of another "
            f"device. Accelerators to name here: {others or 'none'}."
        )
    compared = []
    for name in names:
        with GraphCopy(concrete, device=f"/device:{name}") as copied:
            verdicts = judge(name, copied.run(values))
            step_ms = median_ms(copied, values, repeats)
        suspect = None
        if not all(verdict.ok for verdict in verdicts.values()):
            ops = [op.name for op in concrete.graph.get_operations()]
            layer_of = layers.Layers(model, ops)
            own = functools.partial(judge, name)
            suspect = wrong_op.find(concrete, values, name, layer_of, own)
        compared.append(DeviceComparison(name, step_ms, verdicts, suspect))
    return Comparison(cpu_ms, compared, notes)


def _step(model, data):
    """Trace loss and gradients: `((concrete, values), labels, notes)`."""
    traced, labels = _trace(model, data, training=True)
    ops = traced[0].graph.get_operations()
    if not any(_DRAWS.match(op.type) for op in ops):
        return traced, labels, []
    note = (
        "the model draws random numbers in training, which differ from "
        "device to device: compared with training=False."
    )
    return *_trace(model, data, training=False), [note]


def _trace(model, data, training):
    labels = []

    def step(batch):
        x, y = batch
        variables = model.trainable_weights
        with tf.GradientTape() as tape:
            outputs = model(x, training=training)
            loss = model.compute_loss(x=x, y=y, y_pred=outputs)
        gradients = tape.gradient(loss, [v.value for v in variables])
        outputs = enumerate(tf.nest.flatten(outputs))
        pairs = [("loss", loss), *((f"output {i}", t) for i, t in outputs)]
        pairs += [(v.path, g) for v, g in zip(variables, gradients)]
        pairs = [(name, value) for name, value in pairs if value is not None]
        labels[:] = [name for name, _ in pairs]
        return [tf.convert_to_tensor(value) for _, value in pairs]

    return trace_step(step, data), labels
