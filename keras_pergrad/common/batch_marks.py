"""Marks of data sets, and batches set aside."""

import functools

import tensorflow as tf

_SOURCE = "keras_pergrad_source"


def drawn_from(dataset, source):
    """Mark a dataset as drawn by this package from a source of this name."""
    setattr(dataset, _SOURCE, source)
    return dataset


def source_of_draws(data):
    """Return the name of the source that data is drawn from, or None."""
    return getattr(data, _SOURCE, None)


def peek_batches(iterator, steps):
    """Take the batches of one call; return them and an iterator over them."""
    # The new iterator has the element spec of the old one, so that a train
    # function traced for the old one is not traced again.
    batches = []
    for _ in range(steps):
        try:
            batches.append(next(iterator))
        except (StopIteration, tf.errors.OutOfRangeError):
            break
    if not batches:
        return batches, iterator
    spec = iterator.element_spec
    datasets = [
        tf.data.Dataset.from_tensors(batch).map(_shape_relaxer(spec))
        for batch in batches
    ]
    dataset = functools.reduce(tf.data.Dataset.concatenate, datasets)
    return batches, iter(dataset)  # type: ignore[call-overload]


def _shape_relaxer(spec):
    """Return a function that drops the sizes that the spec leaves open."""

    def relax(*batch):
        batch = batch if isinstance(spec, tuple) else batch[0]
        return tf.nest.map_structure(_relax_shape, spec, batch)

    return relax


def _relax_shape(spec, tensor):
    if not isinstance(spec, tf.TensorSpec):
        return tensor
    # This op passes the value on and makes its static shape less exact.
    return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=spec.shape)
