import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from keras_pergrad.analysis.placement import collection, graph


@tf.function
def product(a, b):
    return tf.linalg.matmul(a, b)


def ops(collected):
    partitions = collection.step_partitions(collected[0])
    return {node.op for node in graph.read(partitions)}


def test_only_what_is_placed_anew_is_collected():
    a = tf.ones((5, 5))
    with collection.collect(again=False) as first:
        product(a, a)
    with collection.collect(again=False) as cached:
        product(a, a)
    with collection.collect(again=True) as again:
        product(a, a)
    assert ops(first) == ops(again)
    assert "MatMul" in ops(first)
    assert collection.step_partitions(cached[0]) == []


def test_options_come_back_after_a_raise():
    options = context.context().function_call_options
    with (
        pytest.raises(RuntimeError, match="inside"),
        collection.collect(again=True) as collected,
    ):
        raise RuntimeError("inside")
    assert context.context().function_call_options is options
    assert len(collected) == 1


def test_a_traced_function_is_found_behind_wrappers():
    @tf.function
    def step(x):
        return x + 1

    def once(x):
        return step(x)

    def twice(x):
        return once(x)

    assert not collection.was_traced(twice)
    step(tf.constant(1))
    assert collection.was_traced(step)
    assert collection.was_traced(twice)
    assert not collection.was_traced(print)
