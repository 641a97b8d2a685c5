"""The cells of recurrent layers, written so that each step has its factors.

Z = x·kernel + bias is computed for all steps at once. A step adds the part of
the state h and applies the activations. Only h·recurrent kernel is not
elementwise, so `forward` saves the local derivatives and `backward` is short:
only `backward` must run step after step.
"""

import keras
import tensorflow as tf

from keras_pergrad.factors import Columns, Full, Outer, Patches, Sum, Windows
from keras_pergrad.factors.written_out import sizes_of

_ELEMENTWISE = """
relu relu6 leaky_relu elu selu celu softplus softsign silu gelu tanh sigmoid
exponential hard_sigmoid hard_silu hard_tanh linear mish log_sigmoid squareplus
soft_shrink hard_shrink tanh_shrink threshold sparse_plus sparse_sigmoid
"""


def is_elementwise(activation):
    """Whether each output is known to depend on its own input alone."""
    names = _ELEMENTWISE.split()
    elementwise = [getattr(keras.activations, name, None) for name in names]
    return any(activation is function for function in elementwise if function)


def _activate(activation, z):
    """Return y, and a function, to be called once: factor → factor · dy/dz."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(z)
        y = activation(z)

    # An elementwise function: this product is the derivative of each entry.
    def times_slope(factor):
        zero = tf.UnconnectedGradients.ZERO
        return tape.gradient(y, z, factor, unconnected_gradients=zero)

    return y, times_slope


class Cell:
    """One recurrent cell of Keras.

    Dropout masks are the same for all steps. There is one for all gates or,
    if the cell computes each gate by itself, one for each.

    Attributes:
        input_masks, state_masks: lists of them, or None: nothing is dropped.
        state_bias: what is added to the state's product, or None.
    """

    state_bias = None

    def __init__(self, cell, training=False):
        self.cell = cell
        self.kernel = self._value(cell.recurrent_kernel)
        self.transposed = tf.transpose(self.kernel)
        self.input_masks = self.state_masks = None
        # Keras has drawn them before the loop.
        if training and 0 < cell.dropout < 1:
            self.input_masks = self._masks(cell.get_dropout_mask(None))
        if training and 0 < cell.recurrent_dropout < 1:
            masks = cell.get_recurrent_dropout_mask(None)
            self.state_masks = self._masks(masks)

    def _masks(self, masks):
        masks = masks if isinstance(masks, list) else [masks]
        return [self.to_channels_last(mask) for mask in masks]

    def _value(self, variable):
        value = tf.convert_to_tensor(variable)
        return tf.cast(value, self.cell.compute_dtype)

    def to_channels_last(self, tensor):
        """Return a tensor of the layer with its channels on the last axis."""
        return tensor

    def from_channels_last(self, tensor):
        """Return a channels-last tensor in the layer's own data format."""
        return tensor

    def state_product(self, h):
        """Return what the state adds to a step."""
        return _multiply(_dropped(h, self.state_masks), self.kernel)

    def state_gradient(self, dz):
        """Return the gradient of the state for that of `state_product`."""
        if not self.state_masks:
            return tf.matmul(dz, self.transposed)
        masks = self.state_masks
        gradients = zip(
            tf.split(dz, len(masks), -1),
            tf.split(self.transposed, len(masks), 0),
            masks,
        )
        return tf.add_n(
            [_apply_mask(tf.matmul(d, kernel), m) for d, kernel, m in gradients]
        )

    def kernel_inputs(self, inputs, hidden):
        """Return the inputs of the kernel and of the recurrent kernel.

        Both are lists: one for all gates, or one for each gate.
        """
        return (
            _dropped(inputs, self.input_masks),
            _dropped(hidden, self.state_masks),
        )

    def project(self, inputs):
        """Return Z, (n, t, gates): what the inputs add to each step."""
        kernel = self._value(self.cell.kernel)
        frames = [
            tf.reshape(t, [-1, inputs.shape[-1]])
            for t in _dropped(inputs, self.input_masks)
        ]
        z = _multiply(frames, kernel)
        bias = self.input_bias()
        if bias is not None:
            z += self._value(bias)
        z = tf.reshape(z, [*sizes_of(inputs, [0, 1]), kernel.shape[-1]])
        return tf.ensure_shape(z, [*inputs.shape[:2], kernel.shape[-1]])

    def input_bias(self):
        return self.cell.bias if self.cell.use_bias else None

    def forward(self, z, states):
        """Return the new states, values to save, extras for `gradients`."""
        raise NotImplementedError

    def backward(self, saved, d_states):
        """Return dz and the gradients of the states before the step."""
        raise NotImplementedError

    def extras(self, z, hidden):
        """Return the extras of all steps from Z and h before each step."""
        del z, hidden
        return []

    def gradients(self, inputs, hidden, extras, *, dz):
        """Yield (variable, factor); `hidden` is h before each step, (n,t,u).

        `inputs` and `hidden` are those of `kernel_inputs`.
        """
        yield self.cell.kernel, _outer(inputs, dz)
        yield self.cell.recurrent_kernel, _outer(hidden, dz)
        if self.cell.use_bias:
            yield self.cell.bias, Sum(dz)


