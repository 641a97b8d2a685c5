"""The rounding of a sample's product alone and in its batch, without Keras.

On a GPU with TF32 the sizes of a product choose its algorithm, and with it how
many bits of a factor count. `gradient_mode="per_sample"` allows for that. Not
yet run on a GPU; on a CPU all differences are below 1e-5.

    python benchmarks/tf32_of_one_sample.py
"""

import numpy as np
import tensorflow as tf


def largest_difference(jit, tf32, sizes=(64, 288), units=10):
    """Return the largest difference, relative to the largest output."""
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=sizes), tf.float32)
    w = tf.constant(rng.normal(size=(sizes[1], units)), tf.float32)

    @tf.function(jit_compile=jit)
    def whole(x, w):
        return x @ w

    @tf.function(jit_compile=jit)
    def one_by_one(x, w):
        def step(i, rows):
            row = tf.gather(x, tf.reshape(i, [1])) @ w
            index = tf.reshape(i, [1, 1])
            return i + 1, tf.tensor_scatter_nd_update(rows, index, row)

        rows = tf.zeros([sizes[0], units])
        return tf.while_loop(
            lambda i, _: i < sizes[0], step, (tf.constant(0), rows)
        )[1]

    batch = whole(x, w)
    error = tf.reduce_max(tf.abs(batch - one_by_one(x, w)))
    return float(error / tf.reduce_max(tf.abs(batch)))


if __name__ == "__main__":
    print(tf.config.list_physical_devices("GPU") or "no GPU")
    for jit in (False, True):
        for tf32 in (True, False):
            error = largest_difference(jit, tf32)
            print(f"XLA {jit!s:5} TF32 {tf32!s:5} {error:.1e}")
