"""Sequences of any ops: typed by a rule, or refused by name."""

import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.graph_nodes import Definitions
from keras_pergrad.samples.types.tensor_types import At
from keras_pergrad.samples.types.typing import Typing
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


def test_an_axis_that_is_no_scalar_is_no_internal_error():
    graph = tf.Graph()
    with graph.as_default():
        given = tf.compat.v1.placeholder(tf.float32, (any_ops.N, 4))
        table, axis = tf.ones((4, 4)), tf.constant(np.zeros((2,), np.int32))
        made = tf.raw_ops.Cumsum(x=table, axis=axis)
        tf.add(given, made[0])
    typing = Typing(Definitions(graph), any_ops.N, True)
    typing.give_input(given, At(0))
    typing.run_in_place(graph.get_operations())
    assert not typing.failures
