"""A model's state during an inspection: saved, and restored.

An inspection leaves a model as it was. The graph of a traced function shows
all variables that it assigns: `run_and_restore` restores Keras variables,
seeds and plain `tf.Variable`s alike. Code that runs op by op may assign
anything: run it inside `unchanged`.

Private names in use: `EagerTensor._handle_data`, `Layer._losses`, `_loss_ids`,
`tensorflow.python.eager.context.context`, `Context._rng`.
"""

import contextlib
import random
import types
import weakref

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from keras_pergrad.keras_internals.graphs.nodes import (
    called_function,
    is_variable,
)
from keras_pergrad.keras_internals.models.layers import shared_seed_state
from keras_pergrad.keras_internals.models.parts import (
    compiled_loss,
    layers_of,
    patched_attribute,
    patched_attributes,
)

# Ops that take a variable and do not change it. All others are assumed to
# assign: to restore too much costs a copy, to restore too little is wrong.
UNCHANGING = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VariableShape",
        "VarIsInitializedOp",
    }
)
_ASSIGNED_CACHE = weakref.WeakKeyDictionary()
# Objects in a layer that own no plain variables, or are searched separately.
_OPAQUE_TYPES = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    keras.layers.Layer,
    keras.optimizers.Optimizer,
    tf.types.experimental.PolymorphicFunction,
)


def run_and_restore(function, *args):
    """Call a traced function and restore every variable that it assigns.

    Call it `out_of_scope`: in a strategy's scope Keras divides losses by the
    number of replicas.
    """
    concrete = function
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        concrete = function.get_concrete_function(*args)
    with preserve_variables(assigned_variables(concrete)):
        return function(*args)


def assigned_variables(function):
    """List as `Handle`s all that a function, with what it calls, assigns."""
    handles = _ASSIGNED_CACHE.get(function)
    if handles is None:
        assigned_ids = {id(t) for t in assigned_inputs(function.graph)}
        # In the function's graph the captured inputs come last.
        captured_handles = function.captured_inputs
        captured_inputs = (
            function.graph.inputs[-len(captured_handles) :]
            if captured_handles
            else []
        )
        handles = tuple(
            Handle(handle)
            for handle, tensor in zip(captured_handles, captured_inputs)
            if id(tensor) in assigned_ids and Handle.is_variable(handle)
        )
        _ASSIGNED_CACHE[function] = handles
    return handles


class Handle:
    """A variable behind a resource handle, even if its object is deleted."""

    def __init__(self, tensor):
        self.tensor = tensor
        (data,) = tensor._handle_data.shape_and_type
        self.dtype = tf.as_dtype(data.dtype)

    @staticmethod
    def is_variable(tensor):
        """Whether a captured tensor is a variable's handle."""
        data = getattr(tensor, "_handle_data", None)
        return (
            tensor.dtype == tf.resource
            and data is not None
            and data.is_set
            and len(data.shape_and_type) == 1
        )

    def read(self):
        """Return the variable's value."""
        return tf.raw_ops.ReadVariableOp(resource=self.tensor, dtype=self.dtype)

    def assign(self, value):
        """Give the variable a value."""
        tf.raw_ops.AssignVariableOp(resource=self.tensor, value=value)


@contextlib.contextmanager
def preserve_variables(variables):
    """Give variables, or `Handle`s, their present values back at the end."""
    saved = [
        (v, v.read() if isinstance(v, Handle) else tf.identity(v))
        for v in variables
    ]
    try:
        yield
    finally:
        for variable, value in saved:
            variable.assign(value)


@contextlib.contextmanager
def preserve_random_state():
    """Keep the random states of TensorFlow, Python and NumPy unchanged."""
    # Keras draws its seeds from those of Python and NumPy.
    eager_context = context.context()
    seed_source = getattr(eager_context, "_rng", None)
    python_state, numpy_state = random.getstate(), np.random.get_state()
    if seed_source is not None:
        # To reset the seeds is not enough: a kernel is cached by its seed and
        # continues where it was. So the code inside gets other seeds.
        eager_context._rng = random.Random("seeds of an inspection")
    try:
        yield
    finally:
        if seed_source is not None:
            eager_context._rng = seed_source
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def preserve_layer_losses(model):
    """Let a forward pass inside leave no losses in a model's layers."""
    layers = layers_of(model)
    return patched_attributes(
        [(layer, "_losses", []) for layer in layers]
        + [(layer, "_loss_ids", set()) for layer in layers]
    )


@contextlib.contextmanager
def unchanged(model):
    """Restore a model and the random states at the end, from copies of all."""
    with (
        preserve_random_state(),
        preserve_layer_losses(model),
        preserve_variables(variables_of(model)),
    ):
        yield


def variables_of(model):
    """List each `tf.Variable` that a forward pass may assign, with seeds."""
    compile_loss = compiled_loss(model)
    metrics = [*model.metrics, *getattr(compile_loss, "metrics", ())]
    variables = [
        *model.variables,
        *(v for metric in metrics for v in metric.variables),
    ]
    seed = shared_seed_state()
    if seed is not None:
        variables.append(seed)
    values = [v.value for v in variables] + plain_variables(layers_of(model))
    return list({id(v): v for v in values}.values())


class ModelState:
    """Every number of a compiled model; as a context it restores them."""

    def __init__(self, model):
        variables = variables_of(model)
        if model.optimizer is not None:
            variables += [v.value for v in model.optimizer.variables]
        self._saved_values = [(v, v.numpy()) for v in variables]
        self._model = model

    def restore(self):
        """Give every variable its value back."""
        for variable, number in self._saved_values:
            variable.assign(number)

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        self._stack.callback(self.restore)
        self._stack.enter_context(preserve_random_state())
        self._stack.enter_context(preserve_layer_losses(self._model))
        return self

    def __exit__(self, *_):
        self._stack.close()


