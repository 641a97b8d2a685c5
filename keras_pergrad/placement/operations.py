"""The operations of a placed step, and its copies between devices.

TensorFlow cuts an edge between devices into a send and a receive. It is a copy
where the two ends keep the tensor in different kinds of memory: a "_Host" end
keeps it in host memory, even on an accelerator.
"""

import collections
import dataclasses

from keras_pergrad.keras_internals.graphs.runs import PLUMBING
from keras_pergrad.placement import graph, kernels

TO_DEVICE, TO_HOST = "to device", "to host"


@dataclasses.dataclass(frozen=True)
class Operation:
    """One op of the placed and optimised step.

    Attributes:
        op: its type, `"MatMul"`.
        name: its name in the graph.
        device: `"CPU:0"`, `"GPU:0"`, ...
        kind: `"device"` (a kernel of the accelerator), `"generic"`
            (TensorFlow's host code placed on the accelerator) or `"cpu"`.
        dtypes: the types it works on.
        layer: the layer it comes from, `"optimizer"`, `"loss"`, the model's
            name for an op of its own, or `""`.
        runs: 1, or `None` in a loop or branch, which a step may run any
            number of times.
        reason: for an op on the CPU beside an accelerator, why.
    """

    op: str
    name: str
    device: str
    kind: str
    dtypes: tuple[str, ...]
    layer: str
    runs: int | None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Copy:
    """One tensor that crosses once a run.

    Attributes:
        direction: `"to device"` or `"to host"`.
        tensor: the name of the node that made it.
        dtype: its type; `"variant"` for a handle that carries tensors.
        runs: how many copies a step makes, `None` in a loop or branch.
        layer: the layer it comes from, or `""`.
    """

    direction: str
    tensor: str
    dtype: str
    runs: int | None
    layer: str = ""


@dataclasses.dataclass(frozen=True)
class PlacedStep:
    """A placed step: its ops, its copies, and what TensorFlow does not show."""

    operations: list
    opaque: list  # (name, device, "XLA" or "call")
    copies: list | None  # None: not visible
    nodes: list
    layer_of: graph.Layers


def read(partitions, model, device=None):
    """Return the `PlacedStep` of partition graphs."""
    nodes = graph.read(partitions)
    run_counts = graph.RunCounts(nodes)
    layer_of = graph.Layers(model, [node.name for node in nodes])
    ops, opaque = _step_operations(nodes, run_counts, layer_of, device)
    copies = _step_copies(nodes, run_counts, layer_of)
    return PlacedStep(ops, opaque, copies, nodes, layer_of)


def _step_operations(nodes, run_counts, layer_of, device):
    """Return the `Operation`s, and the opaque parts: (name, device, kind)."""
    nodes = [node for node in nodes if node.op not in PLUMBING]
    opaque = [(n.name, n.device, n.opaque_kind) for n in nodes if n.opaque_kind]
    operations = [
        _operation_of(n, layer_of(n.name), run_counts.runs_once(n), device)
        for n in nodes
        if not n.opaque_kind
    ]
    return operations, opaque


def _operation_of(node, layer, runs_once, accelerator):
    """Return the `Operation` of a `graph.Node` on the device where it ran."""
    kind, reason = "cpu", ""
    if not node.device.startswith("CPU"):
        device_type = node.device.partition(":")[0]
        kind = kernels.kernel_kind(node.definition, device_type)
        # Kernels made for one graph at run time are not in the registry.
        kind = kernels.DEVICE if kind == kernels.NONE else kind
    elif accelerator is not None:
        reason = kernels.reason(
            node.definition,
            node.dtypes,
            accelerator.type,
            accelerator.platform,
        )
    return Operation(
        op=node.op,
        name=node.name,
        device=node.device,
        kind=kind,
        dtypes=node.dtypes,
        layer=layer,
        runs=1 if runs_once else None,
        reason=reason,
    )


def _in_host_memory(node):
    return node.op.startswith("_Host") or node.device.startswith("CPU")


def _tensor_count(node):
    """Return how many tensors a variant carries; each is a copy of its own."""
    if node.op == "OptionalFromValue":
        return len(node.inputs)
    if node.op == "IteratorGetNextAsOptional":
        return len(node.attr["output_types"].list.type)
    if node.op == "OptionalNone":
        return 0
    return 1


def direction(send):
    """`"to device"`, `"to host"`, or `None` where nothing is copied."""
    if send.op not in graph.SENDS or send.partner is None or not send.inputs:
        return None
    source, target = _in_host_memory(send), _in_host_memory(send.partner)
    # A control edge is sent as a dummy tensor, which is no copy.
    if source == target or "/ctrl/" in send.inputs[0][0].name:
        return None
    return TO_DEVICE if source else TO_HOST


def _step_copies(nodes, run_counts, layer_of):
    """Return every `Copy` of one step."""
    copies = []
    for send in nodes:
        copy_direction = direction(send)
        if copy_direction is None:
            continue
        producer, _ = graph.through_plumbing(*send.inputs[0])
        runs = 1 if run_counts.runs_once(send) else None
        dtype = send.dtypes[0] if send.dtypes else "variant"
        if dtype == "variant" and runs is not None:
            # In the loop over steps, handles that cross may be empty.
            runs = _tensor_count(producer)
            runs = None if run_counts.loops_over_steps else runs
        if runs != 0:
            layer = layer_of(producer.name)
            copies.append(
                Copy(copy_direction, producer.name, dtype, runs, layer)
            )
    return copies + _log_copies(nodes)


def _log_copies(nodes):
    """Return the copies for a step's logs, which Keras wraps in an Optional."""
    # If it leaves the function on the accelerator, each log is copied back,
    # outside of the graph. If it was also made there, the answer whether it
    # holds logs (one bool) makes a round trip.
    copies = []
    for node in nodes:
        if node.op != "_Retval" or node.device.startswith("CPU"):
            continue
        if "variant" not in node.dtypes or not node.inputs:
            continue
        producer, _ = graph.through_plumbing(*node.inputs[0])
        if producer.op != "OptionalFromValue":
            continue
        log_count = _tensor_count(producer)
        copies.append(Copy(TO_HOST, "the step's logs", "logs", log_count))
        if not producer.device.startswith("CPU"):
            for log_direction in (TO_DEVICE, TO_HOST):
                copies.append(
                    Copy(log_direction, "whether there are logs", "bool", 1)
                )
    return copies


def total_copies(copies):
    """Return the copies of one step, `None` if one cannot be counted."""
    if any(copy.runs is None for copy in copies):
        return None
    return sum(copy.runs for copy in copies)


def copies_by_direction(copies):
    """Return a `Counter` of the copies of a step, by direction."""
    counts = collections.Counter()
    for copy in copies:
        counts[copy.direction] += copy.runs or 0
    return counts
