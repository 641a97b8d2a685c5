"""The first batches of a data stream, set aside without losing them."""

import functools

import tensorflow as tf


def set_aside(iterator, steps):
    """Take the batches of one call; return them and an iterator over them."""
    # It has the element spec of the first, so nothing is traced again.
    batches = []
    for _ in range(steps):
        try:
            batches.append(next(iterator))
        except (StopIteration, tf.errors.OutOfRangeError):
            break
    if not batches:
        return batches, iterator
    spec = iterator.element_spec
    single = [
        tf.data.Dataset.from_tensors(batch).map(_with(spec))
        for batch in batches
    ]
    dataset = functools.reduce(tf.data.Dataset.concatenate, single)
    return batches, iter(dataset)  # type: ignore[call-overload]


def _with(spec):
    """Return a function that drops the sizes that the spec leaves open."""

    def relax(*batch):
        batch = batch if isinstance(spec, tuple) else batch[0]
        return tf.nest.map_structure(_relax, spec, batch)

    return relax


def _relax(spec, tensor):
    if not isinstance(spec, tf.TensorSpec):
        return tensor
    return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=spec.shape)
