"""The layer rule of recurrent layers, and their steps as a scan.

The layer's own `call` runs, but with an equivalent inner loop that projects
the whole input at once. The gradient of that projection Z is the gate gradient
of every step:

    kernel = Σ_t x_t ⊗ dz_t,  recurrent kernel = Σ_t h_{t-1} ⊗ dz_t.

In a ConvLSTM these are sums over pixels, too.
"""

import keras
import tensorflow as tf

from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.models.parts import ConvLSTMCell
from keras_pergrad.keras_internals.tensorflow.settings import in_xla
from keras_pergrad.uses.layer_rules import cells
from keras_pergrad.uses.layer_rules.cells import ConvLstm
from keras_pergrad.uses.layer_rules.registry import register_rule

# Steps along the time axis, unrolled or in a loop.
#
# Unrolled is faster while the graph stays small: there is no loop
# bookkeeping, and work that the next step does not wait for runs on another
# core. XLA compiles the body of a loop once, so XLA gets the loop.


#: The longest sequence that is unrolled.
UNROLLED_STEPS = 8


class Scan:
    """A runner of steps over sequences of one length.

    A sequence holds a tensor for each step: a list when unrolled, else what
    was split, or a TensorArray of outputs. Neither is copied to be read.

    Args:
        length: the number of steps, an integer or a scalar tensor.
    """

    def __init__(self, length):
        short = isinstance(length, int) and length <= UNROLLED_STEPS
        self.length = length
        self.unroll = tf.executing_eagerly() or (short and not in_xla())

    def split(self, tensor):
        """Return a tensor (n, t, ...) as a sequence."""
        if self.unroll:
            return tf.unstack(tensor, axis=1)
        return _Steps(_swapped(tensor))

    def join(self, sequence):
        """Return a sequence as (n, t, ...)."""
        if self.unroll:
            return tf.stack(sequence, axis=1)
        return _swapped(sequence.stack())

    def run(self, step, carry, sequences, reverse=False):
        """Run `carry, outputs = step(carry, items)` for each step.

        Return the last carry, and a list of sequences of the outputs.
        """
        if self.unroll:
            return self._unrolled(step, carry, sequences, reverse)
        return self._looped(step, carry, sequences, reverse)

    def _unrolled(self, step, carry, sequences, reverse):
        by_step = []
        times = range(self.length)
        for t in reversed(times) if reverse else times:
            carry, outputs = step(carry, [s[t] for s in sequences])
            by_step.append(outputs)
        if reverse:
            by_step.reverse()
        return carry, [list(column) for column in zip(*by_step)]

    def _looped(self, step, carry, sequences, reverse):
        last = self.length - 1
        carry = list(carry)
        first = [s.read(last if reverse else 0) for s in sequences]
        # Traced once to learn the types of the outputs of a step.
        _, specs = tf.nest.map_structure(
            lambda t: tf.TensorSpec(t.shape, t.dtype), step(carry, first)
        )
        arrays = [
            tf.TensorArray(s.dtype, self.length, element_shape=s.shape)
            for s in specs
        ]

        def body(t, carry, arrays):
            carry, outputs = step(carry, [s.read(t) for s in sequences])
            arrays = [a.write(t, o) for a, o in zip(arrays, outputs)]
            return t - 1 if reverse else t + 1, list(carry), arrays

        def going(t, carry, arrays):
            return t >= 0 if reverse else t < self.length

        _, carry, arrays = tf.while_loop(
            going,
            body,
            [last if reverse else 0, carry, arrays],
            maximum_iterations=self.length,
        )
        return carry, arrays


class _Steps:
    """The steps of a tensor (t, n, ...); to read one is no copy."""

    def __init__(self, tensor):
        self.tensor = tensor

    def read(self, t):
        return self.tensor[t]


def _swapped(tensor):
    axes = [1, 0, *range(2, tensor.shape.rank)]
    return tf.transpose(tensor, axes)


# Rules of SimpleRNN, LSTM, GRU, ConvLSTM and RNN with one of their cells.
#
# The layer's own `call` runs, but with an equivalent inner loop that projects
# the whole input at once. The gradient of that projection Z is the gate
# gradient of every step:
#
#     kernel = Σ_t x_t ⊗ dz_t,  recurrent kernel = Σ_t h_{t-1} ⊗ dz_t.
#
# In a ConvLSTM these are sums over pixels, too.


_CELLS = {
    keras.layers.SimpleRNNCell: cells.Simple,
    keras.layers.LSTMCell: cells.Lstm,
    keras.layers.GRUCell: cells.Gru,
    ConvLSTMCell: ConvLstm,
}
_LAYERS = (
    keras.layers.RNN,
    keras.layers.SimpleRNN,
    keras.layers.LSTM,
    keras.layers.GRU,
    keras.layers.ConvLSTM1D,
    keras.layers.ConvLSTM2D,
    keras.layers.ConvLSTM3D,
)


def _cell(layer, training=False):
    make = _CELLS[type(layer.cell)]
    if make is ConvLstm:
        return ConvLstm(layer.cell, training)
    if make is cells.Gru and not layer.cell.reset_after:
        make = cells.GruResetBefore
    return make(layer.cell)


