"""What samples give together against what some of them give alone.

A split is (how many are together, which of them are alone, which are left).
"""

import tensorflow as tf

from keras_pergrad.replay import close


def is_batch(a, b, split):
    """Whether the first axis of what came twice is that of the samples."""
    size, alone, _ = split
    return (
        bool(a.shape.rank and b.shape.rank)
        and (a.shape[0], b.shape[0]) == (size, len(alone))
        and a.shape[1:] == b.shape[1:]
    )


def is_sideways(a, b, split):
    """Whether a call has a tensor whose first axis is another."""
    inputs = any(
        x.shape != y.shape and not is_batch(x, y, split)
        for x, y in zip(a.inputs, b.inputs)
    )
    return inputs or any(
        x.dtype.is_floating and not is_batch(x, y, split)
        for x, y in zip(a.outputs, b.outputs)
    )


def mixer(whole, some, rows, split):
    """The place of the layer inside which samples first meet, or None."""
    for a, b in zip(whole, some):
        if _same(a.outputs, b.outputs, rows, split):
            continue
        inside = _same(a.inputs, b.inputs, rows, split)
        return a.place if inside or a.parent is None else a.parent
    return None


def _same(first, second, rows, split):
    return all(
        bool(close(b, tf.gather(a, rows)))
        for a, b in zip(first, second)
        if is_batch(a, b, split)
    )


def coupling_loss(whole, some, rest, split):
    """The place of a layer whose loss is neither sum nor mean, or None."""
    size, alone, others = split
    for (place, a), (_, b), (_, c) in zip(
        whole.losses, some.losses, rest.losses
    ):
        precise = a.dtype in (tf.float32, tf.float64)
        a, b, c = value(a), value(b), value(c)
        limit = abs(a) + abs(b) + abs(c) + 1e-3
        limit *= 1e-4 if precise else 0.05
        is_sum = abs(a - b - c) <= limit
        mean = (len(alone) * b + len(others) * c) / size
        if not is_sum and abs(a - mean) > limit:
            return place
    return None


def value(loss):
    """A loss as a number."""
    return float(tf.reduce_sum(loss))
