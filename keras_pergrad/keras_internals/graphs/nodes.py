"""The nodes of graphs and of functions, and what functions capture.

TensorFlow infers all shapes anew there. Nothing runs.

Private names in use: `Graph._get_function`, `FuncGraph.captures`,
`FuncGraph.outer_graph`;
`tensorflow.python.framework.function_def_to_graph.function_def_to_graph_def`,
`tensorflow.python.framework.op_def_registry.get`,
`tensorflow.python.ops.handle_data_util.copy_handle_data`, the op attribute
`_class`.
"""

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph, op_def_registry
from tensorflow.python.ops import handle_data_util

# The graphs of functions: what they capture, and whom they call.


def captures_of(graph):
    """List (tensor outside, tensor inside) of a function's graph."""
    return graph.captures


def graph_around(graph):
    """Return the graph in which a function was traced; None: no function."""
    return graph.outer_graph if is_function(graph) else None


def is_function(graph):
    """Whether a graph is that of a function."""
    return hasattr(graph, "outer_graph")


def called_function(graph, name):
    """Return the function that ops of a graph call by a name, or None."""
    return graph._get_function(name)


def captured_from(graph):
    """Return id of a captured tensor → the tensor where it comes from."""
    if not is_function(graph):
        return {}
    around = captured_from(graph_around(graph))
    inside = {
        id(inner): around.get(id(outer), outer)
        for outer, inner in captures_of(graph)
    }
    return {**around, **inside}


def resource_of(handle):
    """Return a key of what is behind a handle, the same for all its handles."""
    if tf.is_symbolic_tensor(handle):
        return id(handle)
    # Its text has the name and the container, by which TensorFlow finds it.
    return repr(handle).partition(", type=")[0]


# The nodes of graphs and of functions, put into a graph with other shapes.
#
# TensorFlow infers all shapes anew there. Nothing runs.


class Nodes:
    """The nodes of a graph or function, by name.

    Attributes:
        by_name: name → `NodeDef`, in order, without the inputs.
        needs: name → the names of the nodes that it needs.
        inputs: the names of the tensors that it is given.
        outputs: the names of the tensors that it gives.
    """

    def __init__(self, definition, inputs, outputs, versions):
        self.inputs, self.outputs = list(inputs), list(outputs)
        given = {name.rsplit(":", 1)[0] for name in self.inputs}
        self.by_name = {
            node.name: node for node in definition if node.name not in given
        }
        self.needs = {
            name: [tensor_name(part)[0] for part in node.input]
            for name, node in self.by_name.items()
        }
        self._versions, self._made_from = versions, None

    @classmethod
    def of_graph(cls, graph, inputs):
        """Return the nodes of a graph, of which some tensors are given."""
        definition = graph.as_graph_def()
        names = [t.name for t in inputs]
        nodes = cls(definition.node, names, (), definition.versions)
        nodes._made_from = graph
        return nodes

    @classmethod
    def of_function(cls, definition):
        """Return the nodes of a `FunctionDef`."""
        nodes, names = function_def_to_graph.function_def_to_graph_def(
            definition
        )
        inputs = [f"{a.name}:0" for a in definition.signature.input_arg]
        outputs = [
            names[definition.ret[a.name]]
            for a in definition.signature.output_arg
        ]
        return cls(nodes.node, inputs, outputs, nodes.versions)

    def handed_on(self):
        """Return the places of inputs that are outputs at the same place."""
        places = set()
        for k, (given, name) in enumerate(zip(self.inputs, self.outputs)):
            node = self.by_name.get(name.rsplit(":", 1)[0])
            while node is not None and node.op == "Identity":
                name = tensor_name(node.input[0])[1]
                node = self.by_name.get(name.rsplit(":", 1)[0])
            if name == given:
                places.add(k)
        return places

    def call_functions(self, definition_of):
        """Let nodes whose op is a function's name be ordinary calls of it."""
        for name, node in self.by_name.items():
            if op_definition(node.op) is not None:
                continue
            definition = definition_of(node.op)
            if definition is None:
                continue
            call = tf.compat.v1.NodeDef(
                name=name, op="PartitionedCall", input=node.input
            )
            call.attr["f"].func.name = node.op
            signature = definition.signature
            for key, given in (
                ("Tin", signature.input_arg),
                ("Tout", signature.output_arg),
            ):
                call.attr[key].list.type.extend(a.type for a in given)
            self.by_name[name] = call

    def only(self, names):
        """Keep these nodes and what they need, in data or order."""
        kept, waiting = set(), list(names)
        while waiting:
            name = waiting.pop()
            if name not in kept and name in self.by_name:
                kept.add(name)
                waiting += self.needs[name]
        self.by_name = {k: v for k, v in self.by_name.items() if k in kept}
        self.needs = {k: self.needs[k] for k in self.by_name}

    def shape_of(self, name, shape):
        """Return what is known of the shape of a tensor, with `shape`."""
        if self._made_from is None:
            return shape
        known = self._made_from.get_tensor_by_name(name).shape
        if not shape.is_compatible_with(known):
            return shape
        return shape.merge_with(known)

    def put(self, graph, names, known):
        """Put nodes and what is not `known` of their needs into a graph."""
        part = tf.compat.v1.GraphDef(versions=self._versions)
        inside, mapping = set(names), {}
        for name in names:
            node = part.node.add()
            node.CopyFrom(self.by_name[name])
            # An op beside which it should be may be missing.
            node.attr.pop("_class", None)
            node.device = ""
            del node.input[:]
            for text in self.by_name[name].input:
                source, key = tensor_name(text)
                if source in inside:
                    node.input.append(text)
                elif key is not None:
                    node.input.append(text)
                    mapping[text] = known[key]
        if not part.node:
            return {}
        with graph.as_default():
            operations = tf.graph_util.import_graph_def(
                part, mapping, list(names), name=""
            )
        # A name may have been changed, since a scope has it.
        for name, operation in zip(names, operations):
            for k, tensor in enumerate(operation.outputs):
                known[f"{name}:{k}"] = tensor
        return dict(zip(operations, names))


