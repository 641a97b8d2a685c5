"""The nodes of graphs and of functions, and what functions capture.

Nodes can be put into a graph with other shapes. TensorFlow infers all shapes
anew there. Nothing runs.

Private names in use: `Graph._get_function`, `FuncGraph.captures`,
`FuncGraph.outer_graph`;
`tensorflow.python.framework.function_def_to_graph.function_def_to_graph_def`,
`tensorflow.python.framework.op_def_registry.get`,
`tensorflow.python.ops.handle_data_util.copy_handle_data`,
`tensorflow.python.ops.handle_data_util.get_resource_handle_data`, the op
attribute `_class`.
"""

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph, op_def_registry
from tensorflow.python.ops import handle_data_util


def captures_of(graph):
    """List (tensor outside, tensor inside) of a function's graph."""
    return graph.captures


def outer_graph_of(graph):
    """Return the graph in which a function was traced; None: no function."""
    return graph.outer_graph if is_function(graph) else None


def is_function(graph):
    """Whether a graph is that of a function."""
    return hasattr(graph, "outer_graph")


def called_function(graph, name):
    """Return the function that ops of a graph call by a name, or None."""
    return graph._get_function(name)


def captured_origins(graph):
    """Map the `ref()` of each captured tensor to the tensor it comes from."""
    # Functions are nested: an outer tensor may itself be captured further out.
    if not is_function(graph):
        return {}
    outer_origins = captured_origins(outer_graph_of(graph))
    origins = {
        inner.ref(): outer_origins.get(outer.ref(), outer)
        for outer, inner in captures_of(graph)
    }
    return {**outer_origins, **origins}


def resource_key(handle):
    """Return a key of the resource behind a handle, one for all its handles."""
    if tf.is_symbolic_tensor(handle):
        return id(handle)
    # The text has the name and the container, by which TensorFlow finds it.
    return repr(handle).partition(", type=")[0]


class Nodes:
    """The nodes of a graph or function, by name.

    Attributes:
        by_name: name → `NodeDef`, in order, without the inputs.
        needs: name → the names of the nodes that it needs.
        inputs: the names of the tensors that it is given.
        outputs: the names of the tensors that it gives.
    """

    def __init__(self, definition, inputs, outputs, *, versions):
        self.inputs, self.outputs = list(inputs), list(outputs)
        input_nodes = {name.rsplit(":", 1)[0] for name in self.inputs}
        self.by_name = {
            node.name: node
            for node in definition
            if node.name not in input_nodes
        }
        self.needs = {
            name: [tensor_name(part)[0] for part in node.input]
            for name, node in self.by_name.items()
        }
        self._versions, self._source_graph = versions, None

    @classmethod
    def of_graph(cls, graph, inputs):
        """Return the nodes of a graph, of which some tensors are given."""
        definition = graph.as_graph_def()
        names = [t.name for t in inputs]
        nodes = cls(definition.node, names, (), versions=definition.versions)
        nodes._source_graph = graph
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
        return cls(nodes.node, inputs, outputs, versions=nodes.versions)

    def passthrough_indices(self):
        """Return the indices at which an input is passed on as the output."""
        indices = set()
        for k, (input_name, name) in enumerate(zip(self.inputs, self.outputs)):
            node = self.by_name.get(name.rsplit(":", 1)[0])
            while node is not None and node.op == "Identity":
                name = tensor_name(node.input[0])[1]
                node = self.by_name.get(name.rsplit(":", 1)[0])
            if name == input_name:
                indices.add(k)
        return indices

    def call_functions(self, definition_of):
        """Turn nodes whose op is a function's name into ordinary calls."""
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
            for key, arguments in (
                ("Tin", signature.input_arg),
                ("Tout", signature.output_arg),
            ):
                call.attr[key].list.type.extend(a.type for a in arguments)
            self.by_name[name] = call

    def only(self, names):
        """Keep these nodes and what they need, by data or by control edges."""
        needed, pending = set(), list(names)
        while pending:
            name = pending.pop()
            if name not in needed and name in self.by_name:
                needed.add(name)
                pending += self.needs[name]
        self.by_name = {k: v for k, v in self.by_name.items() if k in needed}
        self.needs = {k: self.needs[k] for k in self.by_name}

    def shape_of(self, name, shape):
        """Refine an inferred shape by the one that the tensor had before."""
        if self._source_graph is None:
            return shape
        traced_shape = self._source_graph.get_tensor_by_name(name).shape
        if not shape.is_compatible_with(traced_shape):
            return shape
        return shape.merge_with(traced_shape)

    def put(self, graph, names, tensors):
        """Import nodes into a graph; return its ops → the nodes' names.

        `tensors`: by name, what the nodes take; their outputs are added to it.
        """
        graph_def = tf.compat.v1.GraphDef(versions=self._versions)
        imported, mapping = set(names), {}
        for name in names:
            node = graph_def.node.add()
            node.CopyFrom(self.by_name[name])
            # "_class" asks for the device of another op, which may be missing.
            node.attr.pop("_class", None)
            node.device = ""
            del node.input[:]
            for reference in self.by_name[name].input:
                source, key = tensor_name(reference)
                if source in imported:
                    node.input.append(reference)
                elif key is not None:
                    node.input.append(reference)
                    mapping[reference] = tensors[key]
        if not graph_def.node:
            return {}
        with graph.as_default():
            operations = tf.graph_util.import_graph_def(
                graph_def, mapping, list(names), name=""
            )
        # An op may have got another name, since a scope has that one.
        for name, operation in zip(names, operations):
            for k, tensor in enumerate(operation.outputs):
                tensors[f"{name}:{k}"] = tensor
        return dict(zip(operations, names))


def tensor_name(reference):
    """Return (node, tensor) of a node's input; a control edge has no tensor."""
    if reference.startswith("^"):
        return reference[1:], None
    if ":" not in reference:
        return reference, f"{reference}:0"
    return reference.rsplit(":", 1)[0], reference


def op_definition(op_type):
    """Return the `OpDef` of a type of op, or None."""
    return op_def_registry.get(op_type)


def is_variable(tensor):
    """Whether a graph's tensor is the handle of a variable, of no table."""
    return (
        tensor.dtype == tf.resource
        and handle_data_util.get_resource_handle_data(tensor).is_set
    )


def placeholder(dtype, shape, like=None):
    """Return a placeholder, `like` the handle or list that it stands for."""
    tensor = tf.compat.v1.placeholder(dtype, shape)
    if like is not None and dtype in (tf.resource, tf.variant):
        handle_data_util.copy_handle_data(like, tensor)
    return tensor


class Definitions:
    """The functions that a graph and those around it know."""

    def __init__(self, graph):
        self._graph, self._nodes_by_name = graph, {}

    def nodes(self, name):
        """Return the `Nodes` of a function, or None."""
        if name not in self._nodes_by_name:
            definition = self.definition(name)
            # TensorFlow looks up ops that are functions in the current graph.
            with self._graph.as_default():
                self._nodes_by_name[name] = definition and Nodes.of_function(
                    definition
                )
            if definition:
                self._nodes_by_name[name].call_functions(self.definition)
        return self._nodes_by_name[name]

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
            graph = outer_graph_of(graph)
        return None
