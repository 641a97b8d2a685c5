import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.keras_internals.fit.train_function import peek_batches
from keras_pergrad.keras_internals.graphs.runs import (
    GraphCopy,
    NotCopyable,
    trace_step,
)


def test_a_copy_has_variables_of_its_own():
    variable = tf.Variable([1.0, 2.0])

    def step(x):
        return variable.assign_add(x) * 2

    x = np.array([1.0, 1.0], "float32")
    concrete, values = trace_step(step, x)
    with GraphCopy(concrete) as copied:
        [first] = copied.run(values)
        [second] = copied.run(values)
    np.testing.assert_array_equal(first, [4, 6])
    np.testing.assert_array_equal(second, [6, 8])
    np.testing.assert_array_equal(variable.numpy(), [1, 2])


def test_captured_constants_are_copied():
    constant = tf.constant([3.0])
    concrete, values = trace_step(lambda x: x + constant, np.ones(1, "f4"))
    with GraphCopy(concrete) as copied:
        assert copied.run(values)[0] == [4.0]


def test_a_table_cannot_be_copied():
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([1], [2.0]), 0.0
    )
    concrete, _ = trace_step(lambda x: table.lookup(x), np.ones(1, "int32"))
    with pytest.raises(NotCopyable, match="only state is variables"):
        GraphCopy(concrete)


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_batches_set_aside_come_again(steps):
    x = np.arange(10, dtype="float32")
    data = tf.data.Dataset.from_tensor_slices((x, -x)).batch(4)
    iterator = iter(data)
    batches, again = peek_batches(iterator, steps)
    assert len(batches) == min(steps, 3)
    assert again.element_spec == iterator.element_spec
    seen = np.concatenate([a.numpy() for a, _ in again])
    rest = [a.numpy() for a, _ in iterator]
    np.testing.assert_array_equal(np.concatenate([seen, *rest]), x)


def test_one_tensor_batches_and_empty_streams():
    data = tf.data.Dataset.from_tensor_slices(np.ones(3)).batch(2)
    batches, again = peek_batches(iter(data), 1)
    assert [b.shape for b in again] == [batches[0].shape]
    empty, _ = peek_batches(iter(data.take(0)), 1)
    assert empty == []
