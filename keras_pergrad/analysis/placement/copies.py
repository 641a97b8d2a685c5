"""Copies between host memory and an accelerator's memory.

TensorFlow cuts an edge between devices into a send and a receive. It is a copy
where the two ends keep the tensor in different kinds of memory: a "_Host" end
keeps it in host memory, even on an accelerator.
"""

import collections
import dataclasses

from keras_pergrad.analysis.placement.graph import SENDS, through_plumbing

TO_DEVICE, TO_HOST = "to device", "to host"


@dataclasses.dataclass(frozen=True)
class Copy:
    """One tensor that crosses once a run.

    Attributes:
        direction: `"to device"` or `"to host"`.
        tensor: the name of the node that made it.
        dtype: its type; `"variant"` for a handle that carries tensors.
        runs: how often a step copies it, `None` if that is unknown.
        layer: the layer it comes from, or `""`.
    """

    direction: str
    tensor: str
    dtype: str
    runs: int | None
    layer: str = ""


def _in_host_memory(node):
    return node.op.startswith("_Host") or node.device.startswith("CPU")


def _tensors_inside(node):
    """Return how many tensors a variant carries; each is copied by itself."""
    if node.op == "OptionalFromValue":
        return len(node.inputs)
    if node.op == "IteratorGetNextAsOptional":
        return len(node.attr["output_types"].list.type)
    if node.op == "OptionalNone":
        return 0
    return 1


def direction(send):
    """`"to device"`, `"to host"`, or `None` where nothing is copied."""
    if send.op not in SENDS or send.partner is None or not send.inputs:
        return None
    source, target = _in_host_memory(send), _in_host_memory(send.partner)
    if source == target or "/ctrl/" in send.inputs[0][0].name:
        return None
    return TO_DEVICE if source else TO_HOST


def find(nodes, executions, layer_of):
    """Return every `Copy` of one step."""
    moved = []
    for send in nodes:
        way = direction(send)
        if way is None:
            continue
        maker, _ = through_plumbing(*send.inputs[0])
        times = executions(send)
        dtype = send.dtypes[0] if send.dtypes else "variant"
        if dtype == "variant" and times is not None:
            # In the loop over steps, handles that cross may be empty.
            times = _tensors_inside(maker) * times
            times = None if executions.over_steps else times
        if times != 0:
            layer = layer_of(maker.name)
            moved.append(Copy(way, maker.name, dtype, times, layer))
    return moved + _logs(nodes)


def _logs(nodes):
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
        maker, _ = through_plumbing(*node.inputs[0])
        if maker.op != "OptionalFromValue":
            continue
        logs = _tensors_inside(maker)
        copies.append(Copy(TO_HOST, "the step's logs", "logs", logs))
        if not maker.device.startswith("CPU"):
            for way in (TO_DEVICE, TO_HOST):
                copies.append(Copy(way, "whether there are logs", "bool", 1))
    return copies


def total(copies):
    """Return the copies of one step, `None` if one cannot be counted."""
    if any(copy.runs is None for copy in copies):
        return None
    return sum(copy.runs for copy in copies)


def by_direction(copies):
    """Return a `Counter` of the copies of a step, by direction."""
    counts = collections.Counter()
    for copy in copies:
        counts[copy.direction] += copy.runs or 0
    return counts
