"""A batch, split along its first axis into microbatches."""

import operator

import tensorflow as tf

from keras_pergrad.keras_internals.batches import (
    first_tensor,
    map_tensors,
    refilled,
)

#: More samples than any batch has, so a batch is one microbatch.
MOST = 2**24


def is_one(batch, size):
    """Return whether a batch is surely a single microbatch."""
    rows = first_tensor(batch).shape[0]
    return rows is not None and rows <= size


def sum_over(function, batch, size):
    """Return the sum over microbatches of `size` samples, the last smaller."""
    # In a graph the function is traced once for all full ones, and once for the
    # last. Its results have fixed shapes but for axes as long as the batch.
    # Size None: all at once, also where the batch has no sample.
    if size is None or is_one(batch, size):
        return function(*batch)
    rows = first_tensor(batch).shape[0]
    if tf.executing_eagerly():
        return _sum_eagerly(function, batch, size, rows)
    flat = _Flat(function, batch)
    count = tf.shape(flat.tensors[0])[0] if rows is None else rows
    full, rest = count // size, count % size
    totals = _sum_full(flat, full, size, count)
    if rows is None:
        totals = tf.cond(
            rest > 0, lambda: flat.add_rest(totals, count, rest), lambda: totals
        )
    elif rest:
        totals = flat.add_rest(totals, count, rest)
    return refilled(flat.result, totals)


def _sum_eagerly(function, batch, size, rows):
    total = None
    for start in range(0, rows, size):
        part = operator.itemgetter(slice(start, start + size))
        sums = function(*map_tensors(part, batch))
        total = sums if total is None else _add(total, sums)
    return total


def _add(a, b):
    # Gradients of look-ups are `tf.IndexedSlices`, which know no "+".
    return tf.nest.map_structure(
        lambda s, t: None if s is None else tf.convert_to_tensor(s) + t, a, b
    )


def _sum_full(flat, full, size, count):
    """Return the sum over the microbatches of full size, in a loop."""
    specs = [tf.TensorSpec([size, *t.shape[1:]], t.dtype) for t in flat.tensors]
    # Traced before the loop, which must know the shapes of the results.
    traced = tf.function(flat, autograph=False).get_concrete_function(*specs)

    def body(i, totals):
        # A gather has a fixed size, and may be traced for a batch that is
        # smaller (where it is never run).
        index = i * size + tf.range(size)
        sums = traced(*(tf.gather(t, index) for t in flat.tensors))
        return i + 1, [a + b for a, b in zip(totals, sums)]

    zeros = [
        tf.zeros([count if d is None else d for d in t.shape], t.dtype)
        for t in traced.structured_outputs
    ]
    _, totals = tf.while_loop(
        lambda i, _: i < full,
        body,
        (tf.constant(0), zeros),
        parallel_iterations=1,
    )
    return totals


class _Flat:
    """A function of a batch as a function of flat lists without None."""

    def __init__(self, function, batch):
        self.function = function
        self.batch = batch
        self.tensors = [t for t in tf.nest.flatten(batch) if t is not None]
        self.result = None

    def __call__(self, *tensors):
        self.result = self.function(*refilled(self.batch, tensors))
        # Outside of the trace `tf.IndexedSlices` would not know their shape.
        return [
            tf.convert_to_tensor(t)
            for t in tf.nest.flatten(self.result)
            if t is not None
        ]

    def add_rest(self, totals, count, rest):
        # At least one sample, so no branch is compiled for zero samples.
        first = count - tf.maximum(rest, 1) if tf.is_tensor(rest) else -rest
        sums = self(*(t[first:] for t in self.tensors))
        return [a + b for a, b in zip(totals, sums)]
