import pytest
import tensorflow as tf

from keras_pergrad.placement import eager


def executed(watched):
    return [definition.op for definition, _, _ in watched]


def test_ops_are_seen_with_device_scope_and_type():
    with eager.watch() as watched, tf.name_scope("block"):
        tf.sin(tf.cast([1, 2], "float32"))
    ops = {d.op: (d, device, scope) for d, device, scope in watched}
    definition, device, scope = ops["Sin"]
    assert definition.attr["T"].type == tf.float32.as_datatype_enum
    assert (device, scope) == ("CPU:0", "block/")


def test_nothing_is_seen_afterwards_nor_after_a_raise():
    with (
        pytest.raises(RuntimeError, match="inside"),
        eager.watch() as watched,
    ):
        raise RuntimeError("inside")
    tf.cos(1.0)
    assert executed(watched) == []


def test_ops_inside_a_graph_are_not_seen():
    @tf.function
    def step(x):
        return tf.sin(x)

    with eager.watch() as watched:
        step(tf.constant(1.0))
    assert "Sin" not in executed(watched)
