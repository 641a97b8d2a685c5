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

from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.function_graphs import (
    called_function,
    captures_of,
    graph_around,
    is_function,
)
from keras_pergrad.keras_internals.model_parts import compiled_loss, layers_of
from keras_pergrad.keras_internals.seeds import shared_seed_state

# Ops that take a variable and do not change it. All others are assumed to
# assign: restoring too much costs a copy, restoring too little is wrong.
READS = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VariableShape",
        "VarIsInitializedOp",
    }
)
_assigned = weakref.WeakKeyDictionary()
# Objects in a layer that own no plain variables, or are searched separately.
_CLOSED = (
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

    Args:
        function: a `tf.function`, or a concrete one.
        *args: its arguments, without variables among them.

    Returns:
        What the function returns.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad.keras_internals.model_state import run_and_restore
    >>> count = tf.Variable(0)
    >>> step = tf.function(lambda: count.assign_add(1))
    >>> int(run_and_restore(step)), int(count)
    (1, 0)
    """
    concrete = function
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        concrete = function.get_concrete_function(*args)
    with kept(assigned_variables(concrete)):
        return function(*args)


def assigned_variables(function):
    """List what a concrete function assigns, also in loops and calls.

    Args:
        function: a concrete function.

    Returns:
        A tuple of `Handle`s of variables that exist outside of the function.
    """
    found = _assigned.get(function)
    if found is None:
        inside = {id(t) for t in assigned_inputs(function.graph)}
        outside = function.captured_inputs
        captures = function.graph.inputs[-len(outside) :] if outside else []
        found = tuple(
            Handle(handle)
            for handle, tensor in zip(outside, captures)
            if id(tensor) in inside and Handle.is_variable(handle)
        )
        _assigned[function] = found
    return found


class Handle:
    """A variable behind a resource handle, even if its object is deleted.

    Args:
        tensor: the handle, an eager tensor.
    """

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

    def is_of(self, variable):
        """Whether it is the handle of a `tf.Variable`."""
        return getattr(variable, "handle", None) is self.tensor

    def read(self):
        """Return the variable's value."""
        return tf.raw_ops.ReadVariableOp(resource=self.tensor, dtype=self.dtype)

    def assign(self, value):
        """Give the variable a value."""
        tf.raw_ops.AssignVariableOp(resource=self.tensor, value=value)


@contextlib.contextmanager
def kept(variables):
    """Give variables their present values back at the end.

    Args:
        variables: `tf.Variable`s or `Handle`s.
    """
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
def random_state_kept():
    """Keep the random states of the process unchanged by the code inside.

    These are the states of TensorFlow's eager ops, which a global seed makes
    repeatable, and of Python and NumPy, from which Keras draws its seeds.
    """
    eager = context.context()
    seeds = getattr(eager, "_rng", None)
    python, numpy = random.getstate(), np.random.get_state()
    if seeds is not None:
        # Resetting is not enough: a kernel continues if its seed is used
        # again. So the code inside gets other seeds.
        eager._rng = random.Random("seeds of an inspection")
    try:
        yield
    finally:
        if seeds is not None:
            eager._rng = seeds
        random.setstate(python)
        np.random.set_state(numpy)


@contextlib.contextmanager
def losses_kept(model):
    """Let a forward pass inside leave no losses in a model's layers."""
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            for name, value in {"_losses": [], "_loss_ids": set()}.items():
                stack.enter_context(attribute(layer, name, value))
        yield


@contextlib.contextmanager
def unchanged(model):
    """Leave a model, and the process's random states, as they are now.

    For code that runs the model op by op; it copies every variable.

    Args:
        model: a built `keras.Model`, compiled or not.
    """
    with (
        random_state_kept(),
        losses_kept(model),
        kept(variables_of(model)),
    ):
        yield


def variables_of(model):
    """List every `tf.Variable` that a forward pass of a model may assign.

    These are variables of layers, plain ones that Keras does not know
    included, of metrics, and seeds, also Keras's global seed.
    """
    compile_loss = compiled_loss(model)
    metrics = [*model.metrics, *getattr(compile_loss, "metrics", ())]
    variables = [
        *model.variables,
        *(v for metric in metrics for v in metric.variables),
    ]
    seed = shared_seed_state()
    if seed is not None:
        variables.append(seed)
    found = [v.value for v in variables]
    found += plain_variables(layers_of(model))
    return list({id(v): v for v in found}.values())


class ModelState:
    """Every number of a model: weights, seeds, metrics, optimizer.

    As a context manager it restores the numbers at the end, also after an
    error, and leaves no loss of a traced step behind.

    Args:
        model: a built and compiled `keras.Model`.
    """

    def __init__(self, model):
        variables = variables_of(model)
        if model.optimizer is not None:
            variables += [v.value for v in model.optimizer.variables]
        self._held = [(v, v.numpy()) for v in variables]
        self._model = model

    def restore(self):
        """Give every variable its number back."""
        for variable, number in self._held:
            variable.assign(number)

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        self._stack.callback(self.restore)
        self._stack.enter_context(random_state_kept())
        self._stack.enter_context(losses_kept(self._model))
        return self

    def __exit__(self, *_):
        self._stack.close()


def plain_variables(layers):
    """Return the `tf.Variable`s that layers hold without Keras's knowledge."""
    values = [value for layer in layers for value in vars(layer).values()]
    return variables_in(
        values, lambda each: isinstance(each, tf.Module), (keras.Variable,)
    )


def variables_in(values, is_open, closed=()):
    """Return the `tf.Variable`s in values, at any depth of what is open."""
    variables, seen, waiting = [], {}, list(values)
    while waiting:
        this = waiting.pop()
        if isinstance(this, (*_CLOSED, *closed)) or id(this) in seen:
            continue
        seen[id(this)] = this
        if isinstance(this, tf.Variable):
            variables.append(this)
        elif isinstance(this, keras.Variable):
            variables.append(this.value)
        elif isinstance(this, tf.random.Generator):
            variables.append(this.state)
        elif isinstance(this, dict):
            waiting += this.values()
        elif isinstance(this, (list, tuple, set, frozenset)):
            waiting += this
        elif is_open(this):
            waiting += getattr(this, "__dict__", {}).values()
    return variables


def captured_from(graph):
    """Return what the tensors captured by a graph stand for.

    Args:
        graph: a graph, in others or not.

    Returns:
        The id of a tensor in the graph or in one around it → the tensor from
        which it was captured in the first place, in most cases an eager one.
    """
    if not is_function(graph):
        return {}
    around = captured_from(graph_around(graph))
    inside = {
        id(inner): around.get(id(outer), outer)
        for outer, inner in captures_of(graph)
    }
    return {**around, **inside}


def assigned_inputs(graph):
    """List the inputs of a function's graph that some op inside assigns."""
    # Each handle is followed from op to op: alias → input.
    origin = {id(tensor): tensor for tensor in graph.inputs}
    found = []
    for op in graph.get_operations():
        taken = [
            (place, origin.get(id(tensor)))
            for place, tensor in enumerate(op.inputs)
            if tensor.dtype == tf.resource
        ]
        if not taken or op.type in READS:
            continue
        if op.type == "Identity":
            origin[id(op.outputs[0])] = taken[0][1]
            continue
        places = _assigned_places(op)
        found += [
            tensor
            for place, tensor in taken
            if tensor is not None and (places is None or place in places)
        ]
        if op.type in ("While", "StatelessWhile"):  # passes its inputs on
            for place, tensor in taken:
                origin[id(op.outputs[place])] = tensor
    return found


def _assigned_places(op):
    """Return which inputs of an op its functions assign; None: no function."""
    inside = bodies(op)
    if not inside:
        return None
    places = set()
    for body in inside:
        # Conditions and cases take the choice before the inputs they pass on.
        first = len(op.inputs) - len(body.inputs)
        numbers = {id(t): first + k for k, t in enumerate(body.inputs)}
        places |= {numbers[id(t)] for t in assigned_inputs(body)}
    return places


def bodies(op):
    """Return the graphs of the functions that an op calls.

    None, if one of them has no graph, as those of TensorFlow 1.
    """
    found = []
    for name, attr in op.node_def.attr.items():
        if name.startswith("_"):
            continue
        functions = [attr.func] if attr.HasField("func") else attr.list.func
        for function in functions:
            known = called_function(op.graph, function.name)
            if known is not None:
                found.append(getattr(known, "graph", None))
    return [] if None in found else found
