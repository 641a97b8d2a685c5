"""Sequences of any ops: typed by a rule, or refused by name."""

import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.graphs.nodes import Definitions
from keras_pergrad.proof.tensor_types import At, Mixed
from keras_pergrad.proof.typing import Typing
from tests.hunt import any_ops

DRAWS = 30


def _faults():
    draws = [any_ops.draw(0, k) for k in range(DRAWS)]
    return [fault for one in draws for fault in one]


def test_ops_are_typed_by_a_rule_or_refused():
    assert not _faults()


def test_an_op_that_is_served_without_a_rule_is_found(monkeypatch):
    def served(self, op, why, untyped=False):
        return At(0)

    monkeypatch.setattr(Typing, "failed", served)
    assert any("served without a rule" in fault for fault in _faults())


def test_an_internal_error_is_found(monkeypatch):
    def broken(self, op, types):
        raise TypeError("planted")

    monkeypatch.setattr(Typing, "_by_rule", broken)
    assert any("TypeError" in fault for fault in _faults())


def _typed(make):
    """Return (typing, made): what `make` makes of samples, (N, 4)."""
    graph = tf.Graph()
    with graph.as_default():
        given = tf.compat.v1.placeholder(tf.float32, (any_ops.N, 4))
        made = make(given)
    typing = Typing(Definitions(graph), any_ops.N, True)
    typing.set_inputs([given], [At(0)])
    typing.run({op: op.name for op in graph.get_operations()})
    return typing, made


def test_arguments_that_do_not_fit_are_no_internal_errors():
    axis, ids = np.zeros((2,), np.int32), np.zeros((4, 4), np.int32)
    typing, _ = _typed(
        lambda x: x + tf.raw_ops.Cumsum(x=tf.ones((4, 4)), axis=axis)[0]
    )
    assert not typing.failures
    # More axes than there are.
    typing, _ = _typed(
        lambda x: tf.raw_ops.TensorScatterSub(
            tensor=x, indices=ids, updates=tf.ones(4)
        )
    )
    (failure,) = typing.failures
    assert failure.why == "replaces some of the samples"


def test_what_is_read_through_an_unknown_handle_is_unknown():
    def read(x):
        stack = tf.raw_ops.StackV2(max_size=3, elem_type=tf.float32)
        tf.raw_ops.StackPushV2(handle=stack, elem=x)
        return tf.raw_ops.ReadVariableOp(resource=stack, dtype=tf.float32)

    typing, made = _typed(read)
    assert isinstance(typing.of(made), Mixed)


def test_what_is_read_from_a_variable_is_known():
    def read(x):
        handle = tf.compat.v1.placeholder(tf.resource, [])
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        return x + tf.ensure_shape(value, [4])

    typing, made = _typed(read)
    assert typing.of(made) == At(0)
