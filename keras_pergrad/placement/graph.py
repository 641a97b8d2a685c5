"""Partition graphs as one graph: nodes, edges and layers.

Partition graphs are what TensorFlow hands to each device's executor. They show
the true placement, as they are made after the placer, grappler and the
partitioner. A node keeps TensorFlow's `NodeDef`. Added are the short name of
its device, the nodes that feed it, the receive that belongs to a send, and
whether it stands for a function that TensorFlow did not inline: to count that
as one op would be wrong.
"""

import dataclasses
import re

import tensorflow as tf

from keras_pergrad.common.machine import short_name
from keras_pergrad.keras_internals.graphs import runs
from keras_pergrad.keras_internals.models.parts import inner_layers

XLA, CALL = "XLA", "call"
_CALL_OPS = {"PartitionedCall", "StatefulPartitionedCall"}
_XLA_OPS = ("XlaLaunch", "_XlaCompile", "_XlaRun")
# The functions of a data pipeline are run by the pipeline, not by the node.
_PIPELINE_SUFFIXES = ("Dataset", "DatasetV2", "DatasetV3", "DatasetV4")
_FETCH = "IteratorGetNext"
COUNTED_ONCE = (
    "ops in a loop or branch are counted once, however often a step runs them."
)
SENDS = ("_Send", "_HostSend")
RECEIVES = ("_Recv", "_HostRecv")


@dataclasses.dataclass(eq=False)
class Node:
    """One node of a partition graph."""

    definition: object
    part: int
    device: str
    inputs: list = dataclasses.field(default_factory=list)  # (Node, slot)
    partner: "Node | None" = None  # the other end of a send or receive
    opaque_kind: str = ""  # "XLA" or "call" if it stands for a function

    @property
    def name(self):
        return self.definition.name

    @property
    def op(self):
        return runs.plain_op_type(self.definition.op)

    @property
    def attr(self):
        return self.definition.attr

    @property
    def dtypes(self):
        """The names of the types among its attributes, `T` first."""
        return type_names(self.definition)


def hidden_in(definition, functions=()):
    """Return what hides behind a `NodeDef`: `"XLA"`, `"call"` or `""`."""
    op, attr = definition.op, definition.attr
    if op.endswith(_PIPELINE_SUFFIXES):
        return ""
    compiled = "_XlaMustCompile" in attr and attr["_XlaMustCompile"].b
    if op in _XLA_OPS or compiled:
        return XLA
    # "func" for one function, as in While; a list of them for Case.
    has_function = any(
        value.WhichOneof("value") == "func" or value.list.func
        for value in attr.values()
    )
    return CALL if has_function or op in _CALL_OPS or op in functions else ""


def type_names(definition):
    """Get the names of the types among a `NodeDef`'s attributes, `T` first."""
    types = []
    for key in sorted(definition.attr, key=lambda k: (k != "T", k)):
        value = definition.attr[key]
        kind = value.WhichOneof("value")
        if kind == "type":
            types.append(value.type)
        elif kind == "list":
            types += value.list.type
    return tuple(dict.fromkeys(tf.dtypes.as_dtype(t).name for t in types if t))


def read(partitions):
    """Join the `GraphDef`s of all devices into one list of linked nodes."""
    nodes, by_name, transfers = [], {}, {}
    for part, graph in enumerate(partitions):
        functions = {f.signature.name for f in graph.library.function}
        for definition in graph.node:
            node = Node(definition, part, short_name(definition.device))
            node.opaque_kind = hidden_in(definition, functions)
            nodes.append(node)
            by_name[part, definition.name] = node
    for node in nodes:
        for source in node.definition.input:
            name, _, slot = source.partition(":")
            producer = by_name.get((node.part, name))
            if producer is not None:  # none stands for "^name", which orders
                node.inputs.append((producer, int(slot or 0)))
        if node.op in SENDS + RECEIVES:
            # Both ends of a copy name the same tensor and the same sender.
            key = node.attr["tensor_name"].s, node.attr["send_device"].s
            transfers.setdefault(key, []).append(node)
    for ends in transfers.values():
        sends = [node for node in ends if node.op in SENDS]
        receives = [node for node in ends if node.op in RECEIVES]
        for send, receive in zip(sends, receives):
            send.partner, receive.partner = receive, send
    return nodes


def through_plumbing(node, slot=0):
    """Return the node that made a tensor, past identities and receives."""
    while True:
        if node.op in RECEIVES and node.partner is not None:
            node, slot = node.partner.inputs[0]
        elif node.op in ("Identity", "StopGradient") and node.inputs:
            node, slot = node.inputs[0]
        else:
            return node, slot


def turns(nodes):
    """Whether a loop or a branch is among the nodes."""
    return any(node.op in ("Enter", "Switch") for node in nodes)


def step_partitions(metadata):
    """Return the partition graphs of the training step, one a device."""

    # Other functions (of the data pipeline, of metrics) may have been placed
    # meanwhile: the step is the one that fetches a batch, else the largest that
    # writes variables. Since Keras 3.16 a fetch is a graph of its own.
    def rank(parts):
        ops = [node.op for part in parts for node in part.node]
        fetches = any(op.startswith(_FETCH) for op in ops)
        return fetches, any(op.startswith("Assign") for op in ops), len(ops)

    graphs = [
        [part for part in graph.partition_graphs if part.node]
        for graph in metadata.function_graphs
    ]
    steps = [parts for parts in graphs if not _only_fetches(parts)]
    return max(steps, key=rank, default=[])


def _only_fetches(parts):
    ops = {node.op for part in parts for node in part.node} - runs.PLUMBING
    return all(op.startswith((_FETCH, "Optional")) for op in ops)


class Layers:
    """The layer that a node comes from, read from the node's name."""

    # Keras opens a name scope for each layer it calls, and TensorFlow puts the
    # gradient's nodes under the same names. Scopes get a "_1" appended where
    # the name was used before, so "dense_1" may be layer dense or dense_1: the
    # names of one graph are read one way or the other, whichever explains more.

    def __init__(self, model, names):
        layers = inner_layers(model)
        self._names = {layer.name for layer in layers}
        self._model = model.name
        name = getattr(getattr(model, "optimizer", None), "name", None)
        self._optimizer = {name, _without_number(name)} if name else set()
        parts = {part for name in names for part in name.split("/")}
        layer_names = {*self._names, model.name}
        plain_count = sum(name in parts for name in layer_names)
        numbered_count = sum(f"{name}_1" in parts for name in layer_names)
        self._marked = numbered_count > plain_count

    def __call__(self, name):
        """Return where a node of this name comes from.

        A layer's path, "optimizer", "loss", the model's name, or "" if none.
        """
        parts = name.split("/")
        layers = [self._layer(part) for part in parts]
        if any(layers):
            return "/".join(dict.fromkeys(filter(None, layers)))
        all_parts = {*parts, *map(_without_number, parts)}
        if all_parts & self._optimizer:
            return "optimizer"
        if "compile_loss" in all_parts:
            return "loss"
        # Ops of the model's own, such as keras.ops in a functional model.
        return self._model if self._model in all_parts else ""

    def _layer(self, part):
        choices = [part, _without_number(part)]
        matches = [choice for choice in choices if choice in self._names]
        return matches[-1 if self._marked else 0] if matches else None


def _without_number(part):
    return re.sub(r"_\d+$", "", part)
