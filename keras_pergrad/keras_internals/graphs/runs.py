"""A private copy of a traced function, which can run any number of times.

The function's graph is imported into a session of its own with a copy of
every variable, so that the model's weights, metrics and step number stay
as they are. A session also reports what a function call cannot: per node,
the device, the executions, the time and the bytes.

Private attributes in use, covered by
`tests/keras_internals/test_graph_session.py`:
`FuncGraph.captures`, `FuncGraph.variables`, `FuncGraph.control_outputs`.
"""

import itertools
import re

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.tensorflow.settings import inspecting

v1 = tf.compat.v1
_copy_numbers = itertools.count()


def op_types(names):
    """Split a text into a set of op types."""
    return frozenset(names.split())


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


class NotCopyable(ValueError):
    """An error: the function holds state that cannot be copied."""


class GraphCopy:
    """A runner of a copy of a traced function, freed when its context ends."""

    # `device` places ops, where these can run there; None: TensorFlow does.
    # `rewrites` are grappler's options, fields of `RewriterConfig`; `keep`
    # holds the variables' first values, for `restore`.

    def __init__(self, concrete, device=None, rewrites=None, *, keep=False):
        self._keep_values = keep
        self.graph = tf.Graph()
        self._source = concrete.graph
        self._device = device
        definition = concrete.graph.as_graph_def()
        if device:
            _place_nodes(definition, device)
        # Values are read while still eager, before the new graph is entered.
        state = list(_captured_state(concrete.graph))
        with self.graph.as_default():
            self._build(definition, state)
        options = v1.ConfigProto(allow_soft_placement=True)
        for key, value in (rewrites or {}).items():
            setattr(options.graph_options.rewrite_options, key, value)
        self._session = v1.Session(graph=self.graph, config=options)

    def __enter__(self):
        self.restore()
        if not self._keep_values:
            self._values = {}
        return self

    def restore(self):
        """Give every variable the value that it had when it was copied."""
        self._session.run(self._assign_ops, self._values)

    def __exit__(self, *_):
        self._session.close()

    def _build(self, definition, state):
        mapping, self._assign_ops, self._values = {}, [], {}
        captured = set()
        for internal, external, variable in state:
            captured.add(id(internal))
            if variable is not None:
                mapping[internal.name] = self._copy_variable(variable, external)
            else:
                with tf.device(self._device), tf.name_scope("copied/"):
                    mapping[internal.name] = tf.constant(external)
        inputs = [t for t in self._source.inputs if id(t) not in captured]
        with tf.name_scope("copied/"):
            self.inputs = [v1.placeholder(t.dtype, t.shape) for t in inputs]
        mapping |= {t.name: p for t, p in zip(inputs, self.inputs)}
        self.outputs = tf.import_graph_def(
            definition,
            input_map=mapping,
            return_elements=[t.name for t in self._source.outputs],
            name="",
        )
        self.controls = [
            self.graph.get_operation_by_name(op.name)
            for op in self._source.control_outputs
        ]

    def _copy_variable(self, variable, numbers):
        """Return the handle of a new variable with the value of another."""
        shape, dtype = variable.shape, variable.dtype
        # In a scope of their own, so that the step's nodes keep their names.
        with tf.device(self._device), tf.name_scope("copied/"):
            handle = tf.raw_ops.VarHandleOp(
                dtype=dtype,
                shape=shape,
                shared_name=f"copied_{next(_copy_numbers)}",
            )
            value = v1.placeholder(dtype, shape)
            self._assign_ops.append(
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)
            )
        self._values[value] = numbers
        return handle

    def run(self, values, fetches=None, trace=None, *, feeds=None):
        """Run the function once; return what is fetched, as NumPy arrays."""
        # By default that is the function's outputs, with all its side effects.
        # `trace` is a `RunMetadata` to fill; `feeds` are tensor → array, in
        # place of computed tensors.
        feed = dict(zip(self.inputs, values)) | (feeds or {})
        targets = [self.outputs, self.controls] if fetches is None else fetches
        if trace is None:
            result = self._session.run(targets, feed)
        else:
            options = v1.RunOptions(
                trace_level=v1.RunOptions.FULL_TRACE,
                output_partition_graphs=True,
            )
            result = self._session.run(
                targets, feed, options=options, run_metadata=trace
            )
        return result[0] if fetches is None else result


def plain_op_type(name):
    """Return an op's type without what oneDNN puts before it on x86."""
    if not name.startswith("_Mkl"):
        return name
    name = name.removeprefix("_Mkl").removeprefix("Native")
    return f"_{name}" if name.startswith("Fused") else name


def run_training_step(model, data, **settings):
    """Run a copy of a compiled model's step once; return its `RunMetadata`."""
    # `settings` as for `GraphCopy`.
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    concrete, values = trace_step(model.train_step, data)
    trace = v1.RunMetadata()
    with GraphCopy(concrete, **settings) as copied:
        copied.run(values, trace=trace)
    return trace


def executions(trace):
    """Yield (device, op type, statistics) of each time a node of a run ran."""
    # `trace` is the `RunMetadata` of `GraphCopy.run`. Nodes of functions that
    # are not inlined are known by their labels alone.
    types = {
        node.name: node.op
        for part in trace.partition_graphs
        for node in part.node
    }
    for stats in trace.step_stats.dev_stats:
        for stat in stats.node_stats:
            if stat.node_name in types:
                name = types[stat.node_name]
            else:
                label = re.search(r" = (\w+)\(", stat.timeline_label)
                name = label.group(1) if label else "unknown"
            yield stats.device, plain_op_type(name), stat


def _captured_state(source):
    """Yield `(placeholder, value, variable or None)` for each capture."""
    handles = {id(v.handle): v for v in source.variables}
    for external, internal in source.captures:
        if id(external) in handles:
            variable = handles[id(external)]
            yield internal, variable.numpy(), variable
        elif external.dtype in (tf.resource, tf.variant):
            raise NotCopyable(
                f"Expected a step whose only state is variables. Received "
                f"one that also captures {external!r}: such a step runs in "
                f"fit() only."
            )
        else:
            yield internal, external.numpy(), None


def _place_nodes(definition, device):
    node_lists = [definition.node]
    node_lists += [
        function.node_def for function in definition.library.function
    ]
    for nodes in node_lists:
        for node in nodes:
            node.device = device


def as_in_fit(data):
    """Return arrays with `fit`'s types: doubles become Keras's float type."""

    def convert(array):
        array = np.asarray(array)
        is_double = array.dtype == np.float64
        return array.astype(keras.config.floatx()) if is_double else array

    return tf.nest.map_structure(convert, data)


def trace_step(step, data, spec=None):
    """Trace a step for a batch; return the function and the flat arrays."""
    # `spec` are the batch's `TensorSpec`s, by default its exact shapes. The
    # shapes decide how much grappler can compute in advance, so give those of
    # the real input pipeline where there is one.
    arrays = tf.nest.map_structure(np.asarray, data)
    if spec is None:
        spec = tf.nest.map_structure(
            lambda a: tf.TensorSpec(a.shape, a.dtype), arrays
        )
    function = tf.function(step, autograph=False)
    with inspecting():
        concrete = function.get_concrete_function(spec)
    return concrete, tf.nest.flatten(arrays)
