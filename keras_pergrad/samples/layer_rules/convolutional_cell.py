"""The cell of ConvLSTM: an LSTM whose products are convolutions.

Inside, channels are last. With dropout each gate has an input of its own, so
each has convolutions of its own; else one serves the four of them.
"""

import tensorflow as tf

from keras_pergrad.factors import Columns, Patches, Sum, Windows
from keras_pergrad.samples.layer_rules.recurrent_cells import Lstm
from keras_pergrad.samples.layout import sizes_of


class ConvLstm(Lstm):
    """i, f, g, o from z + h∗U; n sample, t step, p pixel, u filter."""

    def __init__(self, cell, training=False):
        super().__init__(cell)
        self.input_masks = self.state_masks = None
        # Keras has drawn them before the loop.
        if training and 0 < cell.dropout < 1:
            self.input_masks = self._masks(cell.get_dropout_mask(None))
        if training and 0 < cell.recurrent_dropout < 1:
            masks = cell.get_recurrent_dropout_mask(None)
            self.state_masks = self._masks(masks)

    def _masks(self, masks):
        return [self.inward(mask) for mask in masks]

    def inward(self, tensor):
        if self.cell.data_format == "channels_last":
            return tensor
        channels = tensor.shape.rank - self.cell.rank - 1
        order = list(range(tensor.shape.rank))
        order.append(order.pop(channels))
        return tf.transpose(tensor, order)

    def outward(self, tensor):
        if self.cell.data_format == "channels_last":
            return tensor
        order = list(range(tensor.shape.rank))
        order.insert(tensor.shape.rank - self.cell.rank - 1, order.pop())
        return tf.transpose(tensor, order)

    def project(self, inputs):
        frames = [_dropped(inputs, mask) for mask in self.input_masks or [None]]
        z = self._convolved(
            [tf.reshape(t, [-1, *t.shape[2:]]) for t in frames],
            self._value(self.cell.kernel),
            strides=self.cell.strides,
            padding=self.cell.padding.upper(),
            dilations=self.cell.dilation_rate,
        )
        bias = self.input_bias()
        if bias is not None:
            z += self._value(bias)
        steps = sizes_of(inputs, [1])[0]
        z = tf.reshape(z, [-1, steps, *z.shape[1:]])
        return tf.ensure_shape(z, [*inputs.shape[:2], *z.shape[2:]])

    def of_state(self, h):
        met = [_dropped(h, mask) for mask in self.state_masks or [None]]
        return self._convolved(met, self.kernel, padding="SAME")

    def to_state(self, dz):
        masks = self.state_masks or [None]
        parts = zip(*(tf.split(t, len(masks), -1) for t in (dz, self.kernel)))
        shape = tf.stack([*sizes_of(dz)[:-1], self.cell.filters])
        gradients = [
            _dropped(
                tf.nn.conv_transpose(d, kernel, shape, 1, padding="SAME"), mask
            )
            for (d, kernel), mask in zip(parts, masks)
        ]
        return tf.add_n(gradients)

    def _convolved(self, tensors, kernel, **kwargs):
        kernels = tf.split(kernel, len(tensors), -1)
        outputs = [
            tf.nn.convolution(t, k, **kwargs) for t, k in zip(tensors, kernels)
        ]
        return tf.concat(outputs, -1)

    def met(self, inputs, hidden):
        """Return them for all gates, or for each by itself."""
        return tuple(
            [_dropped(t, mask) for mask in masks or [None]]
            for t, masks in (
                (inputs, self.input_masks),
                (hidden, self.state_masks),
            )
        )

    def gradients(self, inputs, hidden, extras, dz):
        cell = self.cell
        own = cell.strides, cell.dilation_rate, cell.padding
        ones = (1,) * cell.rank
        yield cell.kernel, _factor(inputs, dz, cell.kernel, *own)
        yield (
            cell.recurrent_kernel,
            _factor(hidden, dz, cell.recurrent_kernel, ones, ones, "same"),
        )
        if cell.use_bias:
            yield cell.bias, Sum(dz)


def _dropped(tensor, mask):
    """Return a tensor times a mask (n, p, u), the same for all steps."""
    if mask is None:
        return tensor
    if tensor.shape.rank > mask.shape.rank:
        mask = mask[:, None]
    return tensor * tf.cast(mask, tensor.dtype)


def _factor(inputs, dz, kernel, strides, dilation, padding):
    """Return the factor of a kernel; steps are one more dimension."""
    count = len(inputs)
    shape = [*kernel.shape[:-1], kernel.shape[-1] // count]
    sizes = sizes_of(inputs[0])[1:-1]
    windows = Windows.of(
        sizes, (1, *shape[:-2]), (1, *strides), (1, *dilation), padding
    )
    parts = [
        Patches(x, d, windows, shape)
        for x, d in zip(inputs, tf.split(dz, count, -1))
    ]
    return parts[0] if count == 1 else Columns(parts)