def tensor_name(text):
    """Return (node, tensor) of an input of a node; an order has no tensor."""
    if text.startswith("^"):
        return text[1:], None
    if ":" not in text:
        return text, f"{text}:0"
    return text.rsplit(":", 1)[0], text


def op_definition(op_type):
    """Return the `OpDef` of a type of op, or None."""
    return op_def_registry.get(op_type)


def only_computes(op_type):
    """Whether ops of a type are known to TensorFlow and keep no state."""
    definition = op_definition(op_type)
    return definition is not None and not definition.is_stateful


def placeholder(dtype, shape, like=None):
    """Return a placeholder, `like` the handle or list that it stands for."""
    tensor = tf.compat.v1.placeholder(dtype, shape)
    if like is not None and dtype in (tf.resource, tf.variant):
        handle_data_util.copy_handle_data(like, tensor)
    return tensor


class Definitions:
    """The functions that a graph and those around it know."""

    def __init__(self, graph):
        self._graph, self._known = graph, {}

    def nodes(self, name):
        """Return the `Nodes` of a function, or None."""
        if name not in self._known:
            definition = self.definition(name)
            # Functions that are called by an op of their name are known there.
            with self._graph.as_default():
                self._known[name] = definition and Nodes.of_function(definition)
            if definition:
                self._known[name].call_functions(self.definition)
        return self._known[name]

    def of_graph(self, graph, inputs):
        """Return the `Nodes` of a graph, as `Nodes.of_graph`."""
        nodes = Nodes.of_graph(graph, inputs)
        nodes.call_functions(self.definition)
        return nodes

    def definition(self, name):
        """Return the `FunctionDef` of a function, or None."""
        graph = self._graph
        while graph is not None:
            function = called_function(graph, name)
            for attribute in ("cached_definition", "definition"):
                definition = getattr(function, attribute, None)
                if definition is not None:
                    return definition
            graph = graph_around(graph)
        return None
