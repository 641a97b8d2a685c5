"""Gradients of ops of a graph that is still being built.

Private names in use:
`tensorflow.python.ops.gradients_util._GradientsHelper`, which differentiates
ops of the graph around a loop; the op attributes `_gradient_op_type`,
`_gradient_function` (the gradient of this op, in the place of its type's) and
`skip_input_indices` (set by a tape; what it names gets no gradient).
"""

import contextlib
import re

import tensorflow as tf
from tensorflow.python.ops import gradients_util

#: Gradients end here: what comes out counts as a constant.
ENDS = {"PreventGradient", "StopGradient"}
#: Ops whose gradients heed `skip_input_indices`.
_HEED = {"Add", "AddV2", "MatMul", "Mul", "Pow", "SquaredDifference", "Sub"}


def _of_data(op, gradient):
    """Return the gradients of a product of data with a matrix: data's alone."""
    x, y = op.get_attr("adj_x"), op.get_attr("adj_y")
    matrix = op.inputs[1]
    if x:
        return tf.matmul(matrix, gradient, adjoint_a=y, adjoint_b=True), None
    return tf.matmul(gradient, matrix, adjoint_b=not y), None


#: Type of op → its gradient where the weight needs none.
_FIRST_ALONE = {
    "BatchMatMulV2": _of_data,
    "BiasAdd": lambda op, gradient: (gradient, None),
}


def _of_lookup(op, gradient):
    """Return the gradient of a look-up of each sample's own entries.

    TensorFlow's takes an index beyond a sample's entries for one of the next
    sample's, or of the one before. Here it is of no entry. Look-ups on CPUs
    refuse such indices; XLA takes the nearest entry, and a GPU zeros.
    """
    table, ids, axis = op.inputs
    axis = int(tf.get_static_value(axis)) % table.shape.rank
    if ids.dtype == tf.int16:
        ids = tf.cast(ids, tf.int32)
    length = tf.shape(table, ids.dtype)[axis]
    inside = tf.maximum(tf.minimum(ids, length - 1), 0)
    own, batch = tf.identity(table), _batch_dims(op)
    again = tf.gather(own, inside, axis=axis, batch_dims=batch)
    # The axes of indices come where that of the entries was.
    before = (*[slice(None)] * batch, *[None] * (axis - batch))
    behind = [None] * (table.shape.rank - axis - 1)
    is_inside = tf.equal(ids, inside)[(*before, ..., *behind)]
    gradient = tf.where(is_inside, gradient, tf.zeros([], gradient.dtype))
    return *tf.gradients(again, own, gradient), None, None


def _batch_dims(op):
    """Return how many axes a look-up and its indices share; 0: not known."""
    table, ids, axis = op.inputs
    unknown = None in (table.shape.rank, ids.shape.rank)
    if unknown or tf.get_static_value(axis) is None:
        return 0
    batch = op.get_attr("batch_dims")
    return batch + ids.shape.rank if batch < 0 else batch


#: The axes that the weight has there.
_WEIGHT = {"BatchMatMulV2": "io", "BiasAdd": "o"}


def op_gradients(outputs, inputs, deltas, graph, ends=()):
    """Return inputs' gradients; `graph` may be around that being built.

    No gradient goes on from the tensors `ends` to what they were made of.
    """
    return gradients_util._GradientsHelper(
        outputs, inputs, deltas, stop_gradients=list(ends), src_graph=graph
    )


def gradients_at(targets, sources, operations, given=None):
    """Return `tf.gradients` of the sources, without ops that none needs.

    `tf.gradients` differentiates an op for all of its inputs. For a bias that
    is a sum over the batch, which nothing takes if the bias is no source.
    `operations` are those between sources and targets, and maybe others.
    """
    with contextlib.ExitStack() as stack:
        for op, skipped in _unneeded(operations, sources):
            if op.type in _HEED:
                op.skip_input_indices = skipped
                stack.callback(delattr, op, "skip_input_indices")
            elif _is_first_alone(op, skipped):
                op._gradient_function = _FIRST_ALONE[op.type]
                stack.callback(setattr, op, "_gradient_function", None)
        for op in operations:
            if op.type == "GatherV2" and _batch_dims(op):
                op._gradient_function = _of_lookup
                stack.callback(setattr, op, "_gradient_function", None)
        try:
            return tf.gradients(targets, sources, given)
        except LookupError as error:
            raise ValueError(_without_gradient(error)) from error


def _without_gradient(error):
    found = re.search(r"operation ?'(.*?)' \(op type: (\w+)\)", str(error))
    name, kind = found.groups() if found else ("not named", "unknown")
    return (
        f"The loss depends on weights through the op {kind} ({name}). Expected "
        "an op whose gradient TensorFlow knows. Put tf.stop_gradient around "
        "it if no gradient is meant to go through; or take another op. If "
        "only XLA has it, compile with jit_compile=False."
    )


def _unneeded(operations, sources):
    """Yield (op, its inputs that depend on no source)."""
    wanted = {id(t) for t in sources}
    for op in operations:
        behind = [id(t) in wanted for t in op.inputs]
        if not any(behind):
            continue
        if op.type not in ENDS:
            wanted.update(id(t) for t in op.outputs if _may_pass(t.dtype))
        if not all(behind):
            yield op, tuple(k for k, b in enumerate(behind) if not b)


def _is_first_alone(op, skipped):
    """Whether the gradient of its data is one of `_FIRST_ALONE`."""
    if op.type not in _FIRST_ALONE or skipped != (1,):
        return False
    own = has_own_gradient(op.node_def.attr) or op._gradient_function
    # Of a matrix: it is broadcast, never the data.
    return not own and op.inputs[1].shape.rank == len(_WEIGHT[op.type])


def _may_pass(dtype):
    """Whether gradients may pass through tensors of this type."""
    lists = dtype in (tf.resource, tf.variant)
    return lists or dtype.is_floating or dtype.is_complex


def has_own_gradient(attributes):
    """Whether a node with these attributes is of a `tf.custom_gradient`."""
    return "_gradient_op_type" in attributes