def plain_variables(layers):
    """Return the `tf.Variable`s that layers hold without Keras's knowledge."""
    values = [value for layer in layers for value in vars(layer).values()]
    return variables_in(
        values, lambda value: isinstance(value, tf.Module), (keras.Variable,)
    )


def variables_in(values, is_open, closed=()):
    """Return the `tf.Variable`s in values and inside of objects that are open.

    `is_open(object)` tells whether to search an object's attributes.
    """
    variables, seen, pending = [], {}, list(values)
    while pending:
        item = pending.pop()
        if isinstance(item, (*_OPAQUE_TYPES, *closed)) or id(item) in seen:
            continue
        seen[id(item)] = item  # alive, so that no other gets its id
        if isinstance(item, tf.Variable):
            variables.append(item)
        elif isinstance(item, keras.Variable):
            variables.append(item.value)
        elif isinstance(item, tf.random.Generator):
            variables.append(item.state)
        elif isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, (list, tuple, set, frozenset)):
            pending += item
        elif is_open(item):
            pending += getattr(item, "__dict__", {}).values()
    return variables


def assigned_inputs(graph):
    """List the inputs of a function's graph that some op inside assigns."""
    # Each handle is followed from op to op: alias → input.
    origin = {id(tensor): tensor for tensor in graph.inputs}
    assigned = []
    for op in graph.get_operations():
        resources = {
            index: origin.get(id(tensor))
            for index, tensor in enumerate(op.inputs)
            if tensor.dtype == tf.resource
        }
        if not resources:
            continue
        if op.type == "Identity":
            origin[id(op.outputs[0])] = resources[0]
        found = [resources[index] for index in _assigned_indices(op)]
        assigned += [tensor for tensor in found if tensor is not None]
        if op.type in ("While", "StatelessWhile"):  # passes its inputs on
            for index, tensor in resources.items():
                origin[id(op.outputs[index])] = tensor
    return assigned


def assigning_ops(operations):
    """List those that assign a variable, maybe in a function that they call."""
    return [
        op
        for op in operations
        if any(is_variable(op.inputs[k]) for k in _assigned_indices(op))
    ]


def _assigned_indices(op):
    """Return which handles, by their places, an op or its functions assign."""
    indices = {k for k, t in enumerate(op.inputs) if t.dtype == tf.resource}
    if not indices or op.type in UNCHANGING or op.type == "Identity":
        return []
    graphs = bodies(op)
    if not graphs:
        return sorted(indices)
    assigned = set()
    for graph in graphs:
        # The inputs of a function are the op's last: conditions and cases take
        # the choice first.
        first = len(op.inputs) - len(graph.inputs)
        indices_by_id = {id(t): first + k for k, t in enumerate(graph.inputs)}
        assigned |= {indices_by_id[id(t)] for t in assigned_inputs(graph)}
    return sorted(assigned)


def bodies(op):
    """List the graphs of the functions that an op calls; [] if one lacks it."""
    graphs = []
    for name, attr in op.node_def.attr.items():
        if name.startswith("_"):
            continue
        functions = [attr.func] if attr.HasField("func") else attr.list.func
        for function in functions:
            called = called_function(op.graph, function.name)
            if called is not None:
                graphs.append(getattr(called, "graph", None))
    return [] if None in graphs else graphs


_MOMENTS_SCOPE = "moments"


@contextlib.contextmanager
def twice_differentiable():
    """Trace moments that can be differentiated twice; refuse all others.

    `tf.nn.moments`, which Keras's normalisation layers call, stops the gradient
    of the mean within the variance, Σ (x − stop(mean))²: right for the first
    derivative, wrong for the second.

    Raises:
        ValueError: what was traced inside calls a function that was traced
            before, with moments in it.
    """
    graph = tf.compat.v1.get_default_graph()
    op_count = len(graph.get_operations())
    with patched_attribute(tf.nn, "moments", _moments):
        yield
    _require_no_stopped_moments(graph.get_operations()[op_count:], set())


def _moments(x, axes, shift=None, keepdims=False, name=None):
    del shift  # TensorFlow does not use it.
    with tf.name_scope(name or _MOMENTS_SCOPE):
        x = tf.convert_to_tensor(x)
        is_half = x.dtype == tf.float16
        values = tf.cast(x, tf.float32) if is_half else x
        mean = tf.reduce_mean(values, axes, keepdims=True)
        squares = tf.math.squared_difference(values, mean)
        moments = mean, tf.reduce_mean(squares, axes, keepdims=True)
        if not keepdims:
            moments = [tf.reduce_sum(t, axes) for t in moments]  # of one each
        return tuple(tf.cast(t, x.dtype) for t in moments)


def _require_no_stopped_moments(operations, seen):
    for op in operations:
        if (
            op.type == "StopGradient"
            and _MOMENTS_SCOPE in op.name.split("/")[:-1]
        ):
            raise ValueError(
                "The second derivative of a mean and variance is needed, which "
                "TensorFlow gives wrong in a function that was traced before. "
                "Expected a model that calls tf.nn.moments, or Keras's "
                "normalisation, outside of functions of its own. Received: the "
                f"op {op.name!r}. Leave out @tf.function or the saved model "
                "around it, or ask for first derivatives alone: order=1, "
                "curvature='ekfac'."
            )
        for graph in bodies(op):
            if id(graph) not in seen:
                seen.add(id(graph))
                _require_no_stopped_moments(graph.get_operations(), seen)