def _unsupported(layer, *args, training=None, **kwargs):
    cell = layer.cell
    if type(cell) not in _CELLS:
        return f"its cell is a {type(cell).__name__}"
    if type(layer).inner_loop not in {c.inner_loop for c in _LAYERS}:
        return "it has an inner loop of its own"
    dropout = cell.dropout or cell.recurrent_dropout
    if training and dropout and type(cell) is not ConvLSTMCell:
        return "dropout inside the recurrence"
    used = [cell.activation]
    used += [getattr(cell, "recurrent_activation", cell.activation)]
    if not all(map(cells.is_elementwise, used)):
        return "its activation is not known to be elementwise"
    return None


def _forward(layer, call, watch, *args, **kwargs):
    kept = {}

    def inner_loop(sequences, initial_state, mask, training=False):
        mask = tf.nest.flatten(mask)[0] if mask is not None else None
        if mask is not None:
            mask = tf.cast(mask, tf.bool)
            mask = mask[..., 0] if mask.shape.rank == 3 else mask
        cell = _cell(layer, training)
        inputs = cell.inward(tf.cast(sequences, layer.cell.compute_dtype))
        if layer.go_backwards:
            inputs = tf.reverse(inputs, [1])
            mask = None if mask is None else tf.reverse(mask, [1])
        z = watch(cell.project(inputs))
        initial = [cell.inward(state) for state in initial_state]
        whole, states, (hidden, *rest) = _recurrence(
            cell, z, initial, mask, layer.return_sequences
        )
        kept["inputs"] = (*cell.met(inputs, hidden), *rest)
        last = states[0]
        if mask is not None:
            shown = _shown(mask, layer.zero_output_for_mask)
            last = _where(shown[:, -1], last)
            whole = None if whole is None else _where(shown, whole)
        whole = last if whole is None else whole
        states = [cell.outward(state) for state in states]
        return cell.outward(last), cell.outward(whole), states

    with attribute(layer, "inner_loop", inner_loop):
        outputs = call(*args, **kwargs)
    return outputs, kept["inputs"]


def _shown(mask, zero_output_for_mask):
    """Return where the output is the state, not zero: at masked steps Keras
    gives zeros or repeats the last output, which is zero at first."""
    if zero_output_for_mask:
        return mask
    return tf.cumsum(tf.cast(mask, tf.int32), 1) > 0


def _where(condition, tensor):
    condition = _spread(condition, tensor)
    return tf.where(condition, tensor, tf.zeros([], tensor.dtype))


def _spread(mask, tensor):
    """Return a mask with an axis of one entry for each other of a tensor."""
    more = [None] * (tensor.shape.rank - mask.shape.rank)
    return mask[(..., *more)]


def _recurrence(cell, z, initial_state, mask, sequence):
    """Run all steps, with gradients only for `z` and the initial state.

    Return h of all steps (n, t, ..., u) if `sequence`, else None; the last
    states; h before each step, and the other tensors for the cell's gradients.
    """
    steps = z.shape[1]
    scan = Scan(tf.shape(z)[1] if steps is None else steps)
    masks = [] if mask is None else [scan.split(_spread(mask, z))]
    kept = {}

    def forward(states, items):
        new, saved, extras = cell.forward(items[0], states)
        if masks:
            new = [tf.where(items[1], a, b) for a, b in zip(new, states)]
        kept["saved"], kept["extras"] = len(saved), len(extras)
        return new, [new[0], states[0], *extras, *saved]

    def backward(states, items):
        saved, items = items[: kept["saved"]], items[kept["saved"] :]
        if sequence:
            states = [states[0] + items[0], *states[1:]]
        dz, back = cell.backward(saved, states)
        if masks:
            dz = tf.where(items[-1], dz, tf.zeros_like(dz))
            back = [tf.where(items[-1], a, b) for a, b in zip(back, states)]
        return back, [dz]

    @tf.custom_gradient
    def run(z, *states):
        states, columns = scan.run(
            forward, list(states), [scan.split(z), *masks]
        )
        count = 2 + kept["extras"]
        kept["rest"] = [scan.join(c) for c in columns[1:count]]
        outputs = [scan.join(columns[0])] if sequence else []

        def gradient(*upstream):
            given = [scan.split(d) for d in upstream[: len(outputs)]]
            d_states, d_inputs = scan.run(
                backward,
                list(upstream[len(outputs) :]),
                [*columns[count:], *given, *masks],
                reverse=True,
            )
            return scan.join(d_inputs[0]), *d_states

        return (*outputs, *states), gradient

    outputs = run(z, *initial_state)
    rest = [tf.stop_gradient(t) for t in kept["rest"]]
    if sequence:
        return outputs[0], list(outputs[1:]), rest
    return None, list(outputs), rest


def _gradients(layer, inputs, dz):
    """Yield the factors of kernel, recurrent kernel and bias."""
    inputs, hidden, *extras = inputs
    yield from _cell(layer).gradients(inputs, hidden, extras, dz)


for _layer in _LAYERS:
    register_rule(
        _layer, forward=_forward, unsupported=_unsupported, by_position=True
    )(_gradients)
