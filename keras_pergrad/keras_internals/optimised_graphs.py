"""The graph that TensorFlow runs for a traced function, found without a run.

TensorFlow rewrites a function's graph before its first run: ops are fused,
computed in advance, left out. The same rewriting is done here to a copy.

Private names in use:
`tensorflow.python.grappler.tf_optimizer.OptimizeGraph`,
`tensorflow.python.grappler.cluster.Cluster`,
`tensorflow.core.protobuf.meta_graph_pb2.MetaGraphDef`,
`tensorflow.core.protobuf.device_properties_pb2.NamedDevice`, the op attribute
`_lower_using_switch_merge`.
"""

import dataclasses
import os
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import device_properties_pb2, meta_graph_pb2
from tensorflow.python.grappler import cluster, tf_optimizer

from keras_pergrad.keras_internals.function_graphs import captures_of
from keras_pergrad.keras_internals.graph_nodes import Nodes

# Only ops on a known device are fused.
_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"
# Without it conditions and loops stay whole, each one op.
_LOWER = "_lower_using_switch_merge"


@dataclasses.dataclass
class OptimisedGraph:
    """A function's graph as TensorFlow runs it on the CPU.

    Attributes:
        graph: a `tf.Graph`, in which all variables are `VarHandleOp`s.
        operations: the ops that run, in the graph's order.
        outputs: the tensors that the function returns.
        functions: name → `FunctionDef`, as rewritten.
    """

    graph: Any
    operations: list
    outputs: list
    functions: dict

    def body(self, name):
        """Return the `Nodes` of a function that an op calls."""
        with self.graph.as_default():
            return Nodes.of_function(self.functions[name])


def optimised(concrete):
    """Return the `OptimisedGraph` of a traced function."""
    source = concrete.graph
    definition = source.as_graph_def()
    _name_variables(definition, source)
    for nodes in (
        definition.node,
        *(f.node_def for f in definition.library.function),
    ):
        for node in nodes:
            node.device = _DEVICE
            node.attr.pop(_LOWER, None)
    outputs = [t.name for t in source.outputs]
    controls = [op.name for op in source.control_outputs]
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(definition)
    meta.collection_def["train_op"].node_list.value.extend(outputs + controls)
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    rewritten = tf_optimizer.OptimizeGraph(
        config, meta, verbose=False, cluster=_one_cpu()
    )
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(rewritten, name="")
    tensors = [graph.get_tensor_by_name(name) for name in outputs]
    last = [graph.get_operation_by_name(name) for name in controls]
    functions = {f.signature.name: f for f in rewritten.library.function}
    operations = _needed(graph, [*(t.op for t in tensors), *last])
    return OptimisedGraph(graph, operations, tensors, functions)


def _one_cpu():
    """Return a description of the CPU: nothing is looked for or started."""
    device = device_properties_pb2.NamedDevice(name=_DEVICE)
    device.properties.type = "CPU"
    device.properties.num_cores = os.cpu_count() or 1
    device.properties.frequency = 2000
    return cluster.Cluster(devices=[device])


def _name_variables(definition, source):
    """Let variables stand for themselves, so that their shapes are known."""
    handles = {id(v.handle): v for v in source.variables}
    variables = {
        inside.op.name: handles[id(outside)]
        for outside, inside in captures_of(source)
        if id(outside) in handles
    }
    for node in definition.node:
        variable = variables.get(node.name)
        if variable is not None:
            node.op = "VarHandleOp"
            node.attr.clear()
            node.attr["dtype"].type = variable.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
            node.attr["shared_name"].s = node.name.encode()


def _needed(graph, last):
    """List the ops of a graph that some ops need, in the graph's order."""
    needed, waiting = set(), list(last)
    while waiting:
        op = waiting.pop()
        if op.name not in needed:
            needed.add(op.name)
            waiting += [t.op for t in op.inputs] + list(op.control_inputs)
    return [op for op in graph.get_operations() if op.name in needed]
