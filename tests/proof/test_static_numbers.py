"""Frequent ops on sizes give the same by NumPy as by TensorFlow."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.proof.static_numbers import (
    StaticNumbers,
    by_numpy,
    by_tensorflow,
)
from keras_pergrad.proof.values import Values

SIZES = [7, 1, 5, 3]
raw = tf.raw_ops
#: Ops by name, of the sizes and of a place that differ.
OPS = {
    "identity": lambda x, k: tf.identity(x),
    "add": lambda x, k: x + k,
    "add to the largest": lambda x, k: x + 2**31 - 1,
    "add numbers": lambda x, k: tf.constant(2**31 - 1) + k,
    "subtract": lambda x, k: k - x,
    "multiply": lambda x, k: x * (2**30 + k),
    "divide": lambda x, k: k // x,
    "divide by": lambda x, k: -x // (k or 2),
    "rest": lambda x, k: k % x,
    "rest of": lambda x, k: x % (k or -2),
    "maximum": lambda x, k: tf.maximum(x, k),
    "pack": lambda x, k: raw.Pack(values=[x, x + k], axis=k % 3 - 1),
    "concat": lambda x, k: tf.concat([x[None], [x + k, x]], 0),
    "concat last": lambda x, k: tf.concat([x[None], x[None] + k], -1),
    "invert": lambda x, k: tf.math.invert_permutation(
        tf.roll([2, 0, 3, 1], k, 0)
    ),
    "invert none": lambda x, k: tf.math.invert_permutation(x),
    "product": lambda x, k: tf.reduce_prod(x[None], k % 2),
    "product, kept": lambda x, k: tf.reduce_prod(x[None], [0, 1], True),
    "product of all": lambda x, k: tf.reduce_prod(tf.stack([x, x]), [-1]),
    "gather": lambda x, k: tf.gather(x, [k % 4, 0]),
    "gather beyond": lambda x, k: tf.gather(x, [k, 0]),
    "gather columns": lambda x, k: tf.gather(x[None], [[k % 4]], axis=1),
    "slice": lambda x, k: x[k:],
    "slice to": lambda x, k: x[:k],
    "slice of both": lambda x, k: x[k : k + 2],
    "slice in steps": lambda x, k: x[::2],
    "slice back": lambda x, k: x[::-1],
    "slice of two axes": lambda x, k: tf.stack([x, x])[:, k % 4],
    "new axis": lambda x, k: x[k:, None],
    "one": lambda x, k: x[k],
    "one, with all masks": lambda x, k: raw.StridedSlice(
        input=x,
        begin=[k],
        end=[0],
        strides=[1],
        begin_mask=1,
        end_mask=1,
        shrink_axis_mask=1,
    ),
}


def _last_op(make):
    """The op that a function of sizes ends with, in a graph."""
    function = tf.function(
        lambda: make(tf.constant(SIZES)), autograph=False
    ).get_concrete_function()
    (output,) = function.graph.outputs
    op = output.op
    while op.type == "Identity" and op.inputs[0].op.type != "Const":
        op = op.inputs[0].op
    return op


def _same(op):
    numbers = StaticNumbers(Values())
    given = [numbers.of(t) for t in op.inputs]
    assert all(value is not None for value in given)
    fast = by_numpy(op, given)
    if fast is None:
        return False
    slow = by_tensorflow(op, given)
    assert slow is not None
    assert len(fast) == len(slow)
    for one, other in zip(fast, slow):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    return True


@pytest.mark.parametrize("name", OPS)
def test_numpy_gives_what_tensorflow_gives(name):
    served = []
    for k in (-5, -4, -1, 0, 1, 3, 4, 6):
        try:
            op = _last_op(lambda x, k=k: OPS[name](x, k))
        except ValueError:
            # TensorFlow refuses it while tracing.
            continue
        served.append(_same(op))
    others = ("invert none", "steps", "back", "two axes", "new axis")
    assert any(served) != name.endswith(others)


def _broadcast(x, y):
    """The op that gives the axes of sums for these shapes."""
    return _last_op(
        lambda sizes: raw.BroadcastGradientArgs(
            s0=tf.constant(x, tf.int32, [len(x)]),
            s1=tf.constant(y, tf.int32, [len(y)]),
        )[0]
    )


def test_axes_of_broadcasting():
    shapes = [s for r in range(4) for s in itertools.product((1, 3), repeat=r)]
    for x, y in itertools.product(shapes, shapes):
        assert _same(_broadcast(x, y))


@pytest.mark.parametrize("shapes", [((3,), (2,)), ((4, 1), (2, 3, 5))])
def test_shapes_that_do_not_broadcast_have_no_axes(shapes):
    op = _broadcast(*shapes)
    assert StaticNumbers(Values()).of(op.outputs[0]) is None


def test_what_tensorflow_refuses_has_no_value():
    op = _last_op(lambda x: tf.concat([x, x], 0))
    given = [np.zeros((2, 2), np.int32), np.zeros(3, np.int32), np.int32(0)]
    assert by_numpy(op, given) is None
    assert by_tensorflow(op, given) is None
