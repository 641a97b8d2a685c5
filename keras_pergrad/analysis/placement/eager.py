"""The ops of a step that runs eagerly, as they are executed.

A `tf.function` inside such a step is executed as one op. Its body is read
from the graphs that TensorFlow places for it, where they can be had.
"""

import contextlib

import tensorflow as tf

from keras_pergrad.analysis.placement import (
    collection,
    layers,
    loops,
    operations,
)
from keras_pergrad.analysis.placement import graph as graphs
from keras_pergrad.common.devices import short_name
from keras_pergrad.keras_internals import graph_nodes, op_watch, tf_context

NOTE = (
    "run_eagerly=True: ops were seen one by one as they ran, those of a "
    "tf.function in its placed graph; copies between devices are not visible "
    "and not counted."
)


@contextlib.contextmanager
def watch():
    """Yield a list that grows by (scope of their names, nodes) for each op.

    The nodes of a function are those of its body, else one that says what it
    hides; any other op is one node, whose name holds its scope.
    """
    executed, placed = [], {}

    def note(op_type, inputs, attrs, outputs, op_name=None, graph=None):
        if graph is not None:
            return
        # Whatever was placed since the last op was placed for this one.
        fresh = tf_context.placed_since()
        op_type = op_type.decode() if isinstance(op_type, bytes) else op_type
        if op_type in graphs.PLUMBING:
            return
        device = _device(outputs) or _device(inputs) or "CPU:0"
        scope = tf_context.scope_here()
        definition = _definition(op_type, attrs, scope)
        node = graphs.Node(definition, 0, device, hides=_hides(definition))
        body = []
        if node.hides == graphs.CALL:
            # A function is placed once for each set of input devices.
            devices = [getattr(t, "backing_device", 0) for t in inputs or ()]
            key = op_type, tf_context.device_here(), tuple(devices)
            if key not in placed:
                placed[key] = _only(fresh)
            body = placed[key]
        executed.append((scope, body) if body else ("", [node]))

    # A function called in an earlier step would not be placed again.
    with op_watch.each_op(note), collection.collect(again=True):
        yield executed


def _device(tensors):
    for tensor in tensors or ():
        if tensor is not None and getattr(tensor, "device", ""):
            return short_name(tensor.device)
    return None


def _definition(op_type, attrs, scope):
    definition = tf.compat.v1.NodeDef(op=op_type, name=f"{scope}{op_type}")
    known = graph_nodes.op_definition(op_type)
    kinds = {a.name: a.type for a in known.attr} if known else {}
    for key, value in zip((attrs or ())[::2], (attrs or ())[1::2]):
        key = key.decode() if isinstance(key, bytes) else key
        if kinds.get(key) == "type":
            dtype = tf.dtypes.as_dtype(value)
            definition.attr[key].type = dtype.as_datatype_enum
        elif kinds.get(key) in ("func", "list(func)"):
            definition.attr[key].func.SetInParent()
    return definition


def _hides(definition):
    try:
        body = tf_context.function_definition(definition.op)
    except LookupError:
        return graphs.hidden_in(definition)
    compiled = body is not None and graphs.must_compile(body.attr)
    return graphs.XLA if compiled else graphs.CALL


def _only(metadata):
    """Return the nodes of the one function that was placed, or `[]`."""
    if len(metadata.function_graphs) != 1:
        return []
    return graphs.read(metadata.function_graphs[0].partition_graphs)


def read(executed, model, device):
    """Return the `Placed` step of what was executed."""
    names = [scope + node.name for scope, nodes in executed for node in nodes]
    layer_of = layers.Layers(model, names)
    ops, opaque = operations_of(executed, layer_of, device)
    return operations.Placed(ops, opaque, None, [], layer_of)


def operations_of(executed, layer_of, device):
    """Return the `Operation`s that ran, and what hides others."""
    ran, opaque = [], []
    for scope, nodes in executed:
        inside, hidden = operations.of_nodes(
            nodes,
            loops.Executions(nodes),
            lambda name, scope=scope: layer_of(scope + name),
            device,
        )
        ran += inside
        opaque += hidden
    return ran, opaque
