"""Gradients and marks of ops in a graph that is still being built.

Private names in use: `tensorflow.python.ops.gradients_util._GradientsHelper`,
which differentiates ops of the graph around a loop; the op attributes
`_gradient_op_type`, `_gradient_function` (the gradient of this op, in the
place of its type's) and `skip_input_indices` (set by a tape; what it names
gets no gradient); the names `CustomGradient-...` of own gradients;
`Operation._set_attr` and `_clear_attr`, the op attribute
`_grappler_do_not_remove`, and this package's own, `_keras_pergrad_mark`.
"""

import contextlib
import re

import tensorflow as tf
from tensorflow.python.ops import gradients_util

#: Types of ops whose outputs count as constants: no gradient passes them.
GRADIENT_STOPS = {"PreventGradient", "StopGradient"}
#: Ops whose gradients heed `skip_input_indices`.
_SKIPPABLE_OPS = {
    "Add",
    "AddV2",
    "MatMul",
    "Mul",
    "Pow",
    "SquaredDifference",
    "Sub",
}


def _data_gradient(op, gradient):
    """Return the gradient at the data, alone, of its product with a matrix."""
    x, y = op.get_attr("adj_x"), op.get_attr("adj_y")
    matrix = op.inputs[1]
    if x:
        return tf.matmul(matrix, gradient, adjoint_a=y, adjoint_b=True), None
    return tf.matmul(gradient, matrix, adjoint_b=not y), None


#: Type of op → its gradient where the weight needs none, and the weight's rank.
_DATA_GRADIENTS = {
    "BatchMatMulV2": (_data_gradient, 2),
    "BiasAdd": (lambda op, gradient: (gradient, None), 1),
}


def _lookup_gradient(op, gradient):
    """Return the gradient of a look-up of each sample's own entries.

    TensorFlow's gradient takes an index beyond a sample's entries for one of
    the next sample, or of the one before. Here it belongs to no entry. Forward,
    CPUs refuse such indices, XLA takes the nearest entry, and a GPU zeros.
    """
    table, ids, axis = op.inputs
    axis = int(tf.get_static_value(axis)) % table.shape.rank
    if ids.dtype == tf.int16:
        ids = tf.cast(ids, tf.int32)
    length = tf.shape(table, ids.dtype)[axis]
    clipped_ids = tf.maximum(tf.minimum(ids, length - 1), 0)
    entries, batch_dims = tf.identity(table), _batch_dims(op)
    lookup = tf.gather(entries, clipped_ids, axis=axis, batch_dims=batch_dims)
    # The result has the axes of the indices in the place of the entries' axis.
    leading_axes = (*[slice(None)] * batch_dims, *[None] * (axis - batch_dims))
    trailing_axes = [None] * (table.shape.rank - axis - 1)
    is_inside = tf.equal(ids, clipped_ids)[(*leading_axes, ..., *trailing_axes)]
    gradient = tf.where(is_inside, gradient, tf.zeros([], gradient.dtype))
    return *tf.gradients(lookup, entries, gradient), None, None


def _batch_dims(op):
    """Return how many axes a look-up and its indices share; 0: not known."""
    table, ids, axis = op.inputs
    is_unknown = None in (table.shape.rank, ids.shape.rank)
    if is_unknown or tf.get_static_value(axis) is None:
        return 0
    batch_dims = op.get_attr("batch_dims")
    return batch_dims + ids.shape.rank if batch_dims < 0 else batch_dims


def op_gradients(outputs, inputs, cotangents, *, graph, ends=()):
    """Return the gradients at the inputs of ops of a graph.

    `graph` is the one being built or one around it. No gradient goes on from
    the tensors `ends` to what they were made of.
    """
    return gradients_util._GradientsHelper(
        outputs, inputs, cotangents, stop_gradients=list(ends), src_graph=graph
    )


def gradients_at(targets, sources, operations, *, cotangents=None):
    """Return `tf.gradients` at the sources, without ops that none needs.

    `tf.gradients` differentiates an op for all of its inputs. For a bias that
    is a sum over the batch, which is of no use if the bias is no source.
    `operations` are those between sources and targets, and maybe others.
    """
    # TensorFlow reads these attributes of ops while it differentiates. They are
    # taken off again, since the graph may be differentiated for other sources.
    with contextlib.ExitStack() as stack:
        for op, skipped in _unneeded_inputs(operations, sources):
            if op.type in _SKIPPABLE_OPS:
                op.skip_input_indices = skipped
                stack.callback(delattr, op, "skip_input_indices")
            elif _has_data_gradient(op, skipped):
                op._gradient_function, _ = _DATA_GRADIENTS[op.type]
                stack.callback(setattr, op, "_gradient_function", None)
        for op in operations:
            if op.type == "GatherV2" and _batch_dims(op):
                op._gradient_function = _lookup_gradient
                stack.callback(setattr, op, "_gradient_function", None)
        try:
            return tf.gradients(targets, sources, cotangents)
        except LookupError as error:
            raise ValueError(_missing_gradient_message(error)) from error


