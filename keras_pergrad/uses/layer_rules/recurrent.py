"""The layer rule of recurrent layers, their steps as a scan or by cuDNN.

The layer's own `call` runs, but with an equivalent inner loop that projects
the whole input at once. The gradient of that projection Z is the gate gradient
of every step:

    kernel = Σ_t x_t ⊗ dz_t,  recurrent kernel = Σ_t h_{t-1} ⊗ dz_t.

In a ConvLSTM these are sums over pixels, too.
"""

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.models.layers import ConvLSTMCell
from keras_pergrad.keras_internals.models.parts import patched_attribute
from keras_pergrad.keras_internals.tensorflow.cudnn import (
    cudnn_steps,
    runs_on_cudnn,
)
from keras_pergrad.keras_internals.tensorflow.settings import in_xla
from keras_pergrad.uses.layer_rules import cells
from keras_pergrad.uses.layer_rules.cells import ConvLstm
from keras_pergrad.uses.layer_rules.registry import register_rule

#: The longest sequence that is unrolled.
UNROLLED_STEPS = 8


class Scan:
    """A runner of steps over sequences of one length, unrolled or in a loop.

    Unrolled is faster while the graph stays small: there is no loop
    bookkeeping, and work that the next step does not wait for runs on another
    core. XLA compiles the body of a loop once, so XLA gets the loop.

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
        return _Steps(_swap_time(tensor))

    def join(self, sequence):
        """Return a sequence as (n, t, ...)."""
        if self.unroll:
            return tf.stack(sequence, axis=1)
        return _swap_time(sequence.stack())

    def run(self, step, carry, sequences, *, reverse=False):
        """Run `carry, outputs = step(carry, items)` for each step.

        Return the last carry, and a list of sequences of the outputs.
        """
        if self.unroll:
            return self._run_unrolled(step, carry, sequences, reverse=reverse)
        return self._run_loop(step, carry, sequences, reverse=reverse)

    def _run_unrolled(self, step, carry, sequences, *, reverse):
        by_step = []
        times = range(self.length)
        for t in reversed(times) if reverse else times:
            carry, outputs = step(carry, [s[t] for s in sequences])
            by_step.append(outputs)
        if reverse:
            by_step.reverse()
        return carry, [list(column) for column in zip(*by_step)]

    def _run_loop(self, step, carry, sequences, *, reverse):
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

        def unfinished(t, carry, arrays):
            return t >= 0 if reverse else t < self.length

        _, carry, arrays = tf.while_loop(
            unfinished,
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


def _swap_time(tensor):
    axes = [1, 0, *range(2, tensor.shape.rank)]
    return tf.transpose(tensor, axes)


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


def _make_cell(layer, training=False):
    cell_class = _CELLS[type(layer.cell)]
    if cell_class is cells.Gru and not layer.cell.reset_after:
        cell_class = cells.GruResetBefore
    return cell_class(layer.cell, training)


def _unsupported(layer, *args, training=None, **kwargs):
    cell = layer.cell
    if type(cell) not in _CELLS:
        return f"its cell is a {type(cell).__name__}"
    if type(layer).inner_loop not in {c.inner_loop for c in _LAYERS}:
        return "it has an inner loop of its own"
    if training and 1 in (cell.dropout, cell.recurrent_dropout):
        return "its dropout leaves nothing"
    activations = [cell.activation]
    activations += [getattr(cell, "recurrent_activation", cell.activation)]
    if not all(map(cells.is_elementwise, activations)):
        return "its activation is not known to be elementwise"
    return None


def _forward(layer, call, watch, *args, **kwargs):
    recorded = {}

    def inner_loop(sequences, initial_state, mask, training=False):
        mask = tf.nest.flatten(mask)[0] if mask is not None else None
        if mask is not None:
            mask = tf.cast(mask, tf.bool)
            mask = mask[..., 0] if mask.shape.rank == 3 else mask
        cell = _make_cell(layer, training)
        inputs = cell.to_channels_last(
            tf.cast(sequences, layer.cell.compute_dtype)
        )
        if layer.go_backwards:
            inputs = tf.reverse(inputs, [1])
            mask = None if mask is None else tf.reverse(mask, [1])
        z = watch(cell.project(inputs))
        initial = [cell.to_channels_last(state) for state in initial_state]
        run = _run_cudnn if runs_on_cudnn(layer) else _run_scan
        sequence, states, (hidden, *extras) = run(
            cell,
            z,
            initial,
            mask=mask,
            return_sequence=layer.return_sequences,
        )
        recorded["inputs"] = (*cell.kernel_inputs(inputs, hidden), *extras)
        last = states[0]
        if mask is not None:
            output_mask = _output_mask(mask, layer.zero_output_for_mask)
            last = _zeros_unless(output_mask[:, -1], last)
            sequence = (
                None
                if sequence is None
                else _zeros_unless(output_mask, sequence)
            )
        sequence = last if sequence is None else sequence
        states = [cell.from_channels_last(state) for state in states]
        return (
            cell.from_channels_last(last),
            cell.from_channels_last(sequence),
            states,
        )

    with patched_attribute(layer, "inner_loop", inner_loop):
        outputs = call(*args, **kwargs)
    return outputs, recorded["inputs"]


def _output_mask(mask, zero_output_for_mask):
    """Return where the output is the state, not zero.

    At masked steps Keras gives zeros, or repeats the last output, which is
    zero at first.
    """
    if zero_output_for_mask:
        return mask
    return tf.cumsum(tf.cast(mask, tf.int32), 1) > 0


def _zeros_unless(condition, tensor):
    condition = _expand_mask(condition, tensor)
    return tf.where(condition, tensor, tf.zeros([], tensor.dtype))


def _expand_mask(mask, tensor):
    """Return a mask with axes of size one for a tensor's other axes."""
    new_axes = [None] * (tensor.shape.rank - mask.shape.rank)
    return mask[(..., *new_axes)]