def _apply_mask(tensor, mask):
    """Return a tensor times a mask (n, ..., u), the same for all steps."""
    if mask is None:
        return tensor
    if tensor.shape.rank > mask.shape.rank:
        mask = mask[:, None]
    return tensor * tf.cast(mask, tensor.dtype)


def _dropped(tensor, masks):
    """Return a tensor times each mask, or as it is, in a list."""
    return [_apply_mask(tensor, mask) for mask in masks or [None]]


def _multiply(tensors, kernel):
    """Return tensors times the gates' parts of a kernel, or one times all."""
    if len(tensors) == 1:
        return tf.matmul(tensors[0], kernel)
    kernels = tf.split(kernel, len(tensors), -1)
    return tf.concat([tf.matmul(t, k) for t, k in zip(tensors, kernels)], -1)


def _outer(inputs, dz):
    """Return the factor of a kernel: of all gates, or of each in columns."""
    if len(inputs) == 1:
        return Outer(inputs[0], dz)
    gates = tf.split(dz, len(inputs), -1)
    return Columns([Outer(x, d) for x, d in zip(inputs, gates)])


class Simple(Cell):
    """h' = activation(z + h·U)."""

    def forward(self, z, states):
        y, slope = _activate(
            self.cell.activation, z + self.state_product(states[0])
        )
        return [y], [slope(tf.ones_like(y))], []

    def backward(self, saved, d_states):
        dz = d_states[0] * saved[0]
        return dz, [self.state_gradient(dz)]


class Lstm(Cell):
    """i, f, g, o from z + h·U; c' = f·c + i·g; h' = o·activation(c')."""

    def forward(self, z, states):
        h, c = states
        main, gate = self.cell.activation, self.cell.recurrent_activation
        i, f, g, o = tf.split(z + self.state_product(h), 4, -1)
        (i, di), (f, df), (o, do) = (_activate(gate, v) for v in (i, f, o))
        g, dg = _activate(main, g)
        carry = f * c + i * g
        y, dy = _activate(main, carry)
        saved = [di(g), df(c), dg(i), do(y), dy(o), f]
        return [o * y, carry], saved, []

    def backward(self, saved, d_states):
        to_i, to_f, to_g, to_o, to_c, f = saved
        dh, dc = d_states
        dc += dh * to_c
        dz = tf.concat([dc * to_i, dc * to_f, dc * to_g, dh * to_o], -1)
        return dz, [self.state_gradient(dz), dc * f]


