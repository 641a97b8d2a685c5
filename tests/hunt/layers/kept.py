"""Samples that meet through what a variable or table keeps."""

import tensorflow as tf

from tests.hunt.layers.base import Own


class KeepsTogether(Own):
    """A variable is given something of all samples, and read again."""

    FORMS = (
        "mean",
        "added",
        "in_branch",
        "in_loop",
        "in_function",
        "row",
        "scattered",
        "largest",
        "queued",
    )

    def build(self, shape):
        self.k = self.weight(shape[-1])
        self.kept = tf.Variable(tf.fill([shape[-1]], 0.1), trainable=False)
        self.queue = tf.queue.FIFOQueue(9, [tf.float32], [[shape[-1]]])

    def call(self, x):
        kept, k = self.kept, tf.convert_to_tensor(self.k)
        rows = tf.reshape(x, [-1, x.shape[-1]])
        mean = tf.cast(tf.reduce_mean(rows, 0), kept.dtype)

        def assign():
            kept.assign(mean)
            return tf.constant(True)

        def turn(i, total):
            kept.assign_add(mean)
            return i + 1, total

        def queue():
            self.queue.enqueue(mean)
            kept.assign(self.queue.dequeue())

        {
            "mean": lambda: kept.assign(0.5 * kept + mean),
            "added": lambda: kept.assign_add(mean),
            "in_branch": lambda: tf.cond(
                tf.reduce_sum(k) < 9.0, assign, lambda: tf.constant(False)
            ),
            "in_loop": lambda: tf.while_loop(
                lambda i, _: i < 2, turn, (0, 0.0)
            ),
            "in_function": lambda: tf.function(assign)(),
            "row": lambda: kept.assign(tf.cast(rows[0], kept.dtype)),
            "queued": queue,
            "scattered": lambda: kept.scatter_nd_update([[0]], mean[:1]),
            "largest": lambda: kept.assign(
                tf.cast(tf.reduce_max(rows, 0), kept.dtype)
            ),
        }[self.form]()
        return (x + tf.cast(kept, x.dtype)) * k
