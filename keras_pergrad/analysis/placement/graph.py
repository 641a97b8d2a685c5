"""Partition graphs as one graph: nodes, edges, and the edges between devices.

A node keeps TensorFlow's `NodeDef`; what is added is the device's short name,
who feeds it, which send belongs to which receive, and whether it stands for a
function that TensorFlow did not inline: to count that as one op would be wrong.
"""

import dataclasses

import tensorflow as tf

from keras_pergrad.common.devices import short_name

XLA, CALL = "XLA", "call"
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_XLA = ("XlaLaunch", "_XlaCompile", "_XlaRun")
# The functions of a data pipeline are run by the pipeline, not by the node.
_PIPELINES = ("Dataset", "DatasetV2", "DatasetV3", "DatasetV4")


def op_types(names):
    """Return the op types that stand in a text."""
    return frozenset(names.split())


SENDS = ("_Send", "_HostSend")
RECEIVES = ("_Recv", "_HostRecv")
# The runtime's own nodes: they carry tensors and compute nothing.
RUNTIME = op_types(
    "_Send _HostSend _Recv _HostRecv _Arg _Retval _DeviceArg _DeviceRetval "
    "_SysArg Const NoOp Placeholder VarHandleOp"
)
CONTROL = op_types(
    "ControlTrigger Enter Exit Identity IdentityN LoopCond Merge "
    "NextIteration PreventGradient StopGradient Switch _SwitchN"
)
PLUMBING = RUNTIME | CONTROL


@dataclasses.dataclass(eq=False)
class Node:
    """One node of a partition graph."""

    definition: object
    part: int
    device: str
    inputs: list = dataclasses.field(default_factory=list)  # (Node, slot)
    controls: list = dataclasses.field(default_factory=list)
    partner: "Node | None" = None  # the other end of a send or receive
    hides: str = ""  # "XLA" or "call" if it stands for a whole function

    @property
    def name(self):
        return self.definition.name

    @property
    def op(self):
        # On x86, oneDNN puts a prefix before the op it takes over.
        name = self.definition.op
        if not name.startswith("_Mkl"):
            return name
        name = name.removeprefix("_Mkl").removeprefix("Native")
        return f"_{name}" if name.startswith("Fused") else name

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
    if op.endswith(_PIPELINES):
        return ""
    if op in _XLA or must_compile(attr):
        return XLA
    # "func" for one function, as in While; a list of them for Case.
    holds = any(
        value.WhichOneof("value") == "func" or value.list.func
        for value in attr.values()
    )
    return CALL if holds or op in _CALLS or op in functions else ""


def must_compile(attr):
    """Whether the attributes of a node or function ask for XLA."""
    return "_XlaMustCompile" in attr and attr["_XlaMustCompile"].b


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
    """Join a list of `GraphDef`, one a device, into linked nodes."""
    nodes, by_name, ends = [], {}, {}
    for part, graph in enumerate(partitions):
        functions = {f.signature.name for f in graph.library.function}
        for definition in graph.node:
            node = Node(definition, part, short_name(definition.device))
            node.hides = hidden_in(definition, functions)
            nodes.append(node)
            by_name[part, definition.name] = node
    for node in nodes:
        for source in node.definition.input:
            name, _, slot = source.removeprefix("^").partition(":")
            feeder = by_name.get((node.part, name))
            if feeder is not None and source.startswith("^"):
                node.controls.append(feeder)
            elif feeder is not None:
                node.inputs.append((feeder, int(slot or 0)))
        if node.op in SENDS + RECEIVES:
            key = node.attr["tensor_name"].s, node.attr["send_device"].s
            ends.setdefault(key, []).append(node)
    for pair in ends.values():
        sends = [node for node in pair if node.op in SENDS]
        receives = [node for node in pair if node.op in RECEIVES]
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
