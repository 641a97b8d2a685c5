"""Whoever looks at a model leaves it as it was."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.gradient_health.gradient_meter import GradientMeter
from keras_pergrad.keras_internals.state import model as model_state

layers = keras.layers
X, Y = np.random.default_rng(0).normal(size=(2, 6, 5)).astype("float32")
Y = Y[:, :3]


class Counting(layers.Layer):
    """Counts its calls in a variable of Keras's and a plain one."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.calls = self.add_weight(initializer="zeros", trainable=False)
        self.plain = {"calls": tf.Variable(0.0, trainable=False)}

    def call(self, x):
        self.calls.assign_add(1.0)
        self.plain["calls"].assign_add(1.0)
        return x * self.scale


def model():
    keras.utils.set_random_seed(1)
    found = keras.Sequential(
        [
            keras.Input((5,)),
            Counting(),
            layers.SpectralNormalization(layers.Dense(4)),
            layers.Dropout(0.5),
            layers.Dense(3),
        ]
    )
    found.compile("sgd", "mse")
    return found


def numbers(net):
    return [v.numpy().tolist() for v in model_state.variables_of(net)]


def test_all_variables_are_found():
    net = model()
    counting, spectral, dropout, _ = net.layers
    found = {id(v) for v in model_state.variables_of(net)}
    for variable in (
        counting.calls,
        spectral.layer.kernel,
        spectral.vector_u,
        dropout.seed_generator.state,
    ):
        assert id(variable.value) in found
    assert id(counting.plain["calls"]) in found


LOOKS = {
    "gradients": lambda net: kpg.per_sample_gradients(net, X, Y),
    "norms": lambda net: kpg.per_sample_norms(net, X, Y),
    "statistics": lambda net: kpg.gradient_statistics(net, X, Y),
    "inputs": lambda net: kpg.input_gradients(net, X, outputs=0, verbose=0),
    "own losses": lambda net: kpg.input_gradients(net, X, y=Y, verbose=0),
    "explain": lambda net: kpg.explain(net, 6),
    "meter": lambda net: GradientMeter(net, (X, Y, None)).measure(2),
}


@pytest.mark.parametrize("look", LOOKS)
def test_looking_changes_nothing(look):
    net = model()
    net.train_on_batch(X, Y)
    before = numbers(net)
    tf.random.set_seed(5)
    LOOKS[look](net)
    assert numbers(net) == before
    drawn = float(tf.random.uniform([]))
    tf.random.set_seed(5)
    assert float(tf.random.uniform([])) == drawn


def test_a_look_op_by_op_changes_nothing():
    net = model()
    net.compile("sgd", "mse", run_eagerly=True)
    before = numbers(net)
    GradientMeter(net, (X, Y, None)).measure()
    assert numbers(net) == before


def test_a_check_changes_nothing():
    net = keras.Sequential([keras.Input((5,)), Counting(), layers.Dense(3)])
    net.compile("sgd", "mse")
    before = numbers(net)
    how = {"gradient_modes": ["batch"], "repeats": 1, "settings": ["graph"]}
    assert kpg.check_gradients(net, X, Y, **how).rows
    assert numbers(net) == before


def test_what_is_assigned_in_loops_and_calls_is_found():
    looped, called, chosen, read, table = (
        tf.Variable(np.zeros(3, "float32")) for _ in range(5)
    )
    numbers = tf.random.Generator.from_seed(1)
    inner = tf.function(lambda: called.assign_add(read))

    @tf.function
    def function(x):
        def body(i):
            looped.assign_add(read)
            inner()
            return i + 1

        tf.while_loop(lambda i: i < 3, body, [tf.constant(0)])
        tf.cond(x > 0, lambda: chosen.assign(read), lambda: read + 0.0)
        return tf.gather(table, [0]) + numbers.normal([])

    concrete = function.get_concrete_function(tf.constant(1.0))
    found = model_state.assigned_variables(concrete)

    def is_found(variable):
        return any(handle.tensor is variable.handle for handle in found)

    assert all(map(is_found, (looped, called, chosen)))
    assert not any(map(is_found, (read, table)))
    read.assign(np.ones(3))
    state = numbers.state.numpy().tolist()
    first = model_state.run_and_restore(function, tf.constant(1.0))
    second = model_state.run_and_restore(concrete, tf.constant(1.0))
    np.testing.assert_array_equal(first, second)
    for variable in (looped, called, chosen):
        np.testing.assert_array_equal(variable, np.zeros(3))
    assert numbers.state.numpy().tolist() == state
    assert function.experimental_get_tracing_count() == 1


def test_an_error_inside_puts_back_too():
    count = tf.Variable(0)

    @tf.function
    def function():
        with tf.control_dependencies([count.assign_add(1)]):
            tf.debugging.assert_equal(count, 0, "stop")
        return tf.constant(0)

    with pytest.raises(tf.errors.InvalidArgumentError, match="stop"):
        model_state.run_and_restore(function)
    assert int(count) == 0


def test_random_states_stay():
    np.random.seed(3)
    tf.random.set_seed(3)
    with model_state.preserve_random_state():
        np.random.random()
        tf.random.uniform([])
    found = np.random.random(), float(tf.random.uniform([]))
    np.random.seed(3)
    tf.random.set_seed(3)
    assert found == (np.random.random(), float(tf.random.uniform([])))