class Gru(Cell):
    """z, r, h̃; h' = z·h + (1 - z)·h̃; r applied after h·U."""

    def __init__(self, cell, training=False):
        super().__init__(cell, training)
        if cell.use_bias:
            self.state_bias = self._value(cell.bias)[1]

    def input_bias(self):
        return self.cell.bias[0] if self.cell.use_bias else None

    def forward(self, z, states):
        (h,) = states
        main, gate = self.cell.activation, self.cell.recurrent_activation
        x_z, x_r, x_h = tf.split(z, 3, 1)
        inner = self.state_product(h)
        if self.state_bias is not None:
            inner += self.state_bias
        h_z, h_r, h_h = tf.split(inner, 3, 1)
        update, d_update = _activate(gate, x_z + h_z)
        reset, d_reset = _activate(gate, x_r + h_r)
        new, d_new = _activate(main, x_h + reset * h_h)
        saved = [
            d_update(h - new),
            d_reset(h_h),
            d_new(1 - update),
            update,
            reset,
        ]
        return [update * h + (1 - update) * new], saved, [reset]

    def backward(self, saved, d_states):
        to_z, to_r, to_h, update, reset = saved
        (dh,) = d_states
        d_new = dh * to_h
        d_gates = [dh * to_z, d_new * to_r]
        inner = tf.concat([*d_gates, d_new * reset], 1)
        d_state = dh * update + self.state_gradient(inner)
        return tf.concat([*d_gates, d_new], 1), [d_state]

    def extras(self, z, hidden):
        reset = slice(self.cell.units, 2 * self.cell.units)
        inner = tf.tensordot(hidden, self.kernel[:, reset], 1)
        if self.state_bias is not None:
            inner += self.state_bias[reset]
        return [self.cell.recurrent_activation(z[..., reset] + inner)]

    def gradients(self, inputs, hidden, extras, *, dz):
        units = self.cell.units
        inner = tf.concat(
            [dz[..., : 2 * units], dz[..., 2 * units :] * extras[0]], -1
        )
        yield self.cell.kernel, _outer(inputs, dz)
        yield self.cell.recurrent_kernel, _outer(hidden, inner)
        if self.cell.use_bias:
            sums = [tf.reduce_sum(d, 1) for d in (dz, inner)]
            yield self.cell.bias, Full(tf.stack(sums, 1))


class GruResetBefore(Cell):
    """As `Gru`, but r is applied to h before h·U."""

    def __init__(self, cell, training=False):
        super().__init__(cell, training)
        # h meets the kernel of z and r; the third gate's input is r·h.
        units = cell.units
        self.new = self.kernel[:, 2 * units :]
        self.kernel = self.kernel[:, : 2 * units]
        self.transposed = tf.transpose(self.kernel)
        self.new_mask = None
        if self.state_masks:
            *self.state_masks, self.new_mask = self.state_masks

    def forward(self, z, states):
        (h,) = states
        main, gate = self.cell.activation, self.cell.recurrent_activation
        x_z, x_r, x_h = tf.split(z, 3, 1)
        h_z, h_r = tf.split(self.state_product(h), 2, 1)
        update, d_update = _activate(gate, x_z + h_z)
        reset, d_reset = _activate(gate, x_r + h_r)
        new_h = _apply_mask(h, self.new_mask)
        reset_h = reset * new_h
        new, d_new = _activate(main, x_h + tf.matmul(reset_h, self.new))
        saved = [
            d_update(h - new),
            d_reset(new_h),
            d_new(1 - update),
            update,
            reset,
        ]
        return [update * h + (1 - update) * new], saved, [reset_h]

    def backward(self, saved, d_states):
        to_z, to_r, to_h, update, reset = saved
        (dh,) = d_states
        d_new = dh * to_h
        d_reset_h = tf.matmul(d_new, self.new, transpose_b=True)
        d_gates = tf.concat([dh * to_z, d_reset_h * to_r], 1)
        d_state = dh * update + _apply_mask(d_reset_h * reset, self.new_mask)
        d_state += self.state_gradient(d_gates)
        return tf.concat([d_gates, d_new], 1), [d_state]

    def gradients(self, inputs, hidden, extras, *, dz):
        units = self.cell.units
        gates = tf.split(dz[..., : 2 * units], len(hidden), -1)
        parts = [Outer(h, d) for h, d in zip(hidden, gates)]
        parts.append(Outer(extras[0], dz[..., 2 * units :]))
        yield self.cell.kernel, _outer(inputs, dz)
        yield self.cell.recurrent_kernel, Columns(parts)
        if self.cell.use_bias:
            yield self.cell.bias, Sum(dz)


