"""The operations of a placed step, one record each."""

import dataclasses

from keras_pergrad.analysis.placement import (
    copies,
    graph,
    kernels,
    layers,
    loops,
)


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
        runs: how often a step runs it, `None` if that is unknown.
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
class Placed:
    """What is known of one step that was placed."""

    operations: list
    opaque: list  # (name, device, "XLA" or "call")
    copies: list | None  # None: not visible
    nodes: list
    layer_of: layers.Layers


def read(partitions, model, device=None):
    """Return the `Placed` step of partition graphs."""
    nodes = graph.read(partitions)
    executions = loops.Executions(nodes)
    layer_of = layers.Layers(model, [node.name for node in nodes])
    ops, opaque = of_nodes(nodes, executions, layer_of, device)
    moved = copies.find(nodes, executions, layer_of)
    return Placed(ops, opaque, moved, nodes, layer_of)


def of_nodes(nodes, executions, layer_of, device):
    """Return the `Operation`s, and what hides others: (name, device, how)."""
    nodes = [node for node in nodes if node.op not in graph.PLUMBING]
    opaque = [(n.name, n.device, n.hides) for n in nodes if n.hides]
    operations = [
        placed(n, layer_of(n.name), executions(n), device)
        for n in nodes
        if not n.hides
    ]
    return operations, opaque


def placed(node, layer, runs, accelerator):
    """Return the `Operation` of a `graph.Node` on the device where it ran."""
    kind, why = "cpu", ""
    if not node.device.startswith("CPU"):
        device_type = node.device.partition(":")[0]
        kind = kernels.serving(node.definition, device_type)
        # Kernels made for one graph at run time are not in the registry.
        kind = kernels.DEVICE if kind == kernels.NONE else kind
    elif accelerator is not None:
        why = kernels.reason(
            node.definition,
            node.dtypes,
            accelerator.type,
            accelerator.platform,
        )
    where = node.device, kind, node.dtypes, layer
    return Operation(node.op, node.name, *where, runs, why)
