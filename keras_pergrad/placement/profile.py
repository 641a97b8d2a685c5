"""The costs of a step, measured on a copy of it: bytes, time, executions."""

import collections
import dataclasses
import statistics
import time

import tensorflow as tf

from keras_pergrad.common.machine import as_text, short_name
from keras_pergrad.keras_internals.graphs.runs import (
    PLUMBING,
    GraphCopy,
    executions,
    trace_step,
)
from keras_pergrad.placement import graph, operations


@dataclasses.dataclass(frozen=True)
class DeepReport:
    """The measurements that `deep=True` adds.

    Attributes:
        executions: device → op type → how often one step ran it.
        bytes_to_device: bytes copied to the accelerator in one step.
        bytes_to_host: bytes copied back.
        copies: how many tensors were copied, both ways.
        fallback_ms: time spent in ops on the CPU, in one step.
        slowest: `(op, milliseconds)` of those ops, slowest first.
        step_ms: the placed step; the median of a few.
        cpu_step_ms: the same step, all on the CPU.
    """

    executions: dict
    bytes_to_device: int
    bytes_to_host: int
    copies: int
    fallback_ms: float
    slowest: list
    step_ms: float
    cpu_step_ms: float

    def lines(self, accelerated):
        """Return the report's text, a list of lines."""
        slowest = ", ".join(f"{op} {ms:.2f}" for op, ms in self.slowest[:3])
        in_ops = f"{self.fallback_ms:.2f} ms a step"
        in_ops += f" ({slowest})" if slowest else ""
        if not accelerated:
            return [
                f"measured on a copy of the step: {self.step_ms:.2f} ms a "
                f"step; in ops {in_ops}"
            ]
        ratio = self.cpu_step_ms / self.step_ms
        return [
            f"measured on a copy of the step: {self.copies} copies, "
            f"{as_text(self.bytes_to_device)} to the device, "
            f"{as_text(self.bytes_to_host)} back",
            f"time in ops on the CPU: {in_ops}",
            f"step time: {self.step_ms:.2f} ms as placed, "
            f"{self.cpu_step_ms:.2f} ms on the CPU alone ({ratio:.2f}×)",
        ]


def replay(model, data, spec):
    """Run a copy of a step on a batch of arrays; raises `NotCopyable`."""
    concrete, values = trace_step(model.train_step, data, spec)
    metadata = tf.compat.v1.RunMetadata()
    with GraphCopy(concrete) as placed:
        placed.run(values)  # places and optimises
        step_ms = _median_ms(placed, values)
        placed.run(values, trace=metadata)
    # The graph as TensorFlow placed it, on the CPU from end to end.
    with GraphCopy(concrete, device="/CPU:0") as on_cpu:
        on_cpu.run(values)
        cpu_ms = _median_ms(on_cpu, values)
    return analyse(metadata, step_ms, cpu_ms)


def _median_ms(copied, values):
    """Return the median wall time of five runs, in milliseconds."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        copied.run(values)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def analyse(metadata, step_ms, cpu_ms):
    """Read a `DeepReport` from one traced run, and two times."""
    nodes = graph.read(metadata.partition_graphs)
    counts = collections.defaultdict(collections.Counter)
    host_ns = collections.Counter()
    sizes = collections.defaultdict(list)
    for full_name, op, stat in executions(metadata):
        device = short_name(full_name)
        # A send copies another op's output: keep the size of each.
        for output in stat.output:
            memory = output.tensor_description.allocation_description
            key = stat.node_name, output.slot
            sizes[key].append(memory.requested_bytes)
        if op in PLUMBING:
            continue
        counts[device][op] += 1
        if device.startswith("CPU"):
            duration = stat.op_end_rel_nanos - stat.op_start_rel_nanos
            host_ns[op] += duration
    copied_bytes, copy_count = collections.Counter(), 0
    for node in nodes:
        direction = operations.direction(node)
        if direction is None:
            continue
        source, slot = node.inputs[0]
        tensor_bytes = sizes.get((source.name, slot), [])
        copied_bytes[direction] += sum(tensor_bytes)
        copy_count += len(tensor_bytes)
    slowest = [(op, ns / 1e6) for op, ns in host_ns.most_common()]
    return DeepReport(
        {device: dict(by_op) for device, by_op in counts.items()},
        copied_bytes[operations.TO_DEVICE],
        copied_bytes[operations.TO_HOST],
        copies=copy_count,
        fallback_ms=sum(host_ns.values()) / 1e6,
        slowest=slowest,
        step_ms=step_ms,
        cpu_step_ms=cpu_ms,
    )
