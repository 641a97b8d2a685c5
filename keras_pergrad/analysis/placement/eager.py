"""The ops of a step that runs eagerly, as they are executed.

A `tf.function` inside such a step is executed as one op. Its body is read
from the graphs that TensorFlow places for it, where they can be had.
"""

import contextlib
import dataclasses

import tensorflow as tf

from keras_pergrad.analysis.placement import (
    calls,
    collection,
    layers,
    loops,
    operations,
)
from keras_pergrad.analysis.placement import graph as graphs
from keras_pergrad.common.devices import short_name
from keras_pergrad.keras_internals import op_watch, tf_context

NOTE = (
    "run_eagerly=True: ops were seen one by one as they ran, those of a "
    "tf.function in its placed graph; copies between devices are not visible "
    "and not counted."
)


@dataclasses.dataclass(frozen=True)
class Executed:
    """One op, or one call of a function.

    Attributes:
        definition: a `NodeDef`.
        device: the short name of where it ran.
        scope: the name scope it ran in.
        hides: `"XLA"` or `"call"` for a function, else `""`.
        partitions: for a function, its graphs, one a device; empty if
            TensorFlow does not show them.
    """

    definition: object
    device: str
    scope: str
    hides: str = ""
    partitions: tuple = ()


@contextlib.contextmanager
def watch():
    """Yield a list that grows by an `Executed` for each op."""
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
        hides, parts = _hides(definition), ()
        if hides and hides != calls.XLA:
            # A function is placed once for each set of input devices.
            key = _placement_key(definition, inputs)
            parts = placed.setdefault(key, _only(fresh))
        executed.append(Executed(definition, device, scope, hides, parts))

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
    known = op_watch.op_definition(op_type)
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
        return calls.kind(definition)
    compiled = body is not None and calls.must_compile(body.attr)
    return calls.XLA if compiled else calls.CALL


def _placement_key(definition, inputs):
    devices = [getattr(t, "backing_device", None) for t in inputs or ()]
    where = tf_context.device_here()
    return definition.op, where, tuple(devices)


def _only(metadata):
    """Return the graphs of the one function that was placed, or `()`."""
    placed = [
        tuple(part for part in function.partition_graphs if part.node)
        for function in metadata.function_graphs
    ]
    return placed[0] if len(placed) == 1 else ()


def read(executed, model, device):
    """Return the `Placed` step of what was executed."""
    names = []
    for one in executed:
        inside = [node.name for part in one.partitions for node in part.node]
        names += [one.scope + name for name in inside or [one.definition.op]]
    layer_of = layers.Layers(model, names)
    ops, opaque = operations_of(executed, layer_of, device)
    return operations.Placed(ops, opaque, None, [], layer_of)


def operations_of(executed, layer_of, device):
    """Return the `Operation`s that ran, and what hides others."""
    ran, opaque = [], []
    for one in executed:
        if not one.hides:
            node = graphs.Node(one.definition, 0, one.device)
            layer = layer_of(one.scope + node.op)
            ran.append(operations.placed(node, layer, 1, device))
        elif not one.partitions:
            opaque.append((one.definition.name, one.device, one.hides))
        else:
            nodes = graphs.read(one.partitions)
            runs = loops.Runs(nodes)
            here = _under(one.scope, layer_of)
            inside, hidden = operations.of_nodes(nodes, runs, here, device)
            ran += inside
            opaque += hidden
    return ran, opaque


def _under(scope, layer_of):
    return lambda name: layer_of(scope + name)
