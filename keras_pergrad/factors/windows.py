"""The windows in which the taps of a convolution kernel meet its input."""

import dataclasses
import itertools
import math

import numpy as np
import tensorflow as tf

from keras_pergrad.factors.written_out import integers


@dataclasses.dataclass(frozen=True)
class Windows:
    """The geometry of a convolution over (n, *sizes, channels).

    Tap a of the kernel meets input pixel p·stride + a·dilation − before at
    position p, in every dimension. Tuples have one entry a dimension: a number,
    or a scalar tensor for what is not known when tracing.

    Attributes:
        kernel, strides, dilation: as Keras has them.
        sizes: the input's sizes.
        positions: how many positions the kernel takes.
        before, after: the zeros added around the input.

    Example:

    >>> from keras_pergrad import factors
    >>> factors.Windows.of((8,), (3,), (2,), (1,), "same").positions
    (4,)
    """

    kernel: tuple
    strides: tuple
    dilation: tuple
    sizes: tuple
    positions: tuple
    before: tuple
    after: tuple

    @classmethod
    def of(cls, sizes, kernel, strides, *, dilation, padding):
        """Return the windows of a padding: "valid", "same" or "causal"."""
        positions, before, after = [], [], []
        for size, k, s, d in zip(sizes, kernel, strides, dilation):
            kernel_extent = (k - 1) * d + 1
            if padding == "same":
                count = -(-size // s)
                zeros = at_least_zero((count - 1) * s + kernel_extent - size)
                leading_zeros = zeros // 2
            else:
                zeros = leading_zeros = (
                    kernel_extent - 1 if padding == "causal" else 0
                )
                count = (size + zeros - kernel_extent) // s + 1
            positions.append(count)
            before.append(leading_zeros)
            after.append(zeros - leading_zeros)
        return cls(
            *map(
                tuple,
                (kernel, strides, dilation, sizes, positions, before, after),
            )
        )

    @property
    def is_static(self):
        """Whether all sizes are known when tracing."""
        return all(
            isinstance(number, int)
            for name in ("sizes", "positions", "before", "after")
            for number in getattr(self, name)
        )

    @property
    def are_pixels(self):
        """Whether each pixel is a window: the kernel has one tap."""
        numbers = (*self.kernel, *self.strides)
        return self._is_tight and all(k == 1 for k in numbers)

    @property
    def _is_tight(self):
        """Whether there are no zeros around the input."""
        return all(
            isinstance(k, int) and not k for k in self.before + self.after
        )

    @property
    def has_same_padding(self):
        """Whether an op adds these zeros itself, if padding is "same"."""
        padded = Windows.of(
            self.sizes,
            self.kernel,
            strides=self.strides,
            dilation=self.dilation,
            padding="same",
        )
        return self.is_static and self == padded

    @property
    def rank(self):
        """How many dimensions it has."""
        return len(self.kernel)

    @property
    def taps(self):
        """How many taps the kernel has."""
        return math.prod(self.kernel)

    @property
    def count(self):
        """How many positions it takes."""
        return math.prod(self.positions)

    @property
    def padded_sizes(self):
        """The input's sizes with the zeros around it."""
        return tuple(
            a + size + b
            for a, size, b in zip(self.before, self.sizes, self.after)
        )

    @property
    def is_dilated(self):
        """Whether there is room between its taps."""
        return any(d > 1 for d in self.dilation)

    def pad(self, tensor):
        """Return `tensor` with the zeros around it."""
        if self._is_tight:
            return tensor
        zeros = [(0, 0), *zip(self.before, self.after), (0, 0)]
        return self._with_static_sizes(
            tf.pad(tensor, zeros), self.padded_sizes, tensor
        )

    def _with_static_sizes(self, tensor, sizes, source):
        """Set what is known of these sizes in a tensor's static shape."""
        sizes = [k if isinstance(k, int) else None for k in sizes]
        tensor.set_shape([source.shape[0], *sizes, source.shape[-1]])
        return tensor

    def offsets(self):
        """Return the first pixel of each tap in the padded input, in order."""
        return itertools.product(
            *(
                [a * d for a in range(k)]
                for k, d in zip(self.kernel, self.dilation)
            )
        )

    def tap_slice(self, dimension, offset):
        """Return the slice of the padded input for a tap, in a dimension."""
        stride = self.strides[dimension]
        last = offset + (self.positions[dimension] - 1) * stride
        return slice(offset, last + 1, stride)

    def slices(self, padded):
        """Yield the pixels that each tap meets, (n, T positions, channels)."""
        for pixels in self.blocks(padded):
            yield tf.reshape(pixels, integers(-1, self.count, padded.shape[-1]))

    def blocks(self, padded):
        """Yield the pixels that each tap meets, (n, *positions, channels)."""
        if self.are_pixels:
            yield padded
            return
        if max(self.strides) == 1:
            # An op with fewer inputs than that of a slice with strides.
            size = integers(-1, *self.positions, padded.shape[-1])
            for offset in self.offsets():
                pixels = tf.slice(padded, integers(0, *offset, 0), size)
                yield self._with_static_sizes(pixels, self.positions, padded)
            return
        for offset in self.offsets():
            index = [self.tap_slice(i, a) for i, a in enumerate(offset)]
            yield self._with_static_sizes(
                padded[(slice(None), *index)], self.positions, padded
            )

    def indices(self):
        """Return the pixels that taps meet, (T, K), in the flat input."""
        firsts = np.indices(self.positions).reshape(self.rank, -1)
        firsts *= np.array(self.strides)[:, None]
        taps = np.array(list(self.offsets())).T
        pixels = firsts[:, :, None] + taps[:, None, :]
        return np.ravel_multi_index(list(pixels), self.padded_sizes)

    def without_whole(self):
        """Return the windows without leading dimensions that act as samples.

        There the kernel has one tap and takes every position, as over frames.
        """
        windows = self
        while windows.rank > 1 and all(
            isinstance(values[0], int) and values[0] == trivial
            for values, trivial in (
                (windows.kernel, 1),
                (windows.strides, 1),
                (windows.before, 0),
                (windows.after, 0),
            )
        ):
            windows = Windows(
                *(values[1:] for values in vars(windows).values())
            )
        return windows

    def of_rows(self):
        """Return the same windows, with the taps of a row as channels."""
        no_zeros = (0,) * self.rank
        return dataclasses.replace(
            self,
            kernel=(*self.kernel[:-1], 1),
            strides=(*self.strides[:-1], 1),
            dilation=(*self.dilation[:-1], 1),
            sizes=(*self.padded_sizes[:-1], self.positions[-1]),
            before=no_zeros,
            after=no_zeros,
        )

    def of_blocks(self):
        """Return windows without strides, on blocks of pixels as channels.

        A block has as many pixels as the strides. Where they do not divide
        the kernel, the windows have taps that it has not.
        """
        ones = (1,) * self.rank
        kernel = tuple(-(-k // s) for k, s in zip(self.kernel, self.strides))
        return dataclasses.replace(
            self,
            kernel=kernel,
            strides=ones,
            sizes=tuple(p + k - 1 for p, k in zip(self.positions, kernel)),
            before=(0,) * self.rank,
            after=(0,) * self.rank,
        )

    def as_blocks(self, tensor):
        """Return (n, *sizes, channels) as the input of `of_blocks`."""
        blocks, channels = self.of_blocks().sizes, tensor.shape[-1]
        sizes = [b * s for b, s in zip(blocks, self.strides)]
        padding = [
            (before, max(size - before - size_now, 0))
            for before, size_now, size in zip(self.before, self.sizes, sizes)
        ]
        tensor = tf.pad(tensor, [(0, 0), *padding, (0, 0)])
        tensor = tensor[(slice(None), *(slice(size) for size in sizes))]
        split = itertools.chain.from_iterable(zip(blocks, self.strides))
        tensor = tf.reshape(tensor, integers(-1, *split, channels))
        last = 2 * self.rank + 1
        order = [0, *range(1, last, 2), *range(2, last, 2), last]
        tensor = tf.transpose(tensor, integers(*order))
        channels *= math.prod(self.strides)
        return tf.reshape(tensor, integers(-1, *blocks, channels))

    def from_blocks(self, gradients, channels):
        """Return gradients of the kernel from those of `of_blocks`' kernel.

        Args:
            gradients: (n, taps·channels of a block, outputs).
            channels: those of a pixel.
        """
        kernel, outputs = self.of_blocks().kernel, gradients.shape[-1]
        shape = integers(-1, *kernel, *self.strides, channels, outputs)
        gradients = tf.reshape(gradients, shape)
        last = 2 * self.rank + 1
        pairs = zip(range(1, self.rank + 1), range(self.rank + 1, last))
        order = [0, *itertools.chain.from_iterable(pairs), last, last + 1]
        gradients = tf.transpose(gradients, integers(*order))
        sizes = [k * s for k, s in zip(kernel, self.strides)]
        shape = integers(-1, *sizes, channels, outputs)
        gradients = tf.reshape(gradients, shape)
        index = (slice(None), *(slice(k) for k in self.kernel))
        shape = integers(-1, self.taps * channels, outputs)
        return tf.reshape(gradients[index], shape)


def at_least_zero(number):
    """Return a number or a scalar tensor, but at least zero."""
    return max(number, 0) if isinstance(number, int) else tf.maximum(number, 0)