def _missing_gradient_message(error):
    match = re.search(r"operation ?'(.*?)' \(op type: (\w+)\)", str(error))
    name, op_type = match.groups() if match else ("not named", "unknown")
    return (
        f"The loss depends on weights through the op {op_type} ({name}). "
        "Expected an op whose gradient TensorFlow knows. Put "
        "tf.stop_gradient around it if no gradient is meant to go through; or "
        "take another op. If only XLA has it, compile with jit_compile=False."
    )


def _unneeded_inputs(operations, sources):
    """Yield (op, its inputs that depend on no source)."""
    dependent = {id(t) for t in sources}
    for op in operations:
        depends = [id(t) in dependent for t in op.inputs]
        if not any(depends):
            continue
        if op.type not in GRADIENT_STOPS:
            dependent.update(
                id(t) for t in op.outputs if may_carry_gradient(t.dtype)
            )
        if not all(depends):
            yield op, tuple(k for k, b in enumerate(depends) if not b)


def _has_data_gradient(op, skipped):
    """Whether the gradient of its data is one of `_DATA_GRADIENTS`."""
    if op.type not in _DATA_GRADIENTS or skipped != (1,):
        return False
    is_custom = has_own_gradient(op.node_def.attr) or op._gradient_function
    # The second input is a weight only if it has no batch axes of its own.
    _, rank = _DATA_GRADIENTS[op.type]
    return not is_custom and op.inputs[1].shape.rank == rank


def may_carry_gradient(dtype):
    """Whether gradients may pass through tensors of this type."""
    is_handle = dtype in (tf.resource, tf.variant)
    return is_handle or dtype.is_floating or dtype.is_complex


def has_own_gradient(attributes):
    """Whether a node with these attributes has another gradient than its type.

    That of a `tf.custom_gradient` has, and one made under
    `tf.Graph.gradient_override_map`.
    """
    return "_gradient_op_type" in attributes


def drop_overrides(operations):
    """Give ops of a graph the gradients that a tape gives them.

    A tape, such as Keras's, does not heed `tf.Graph.gradient_override_map`,
    but inside of functions that the graph calls; `tf.gradients` does.

    Returns:
        The ops that have lost another gradient.
    """
    overridden = []
    for op in operations:
        name = op.node_def.attr.get("_gradient_op_type")
        if name is not None and not name.s.startswith(b"CustomGradient-"):
            op._clear_attr("_gradient_op_type")
            overridden.append(op)
    return overridden


_GRADIENTS = re.compile(r"(?:^|/)gradients(?:_\d+)?/")
_OWN_GRADIENT = re.compile(r"(?:^|/)IdentityN(?:_\d+)?_grad/")


def is_made_gradient(name):
    """Whether TensorFlow has made an op of the backward pass, by its name.

    It has not if a custom gradient has, or if the name does not tell.
    """
    # `tf.gradients` opens a scope for the gradient of each op, with its name.
    # `tf.custom_gradient` makes ops of one type.
    scope = _GRADIENTS.search(name)
    return scope is not None and not _OWN_GRADIENT.search(name, scope.end() - 1)


#: What the mark of an op of this package is called. No name of a layer or
#: scope can be mistaken for it.
_MARK = "_keras_pergrad_mark"
#: The tensor does not depend on the samples. A mode learns some facts about
#: the model by calling it on samples; by its ops such a fact would mix them.
SAME_FOR_ALL = b"same for all"
#: The tensor is a loss, to which others may be added.
WHOLE_LOSS = b"whole loss"


def keep_op(op):
    """Keep TensorFlow from dropping an op that only a time stamp waits for."""
    op._set_attr("_grappler_do_not_remove", tf.compat.v1.AttrValue(b=True))


def marked(tensor, mark):
    """Return a copy of a tensor, the output of an op with a mark."""
    copy = tf.identity(tensor)
    if not tf.executing_eagerly():
        copy.op._set_attr(_MARK, tf.compat.v1.AttrValue(s=mark))
    return copy


def mark_of(op):
    """Return the mark of an op, or None."""
    if op.type != "Identity":
        return None
    try:
        return op.get_attr(_MARK)
    except ValueError:
        return None
