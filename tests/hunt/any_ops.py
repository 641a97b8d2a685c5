"""Random sequences of any ops that TensorFlow has a gradient or state for.

Each op is typed by a rule, or refused by name. Nothing runs: the ops are put
into a graph whose first tensor holds samples. `python -m tests.hunt.any_ops`
tries many.
"""

import argparse
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework import ops as tf_ops

from keras_pergrad.keras_internals.graphs.nodes import Definitions
from keras_pergrad.proof.op_facts import ASSIGNS, MEASURES, TELLS, has
from keras_pergrad.proof.tensor_types import At, Free, Mixed, rule_of
from keras_pergrad.proof.typing import Typing

#: The number of samples: no other size is a multiple.
N = 211
_DTYPES = [tf.float32, tf.int32, tf.int64, tf.bool, tf.string, tf.complex64]
_ATTRIBUTES = {
    "int": 1,
    "float": 0.5,
    "bool": True,
    "string": "VALID",
    "list(int)": [1, 1, 1, 1],
    "list(float)": [1.0, 1.5],
    "shape": tf.TensorShape([]),
}


def names():
    """Return the types of ops with a gradient or state, in order."""
    with_gradient = set(tf_ops.gradient_registry.list())
    found = []
    for name in sorted(dir(tf.raw_ops)):
        definition = op_def_registry.get(name)
        if definition is None or any(
            a.type in ("func", "list(func)") for a in definition.attr
        ):
            continue
        if name in with_gradient or definition.is_stateful:
            found.append(name)
    return found


def draw(seed, index, length=4):
    """Return the faults of one sequence, a list of texts."""
    rng, known = np.random.default_rng([seed, index]), names()
    graph = tf.Graph()
    with graph.as_default(), tf.device("CPU:0"):
        given = [
            tf.compat.v1.placeholder(dtype, shape)
            for dtype, shapes in (
                (tf.float32, ((N, 4), (N, 6, 6, 2), (N,))),
                (tf.int32, ((N, 4), (N,))),
                (tf.int64, ((N, 4), (N,))),
            )
            for shape in shapes
        ]
        pool, made = [*given], 0
        for _ in range(60):
            outputs = _applied(rng.choice(known), pool, rng)
            if outputs is not None:
                made += 1
                pool += outputs
            if made == length:
                break
    typing = Typing(Definitions(graph), N, True)
    for tensor in given:
        typing.set_inputs([tensor], [At(0)])
    try:
        typing.run({op: op.name for op in graph.get_operations()})
    except Exception as error:
        used = [op.type for op in graph.get_operations()]
        return [f"{type(error).__name__} of {used}: {error}"]
    return _judged(graph, typing)


def _judged(graph, typing):
    faults = [
        f"{one.op_type}: {one.why}"
        for one in typing.failures
        if one.why.startswith("its rule failed")
    ]
    for op in graph.get_operations():
        types = [typing.of(t) for t in op.inputs]
        with_samples = any(not isinstance(t, Free) for t in types)
        if not with_samples or rule_of(op.type) or has(op, MEASURES):
            continue
        kinds = [typing.of(t) for t in op.outputs]
        refused = any(f.op_type == op.type for f in typing.failures)
        if not (kinds or refused or has(op, ASSIGNS | TELLS)):
            faults.append(f"{op.type}: its effect is not looked at")
        if not all(isinstance(kind, Mixed) for kind in kinds):
            faults.append(f"{op.type}: served without a rule, as {kinds}")
    return faults


def _applied(name, pool, rng):
    """Put an op on tensors of the pool; its outputs, or None if none fit."""
    if name.startswith("BoostedTrees"):
        # What TensorFlow infers of their shapes can end the process.
        return None
    definition, types, arguments = op_def_registry.get(name), {}, {}
    needed = [a for a in definition.attr if not a.HasField("default_value")]
    for one in needed:
        if one.type == "type":
            allowed = [tf.as_dtype(t) for t in one.allowed_values.list.type]
            choices = [t for t in _DTYPES if not allowed or t in allowed]
            if not choices:
                return None
            # The first is that of most tensors of the pool.
            k = 0 if rng.random() < 0.7 else rng.integers(len(choices))
            types[one.name] = choices[k]
    defaults = {a.name: a.default_value.type for a in definition.attr}
    for one in definition.input_arg:
        if one.type_list_attr:
            return None
        dtype = types.get(one.type_attr) or tf.as_dtype(
            one.type or defaults[one.type_attr]
        )
        tensor = _chosen(dtype, pool, rng)
        if tensor is None:
            return None
        arguments[one.name] = [tensor] * 2 if one.number_attr else tensor
    used = {a.number_attr for a in definition.input_arg}
    used |= {a.type_attr for a in definition.input_arg}
    for one in needed:
        if one.name not in used:
            value = types.get(one.name, _ATTRIBUTES.get(one.type))
            arguments[one.name] = value
    try:
        found = getattr(tf.raw_ops, name)(**arguments)
    except Exception:
        # The arguments do not fit: TensorFlow says so.
        return None
    return [t for t in tf.nest.flatten(found) if tf.is_tensor(t)]


def _chosen(dtype, pool, rng):
    """Return a tensor of the pool, or a small constant, of this data type."""
    fit = [t for t in pool if t.dtype == dtype]
    number = dtype.is_floating or dtype.is_integer or dtype.is_bool
    if fit and (not number or rng.random() < 0.6):
        return fit[rng.integers(len(fit))]
    if not number:
        return None
    shape = [(), (1,), (2,), (4,), (4, 4)][rng.integers(5)]
    return tf.constant(rng.integers(0, 2, shape), dtype)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.hunt.any_ops")
    parser.add_argument("draws", type=int, nargs="?", default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    faults = {
        fault
        for index in range(arguments.draws)
        for fault in draw(arguments.seed, index)
    }
    print("\n".join(sorted(faults)))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
