"""The search for the op that computes wrong numbers on a device."""

import dataclasses

import numpy as np
import tensorflow as tf

from keras_pergrad.analysis import numerics
from keras_pergrad.analysis.placement import graph, kernels
from keras_pergrad.keras_internals.graph_session import GraphCopy

_MOST = 40  # ops judged one by one
_SUMS = ("Sum", "Mean", "MatMul", "Conv", "BiasAddGrad", "AddN", "Einsum")
_SUMS += ("BatchMatMul", "UnsortedSegment", "AvgPool", "Softmax")


@dataclasses.dataclass(frozen=True)
class Suspect:
    """The suspected cause of a difference.

    Attributes:
        op: the op's type, `""` if it was not found.
        name: its name in the graph, `""` if only the type is known.
        layer: the layer where the numbers first differ, or `""`.
        alone: whether the op was wrong when given the CPU's own inputs.
        error: the largest difference of its output, or `None`.
    """

    op: str
    name: str
    layer: str
    alone: bool
    error: float | None = None

    def __str__(self):
        where = f" in layer {self.layer}" if self.layer else ""
        if self.alone:
            return (
                f"{self.op}{where} is wrong: given the CPU's inputs, its "
                f"output differs by {self.error:.3g} ({self.name})"
            )
        if self.op:
            return (
                f"{self.op}{where} is wrong, in a loop or fused with its "
                f"neighbours: with it on the CPU the numbers agree"
            )
        return f"first difference{where}; no single op explains it"


def find(concrete, values, device, layer_of, judge):
    """Return the `Suspect` behind a difference."""
    differing, suspect = _op_by_op(concrete, values, device, layer_of)
    if suspect is not None:
        return suspect
    op = _by_type(concrete, values, device, judge)
    names = [differing] if differing else []
    nodes = concrete.graph.get_operations()
    names += [node.name for node in nodes if node.type == op]
    layer = next(filter(None, map(layer_of, names)), "")
    return Suspect(op, "", layer, alone=False)


def _op_by_op(concrete, values, device, layer_of):
    """Return the first op that differs in place, and the first wrong alone."""
    with GraphCopy(concrete, device="/device:CPU:0") as cpu:
        right = {t.name: value for t, value in _run(cpu, values).items()}
    first, tried = None, 0
    with GraphCopy(concrete, device=f"/device:{device}") as copied:
        there = _run(copied, values)
        for op in copied.graph.get_operations():
            outputs = [t for t in op.outputs if t in there]
            outputs = [t for t in outputs if t.dtype.is_floating]
            if all(_verdict(op, right, t, there[t]).ok for t in outputs):
                continue
            first = first or op.name
            feeds = {t: right[t.name] for t in op.inputs if t.name in right}
            if len(feeds) < sum(t.dtype != tf.resource for t in op.inputs):
                continue  # an input cannot be fed
            tried += 1
            if tried > _MOST:
                break
            alone = copied.run(values, fetches=outputs, feeds=feeds)
            for tensor, value in zip(outputs, alone):
                verdict = _verdict(op, right, tensor, value)
                if not verdict.ok:
                    where = op.type, op.name, layer_of(op.name)
                    return first, Suspect(*where, True, verdict.error)
    return first, None


def _run(copied, values):
    """Return all tensors of the graph that can be fetched and fed."""
    idle = graph.RUNTIME - {"Const"}
    made = [
        tensor
        for op in copied.graph.get_operations()
        if op.type not in idle
        for tensor in op.outputs
    ]
    handles = (tf.resource, tf.variant, tf.string)
    tensors = [t for t in [*copied.inputs, *made] if t.dtype not in handles]
    return dict(zip(tensors, copied.run(values, fetches=tensors)))


def _verdict(op, right, tensor, value):
    """Judge one output; its inputs determine how much is rounding."""
    inputs = [right[t.name] for t in op.inputs if t.name in right]
    terms, scale, dtype = 1, 0.0, tensor.dtype.name
    if op.type.startswith(_SUMS) and inputs:
        terms = max(1, *(np.size(a) for a in inputs))
        real = [a for a in inputs if np.asarray(a).dtype.kind == "f"]
        sizes = [float(np.max(np.abs(a), initial=0.0)) for a in real]
        product = op.type.startswith(("MatMul", "Conv", "Batch", "Einsum"))
        scale = float(np.prod(sizes)) if product else max(sizes, default=0.0)
        dtype = numerics.on_device(dtype, "GPU") if product else dtype
    return numerics.judge(right[tensor.name], value, dtype, terms, scale)


def _by_type(concrete, values, device, judge):
    """Return the type of op whose move to the CPU removes the difference."""
    definition = concrete.graph.as_graph_def()
    bodies = [definition.node]
    bodies += [f.node_def for f in definition.library.function]
    ops = dict.fromkeys(node.op for body in bodies for node in body)
    device_type = device.partition(":")[0]
    for op in ops:
        if op in graph.PLUMBING or kernels.owned_by_tensorflow(op):
            continue
        if device_type not in {k.device_type for k in kernels.registered(op)}:
            continue
        pins = {op: "/device:CPU:0"}
        with GraphCopy(concrete, f"/device:{device}", pins) as copied:
            verdicts = judge(copied.run(values))
        if all(verdict.ok for verdict in verdicts.values()):
            return op
    return ""
