"""The operations of a placed step, and its copies between devices.

TensorFlow cuts an edge between devices into a send and a receive. It is a copy
where the two ends keep the tensor in different kinds of memory: a "_Host" end
keeps it in host memory, even on an accelerator.
"""

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
        reason: for an op on the CPU beside an accelerator, why.
    """

    op: str
    name: str
    device: str
    kind: str
    dtypes: tuple[str, ...]
    layer: str
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Copy:
    """One tensor that crosses between host and accelerator memory.

    Attributes:
        direction: `"to device"` or `"to host"`.
        tensor: the name of the node that made it.
        dtype: its type; `"variant"` for a handle that carries tensors.
        layer: the layer it comes from, or `""`.
    """

    direction: str
    tensor: str
    dtype: str
    layer: str = ""


@dataclasses.dataclass(frozen=True)
class PlacedStep:
    """A placed step: its ops, its copies, and what TensorFlow does not show."""

    operations: list
    opaque: list  # (name, device, "XLA" or "call")
    copies: list
    nodes: list
    layer_of: graph.Layers


def read(partitions, model, device=None):
    """Return the `PlacedStep` of partition graphs."""
    nodes = graph.read(partitions)
    layer_of = graph.Layers(model, [node.name for node in nodes])
    working = [node for node in nodes if node.op not in PLUMBING]
    return PlacedStep(
        operations=[
            _operation_of(node, layer_of(node.name), device)
            for node in working
            if not node.opaque_kind
        ],
        opaque=[
            (node.name, node.device, node.opaque_kind)
            for node in working
            if node.opaque_kind
        ],
        copies=[*_step_copies(nodes, layer_of), *_log_copies(nodes)],
        nodes=nodes,
        layer_of=layer_of,
    )


def _operation_of(node, layer, accelerator):
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
            platform=accelerator.platform,
        )
    return Operation(
        op=node.op,
        name=node.name,
        device=node.device,
        kind=kind,
        dtypes=node.dtypes,
        layer=layer,
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


def _step_copies(nodes, layer_of):
    """Yield every `Copy` in the graph of a step, each once."""
    for send in nodes:
        copy_direction = direction(send)
        if copy_direction is None:
            continue
        producer, _ = graph.through_plumbing(*send.inputs[0])
        dtype = send.dtypes[0] if send.dtypes else "variant"
        copy = Copy(
            direction=copy_direction,
            tensor=producer.name,
            dtype=dtype,
            layer=layer_of(producer.name),
        )
        yield from [copy] * (
            _tensor_count(producer) if dtype == "variant" else 1
        )


def _log_copies(nodes):
    """Yield the copies for a step's logs, which Keras wraps in an Optional."""
    # If it leaves the function on the accelerator, each log is copied back,
    # outside of the graph. If it was also made there, the answer whether it
    # holds logs (one bool) makes a round trip.
    for node in nodes:
        if node.op != "_Retval" or node.device.startswith("CPU"):
            continue
        if "variant" not in node.dtypes or not node.inputs:
            continue
        producer, _ = graph.through_plumbing(*node.inputs[0])
        if producer.op != "OptionalFromValue":
            continue
        yield from [Copy(TO_HOST, "the step's logs", "logs")] * (
            _tensor_count(producer)
        )
        if not producer.device.startswith("CPU"):
            for log_direction in (TO_DEVICE, TO_HOST):
                yield Copy(log_direction, "whether there are logs", "bool")
