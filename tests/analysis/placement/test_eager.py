import collections

import pytest
import tensorflow as tf

from keras_pergrad.analysis.placement import eager


def executed(watched):
    return [node for _, nodes in watched for node in nodes]


def test_ops_are_seen_with_device_scope_and_type():
    with eager.watch() as watched, tf.name_scope("block"):
        tf.sin(tf.cast([1, 2], "float32"))
    [sin] = [node for node in executed(watched) if node.op == "Sin"]
    assert sin.definition.attr["T"].type == tf.float32.as_datatype_enum
    assert (sin.device, sin.name) == ("CPU:0", "block/Sin")


def test_nothing_is_seen_afterwards_nor_after_a_raise():
    with (
        pytest.raises(RuntimeError, match="inside"),
        eager.watch() as watched,
    ):
        raise RuntimeError("inside")
    tf.cos(1.0)
    assert executed(watched) == []


def counts(watched):
    operations, opaque = eager.operations_of(watched, lambda name: name, None)
    return collections.Counter(o.op for o in operations), opaque


def test_a_function_counts_as_the_ops_of_its_body_each_time():
    @tf.function
    def body(x):
        return tf.sin(tf.cos(x) + tf.constant([1.0]))

    body(tf.ones(1))  # placed before: placed once more
    with eager.watch() as watched, tf.name_scope("block"):
        for _ in range(3):
            body(tf.ones(1))
    found, opaque = counts(watched)
    assert (found["Sin"], found["Cos"], opaque) == (3, 3, [])
    assert not any(op.startswith("__") for op in found)
    operations, _ = eager.operations_of(watched, lambda name: name, None)
    assert "block/Sin" in {o.layer for o in operations}


def test_a_function_that_cannot_be_seen_is_no_op():
    compiled = tf.function(lambda x: tf.sin(x), jit_compile=True)

    @tf.function
    def outer(x):
        return tf.cos(hidden(x))

    @tf.function(experimental_attributes={"_noinline": True})
    def hidden(x):
        return tf.sin(x)

    with eager.watch() as watched:
        compiled(tf.ones(1))
        outer(tf.ones(1))
    found, opaque = counts(watched)
    assert (found["Sin"], found["Cos"]) == (0, 1)
    assert [why for _, _, why in opaque] == ["XLA", "call"]
