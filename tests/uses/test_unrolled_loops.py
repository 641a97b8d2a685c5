"""Loops over time that are written out: each step uses the same weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.keras_internals.losses.losses import total_loss
from keras_pergrad.uses import TracedStep
from tests.marks import few
from tests.uses.rules.exact import assert_exact, normal, stack

layers, ops = keras.layers, keras.ops


class Cells(layers.Layer):
    """A cell of Keras, called for each step."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def build(self, shape):
        self.cell.build((None, shape[-1]))

    def call(self, x):
        count = len(tf.nest.flatten(self.cell.state_size))
        zeros = ops.zeros((ops.shape(x)[0], self.cell.units), x.dtype)
        states, outputs = [zeros] * count, []
        for t in range(x.shape[1]):
            output, states = self.cell(x[:, t], states)
            outputs.append(output)
        return ops.stack(outputs, 1)

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.cell.units)


class Gates(layers.Layer):
    """Takes its gates out of one kernel and one bias, in some way."""

    def __init__(self, take):
        super().__init__()
        self.take = take

    def build(self, shape):
        self.kernel = self.add_weight((shape[-1], 6))
        self.recurrent = self.add_weight((3, 6))
        self.bias = self.add_weight((6,))

    def call(self, x):
        h = ops.zeros((ops.shape(x)[0], 3), x.dtype)
        for t in range(x.shape[1]):
            w, u = self.take(self.kernel.value), self.take(self.recurrent.value)
            b = self.take(self.bias.value)
            gates = [
                x[:, t] @ w[k] + ops.tanh(h @ u[k] + b[k]) for k in range(2)
            ]
            h = ops.tanh(gates[0]) * ops.sigmoid(gates[1])
        return h

    def compute_output_shape(self, shape):
        return shape[0], 3


def _unpacked(w):
    return tf.unstack(tf.reshape(w, [*w.shape[:-1], 3, 2]), axis=-1)


def _with_a_rest(w):
    parts = tf.split(w, [1, -1, 2], -1)[1:]
    return [t[..., -1:] * tf.ones(3, w.dtype) for t in parts]


def _sliced(w):
    before, size = [0] * (w.shape.rank - 1), [*w.shape[:-1], 3]
    return [tf.slice(w, [*before, k], size) for k in (0, 3)]


LOOPS = {
    "gru": lambda: Cells(layers.GRUCell(3)),
    "gru before": lambda: Cells(layers.GRUCell(3, reset_after=False)),
    "lstm": lambda: Cells(layers.LSTMCell(3)),
    "simple": lambda: Cells(layers.SimpleRNNCell(3)),
    "split": lambda: Gates(lambda w: tf.split(w, 2, -1)),
    "split uneven": lambda: Gates(
        lambda w: [t[..., -3:] for t in tf.split(w, [3, 3], -1)]
    ),
    "split with a rest": lambda: Gates(_with_a_rest),
    "slice": lambda: Gates(_sliced),
    "strided slice": lambda: Gates(lambda w: [w[..., ::2], w[..., 1::2]]),
    "overlapping": lambda: Gates(lambda w: [w[..., :3], w[..., 2:5]]),
    "unpacked": lambda: Gates(_unpacked),
}


def _model(name):
    return stack((4, 2), LOOPS[name](), layers.Dense(2))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", LOOPS)
def test_is_exact(name):
    assert_exact(_model(name), normal(3, 4, 2))


@pytest.mark.parametrize("name", few(LOOPS, ["gru", "unpacked"]))
def test_is_exact_under_xla(name):
    assert_exact(_model(name), normal(3, 4, 2), run="xla")


@pytest.mark.parametrize("name", ["gru", "split"])
def test_the_steps_are_joined(name):
    """A part of a weight is not filled up with zeros for each step."""
    model = _model(name)
    model.compile(loss="mse")

    @tf.function(autograph=False)
    def norms(x, y):
        tape = TracedStep(model, (x, y, None))
        with tape:
            y_pred = tape.forward(x)
            loss = total_loss(
                model, x, y, y_pred=y_pred, sample_weight=None, training=True
            )
        return [f.squared_norms() for f in tape.sample_gradients(loss)]

    specs = [
        tf.TensorSpec([None, *t.shape[1:]], t.dtype)
        for t in (*model.inputs, *model.outputs)
    ]
    graph = norms.get_concrete_function(*specs).graph
    types = [op.type for op in graph.get_operations()]
    assert not {"While", "StatelessWhile"} & set(types)
    # Two parts of each of three variables at most; the loss and its rows.
    assert types.count("Pad") + types.count("PadV2") <= 6 + 4


def test_gates_of_other_steps_are_not_joined():
    """Only parts at the same place are one part."""

    class Moving(layers.Layer):
        def build(self, shape):
            self.w = self.add_weight((5, 2))

        def call(self, x):
            found = 0
            for t in range(3):
                found += ops.tanh(x[:, t] @ tf.slice(self.w, [t, 0], [2, 2]))
            return found

    model = stack((4, 2), Moving())
    assert np.prod(model.layers[-1].w.shape) == 10
    assert_exact(model, normal(3, 4, 2))