def _run_scan(cell, z, initial_state, *, mask, return_sequence):
    """Run all steps, with gradients only for `z` and the initial state.

    Return three things: h of all steps, (n, t, ..., u), if `return_sequence`,
    else None; the last states; h before each step with the other tensors that
    the cell's gradients need.
    """
    steps = z.shape[1]
    scan = Scan(tf.shape(z)[1] if steps is None else steps)
    masks = [] if mask is None else [scan.split(_expand_mask(mask, z))]
    recorded = {}

    def forward(states, items):
        new_states, saved, extras = cell.forward(items[0], states)
        if masks:
            new_states = [
                tf.where(items[1], a, b) for a, b in zip(new_states, states)
            ]
        recorded["saved"], recorded["extras"] = len(saved), len(extras)
        return new_states, [new_states[0], states[0], *extras, *saved]

    def backward(states, items):
        saved, items = items[: recorded["saved"]], items[recorded["saved"] :]
        if return_sequence:
            states = [states[0] + items[0], *states[1:]]
        dz, d_previous = cell.backward(saved, states)
        if masks:
            # A masked step keeps the states: their gradients pass it as they
            # are.
            dz = tf.where(items[-1], dz, tf.zeros_like(dz))
            d_previous = [
                tf.where(items[-1], a, b) for a, b in zip(d_previous, states)
            ]
        return d_previous, [dz]

    @tf.custom_gradient
    def run(z, *states):
        states, columns = scan.run(
            forward, list(states), [scan.split(z), *masks]
        )
        count = 2 + recorded["extras"]
        recorded["rest"] = [scan.join(c) for c in columns[1:count]]
        outputs = [scan.join(columns[0])] if return_sequence else []

        def gradient(*upstream):
            d_outputs = [scan.split(d) for d in upstream[: len(outputs)]]
            d_states, d_inputs = scan.run(
                backward,
                list(upstream[len(outputs) :]),
                [*columns[count:], *d_outputs, *masks],
                reverse=True,
            )
            return scan.join(d_inputs[0]), *d_states

        return (*outputs, *states), gradient

    outputs = run(z, *initial_state)
    intermediates = [tf.stop_gradient(t) for t in recorded["rest"]]
    if return_sequence:
        return outputs[0], list(outputs[1:]), intermediates
    return None, list(outputs), intermediates


def _run_cudnn(cell, z, initial_state, *, mask, return_sequence):
    """Do by one call of cuDNN what `_run_scan` does."""
    steps, lengths, places = z, None, None
    if mask is not None:
        z = _zeros_unless(mask, z)
        # cuDNN takes sequences that are padded behind and have a step: those
        # that count go to the front, and how many there were tells their
        # place.
        marks = tf.cast(mask, tf.int32)
        counts = tf.cumsum(marks, 1)
        places = counts, counts - marks
        order = tf.argsort(1 - marks, stable=True)
        steps = tf.gather(z, order, batch_dims=1)
        lengths = tf.maximum(counts[:, -1], 1)
    outputs, states = cudnn_steps(
        cell.cell,
        steps,
        initial_state,
        recurrent_kernel=cell.kernel,
        state_bias=cell.state_bias,
        lengths=lengths,
    )
    all_states = tf.concat([initial_state[0][:, None], outputs], 1)
    hidden = all_states[:, :-1]
    if places is not None:
        after, before = places
        outputs = tf.gather(all_states, after, batch_dims=1)
        hidden = tf.gather(all_states, before, batch_dims=1)
        pairs = zip(states, initial_state)
        has_steps = after[:, -1:] > 0
        states = [tf.where(has_steps, last, first) for last, first in pairs]
    hidden = tf.stop_gradient(hidden)
    intermediates = [hidden, *cell.extras(tf.stop_gradient(z), hidden)]
    return outputs if return_sequence else None, states, intermediates


def _gradients(layer, inputs, dz):
    """Yield the factors of kernel, recurrent kernel and bias."""
    inputs, hidden, *extras = inputs
    yield from _make_cell(layer).gradients(inputs, hidden, extras, dz=dz)


for _layer in _LAYERS:
    register_rule(
        _layer, forward=_forward, unsupported=_unsupported, by_position=True
    )(_gradients)
