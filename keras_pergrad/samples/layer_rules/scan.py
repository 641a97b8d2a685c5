"""Steps along the time axis, unrolled or in a loop.

Unrolled is faster while the graph stays small: there is no loop bookkeeping,
and work that the next step does not wait for runs on another core. XLA
compiles the body of a loop once, so XLA gets the loop.
"""

import tensorflow as tf

from keras_pergrad.keras_internals.xla import in_xla

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