class ConvLstm(Lstm):
    """i, f, g, o from z + h∗U; n sample, t step, p pixel, u filter.

    Inside, channels are last. With dropout each gate has an input of its own,
    so each has convolutions of its own; else one serves the four of them.
    """

    def to_channels_last(self, tensor):
        if self.cell.data_format == "channels_last":
            return tensor
        channels = tensor.shape.rank - self.cell.rank - 1
        order = list(range(tensor.shape.rank))
        order.append(order.pop(channels))
        return tf.transpose(tensor, order)

    def from_channels_last(self, tensor):
        if self.cell.data_format == "channels_last":
            return tensor
        order = list(range(tensor.shape.rank))
        order.insert(tensor.shape.rank - self.cell.rank - 1, order.pop())
        return tf.transpose(tensor, order)

    def project(self, inputs):
        frames = _dropped(inputs, self.input_masks)
        z = self._convolve(
            [tf.reshape(t, [-1, *t.shape[2:]]) for t in frames],
            self._value(self.cell.kernel),
            strides=self.cell.strides,
            padding=self.cell.padding.upper(),
            dilations=self.cell.dilation_rate,
        )
        bias = self.input_bias()
        if bias is not None:
            z += self._value(bias)
        z = tf.reshape(z, [*sizes_of(inputs, [0, 1]), *z.shape[1:]])
        return tf.ensure_shape(z, [*inputs.shape[:2], *z.shape[2:]])

    def state_product(self, h):
        masked = _dropped(h, self.state_masks)
        return self._convolve(masked, self.kernel, padding="SAME")

    def state_gradient(self, dz):
        masks = self.state_masks or [None]
        parts = zip(*(tf.split(t, len(masks), -1) for t in (dz, self.kernel)))
        shape = tf.stack([*sizes_of(dz)[:-1], self.cell.filters])
        gradients = [
            _apply_mask(
                tf.nn.conv_transpose(d, kernel, shape, 1, padding="SAME"), mask
            )
            for (d, kernel), mask in zip(parts, masks)
        ]
        return tf.add_n(gradients)

    def _convolve(self, tensors, kernel, **kwargs):
        kernels = tf.split(kernel, len(tensors), -1)
        outputs = [
            tf.nn.convolution(t, k, **kwargs) for t, k in zip(tensors, kernels)
        ]
        return tf.concat(outputs, -1)

    def gradients(self, inputs, hidden, extras, *, dz):
        cell = self.cell
        ones = (1,) * cell.rank
        kernel_factor = _kernel_factor(
            inputs,
            dz,
            cell.kernel,
            strides=cell.strides,
            dilation=cell.dilation_rate,
            padding=cell.padding,
        )
        yield cell.kernel, kernel_factor
        recurrent_factor = _kernel_factor(
            hidden,
            dz,
            cell.recurrent_kernel,
            strides=ones,
            dilation=ones,
            padding="same",
        )
        yield cell.recurrent_kernel, recurrent_factor
        if cell.use_bias:
            yield cell.bias, Sum(dz)


def _kernel_factor(inputs, dz, kernel, *, strides, dilation, padding):
    """Return the factor of a kernel; steps are one more dimension."""
    count = len(inputs)
    shape = [*kernel.shape[:-1], kernel.shape[-1] // count]
    sizes = sizes_of(inputs[0])[1:-1]
    windows = Windows.of(
        sizes,
        (1, *shape[:-2]),
        (1, *strides),
        dilation=(1, *dilation),
        padding=padding,
    )
    parts = [
        Patches(x, d, windows, shape=shape)
        for x, d in zip(inputs, tf.split(dz, count, -1))
    ]
    return parts[0] if count == 1 else Columns(parts)
