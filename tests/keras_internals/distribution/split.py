"""One device split in two logical ones, and the strategy on both."""

import tensorflow as tf

#: Megabytes of a card that either half takes.
HALF_MB = 3_000


def split_device(kind):
    """Split the first device, before anything else of TensorFlow runs.

    Args:
        kind: "CPU" or "GPU".

    Returns:
        A function that makes the `MirroredStrategy` on both halves.
    """
    limit = HALF_MB if kind == "GPU" else None
    half = tf.config.LogicalDeviceConfiguration(memory_limit=limit)
    device = tf.config.list_physical_devices(kind)[0]
    tf.config.set_logical_device_configuration(device, [half] * 2)

    def strategy():
        names = [f"{kind}:0", f"{kind}:1"]
        # NCCL takes no two replicas on one card.
        one = tf.distribute.ReductionToOneDevice() if limit else None
        return tf.distribute.MirroredStrategy(names, one)

    return strategy
