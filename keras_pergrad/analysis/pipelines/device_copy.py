"""The copy of a batch to the accelerator, timed inside the train function."""

import tensorflow as tf

from keras_pergrad.common.devices import accelerators
from keras_pergrad.keras_internals.op_marks import keep_op
from keras_pergrad.keras_internals.tf_context import device_here


def accelerator():
    """Return the device that steps run on, such as "GPU:0"; None: the CPU."""
    devices = accelerators()
    return devices[0].name if devices else None


def has_iterators(device):
    """Return whether TensorFlow has iterators for an accelerator."""
    return device is not None and device.startswith("GPU:")


def prefetching(dataset, device):
    """Return the dataset with batches copied to `device` ahead, or None."""
    if not has_iterators(device):
        return None
    return dataset.apply(tf.data.experimental.prefetch_to_device(device))


def copied_to(iterator):
    """Return the one accelerator that batches must be copied to, or None."""
    if "CPU" in device_here().upper():
        return None
    held = tf.nest.flatten(iterator, expand_composites=True)
    is_one = isinstance(iterator, tf.data.Iterator)
    if is_one and all(part.device.endswith("CPU:0") for part in held):
        return accelerator()
    return None


def time_on_device(batch, device):
    """Return, in a graph, when a batch is on the accelerator; or None."""
    parts = [
        part
        for part in tf.nest.flatten(batch, expand_composites=True)
        if part.dtype not in (tf.string, tf.variant, tf.resource)
    ]
    if device is None or not parts:
        return None
    # The step takes the same copy: TensorFlow sends a tensor there once.
    with tf.device(device):
        copies = [tf.identity(part) for part in parts]
    for copied in copies:
        # TensorFlow would drop an op that only a time stamp waits for.
        keep_op(copied.op)
    with tf.control_dependencies(copies), tf.device("CPU:0"):
        return tf.timestamp()
