"""The ops of a step that runs eagerly, as they are executed.

Private names in use, covered by `tests/placement/test_eager.py`:
`tensorflow.python.framework.op_callbacks.add_op_callback` and
`remove_op_callback`, `tensorflow.python.framework.op_def_registry.get`,
`tensorflow.python.eager.context.context().scope_name`.
"""

import contextlib

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import op_callbacks, op_def_registry

from keras_pergrad.placement import kernels
from keras_pergrad.placement.devices import short_name
from keras_pergrad.placement.graph import PLUMBING, type_names


@contextlib.contextmanager
def watch():
    """Yields a list that grows by `(NodeDef, device, scope)` for each op."""
    executed = []

    def note(op_type, inputs, attrs, outputs, op_name=None, graph=None):
        if graph is None and op_type not in PLUMBING:
            device = _device(outputs) or _device(inputs)
            scope = eager_context.context().scope_name or ""
            definition = _definition(op_type, attrs, scope)
            executed.append((definition, device or "CPU:0", scope))

    op_callbacks.add_op_callback(note)
    try:
        yield executed
    finally:
        op_callbacks.remove_op_callback(note)


def _device(tensors):
    for tensor in tensors or ():
        if tensor is not None and getattr(tensor, "device", ""):
            return short_name(tensor.device)
    return None


def _definition(op_type, attrs, scope):
    definition = node_def_pb2.NodeDef(op=op_type, name=f"{scope}{op_type}")
    known = op_def_registry.get(op_type)
    types = {a.name for a in known.attr if a.type == "type"} if known else ()
    for key, value in zip((attrs or ())[::2], (attrs or ())[1::2]):
        key = key.decode() if isinstance(key, bytes) else key
        if key in types:
            dtype = tf.dtypes.as_dtype(value)
            definition.attr[key].type = dtype.as_datatype_enum
    return definition


def operations(executed, layer_of, device):
    """What was executed as a list of `Operation`."""
    from keras_pergrad.placement.operations import Operation

    found = []
    for definition, where, scope in executed:
        dtypes, why = type_names(definition), ""
        kind = "cpu"
        if not where.startswith("CPU"):
            kind = kernels.serving(definition, where.partition(":")[0])
            kind = kernels.DEVICE if kind == kernels.NONE else kind
        elif device is not None:
            why = kernels.reason(
                definition, dtypes, device.type, device.platform
            )
        found.append(
            Operation(
                definition.op,
                definition.name,
                where,
                kind,
                dtypes,
                layer_of(scope + definition.op),
                1,
                why,
            )
        )
    return found
