"""Calls of a `tf.function`, with the ops of its body beside the call.

The call still computes the outputs. The ops beside it show where weights meet
the data inside. TensorFlow's own optimisation makes both one again.
"""

import dataclasses

import tensorflow as tf

from keras_pergrad.keras_internals.graphs.gradients import has_own_gradient
from keras_pergrad.keras_internals.graphs.nodes import called_function
from keras_pergrad.proof.op_facts import CALLS_FUNCTION, READS, has


@dataclasses.dataclass
class InlinedCall:
    """A call, and the ops of its body in the graph of the call.

    Attributes:
        called: the outputs of the call.
        body: the graph of the function.
        ops: the ops, in order.
        outputs: the outputs of these ops, equal to those of the call.
        parent: the `InlinedCall` whose ops the call is among, or None.
    """

    called: list
    body: object
    ops: list
    outputs: list
    parent: object = None


def inline_call(call, parent=None):
    """Put the ops of a call's body beside it.

    None: that would change results.
    """
    body = _body(call, call.graph if parent is None else parent.body)
    if body is None or not _is_pure(body) or _needs_xla(call, body):
        return None
    # Taken now: when the call is differentiated it gets other outputs.
    called = list(call.outputs)
    operations = body.get_operations()
    copies = {a.name: b for a, b in zip(body.inputs, call.inputs)}
    op_count = len(call.graph.get_operations())
    with call.graph.as_default(), tf.control_dependencies(None):
        for op in operations:
            if op.type in ("Placeholder", "NoOp"):
                continue
            new_op = call.graph.create_op(
                op.type,
                [copies[t.name] for t in op.inputs],
                [t.dtype for t in op.outputs],
                attrs=dict(op.node_def.attr.items()),
                name=f"{call.name.rsplit('/', 1)[0]}/{op.name}",
            )
            for original, copy in zip(op.outputs, new_op.outputs):
                copy.set_shape(original.shape)
                copies[original.name] = copy
        outputs = [tf.identity(copies[t.name]) for t in body.outputs]
    ops = call.graph.get_operations()[op_count:]
    return InlinedCall(called, body, ops, outputs=outputs, parent=parent)


def _body(call, caller):
    """Return the graph of the called function, or None if not known."""
    function = called_function(caller, call.get_attr("f").name)
    graph = getattr(function, "graph", None)
    matches = graph is not None and len(graph.inputs) == len(call.inputs)
    return graph if matches else None


def _needs_xla(call, body):
    """Whether an op has a kernel only in XLA: a grouped convolution in 3D."""
    attributes = call.node_def.attr
    return "_XlaMustCompile" in attributes and any(
        op.type == "Conv3D" and _channels(op) != op.inputs[1].shape[-2]
        for op in body.get_operations()
    )


def _channels(op):
    channels_first = op.get_attr("data_format").startswith(b"NC")
    return op.inputs[0].shape[1 if channels_first else -1]


def _is_pure(graph):
    """Whether its ops only compute, so that they may be computed again."""
    for op in graph.get_operations():
        if has_own_gradient(op.node_def.attr):
            return False
        if has(op, CALLS_FUNCTION):
            body = _body(op, graph)
            if body is None or not _is_pure(body):
                return False
            continue
        if op.op_def.is_stateful and not has(op, READS):
            return False
        if any(a.HasField("func") for a in op.node_def.attr.values()):
            return False
    return True
