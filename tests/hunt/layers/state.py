"""Layers that keep something from step to step, and that add losses."""

import keras
import tensorflow as tf
from keras import ops

from tests.hunt.layers.base import Own, repeated


class Keeps(Own, k="d"):
    """Updates a variable that is not trained, in training."""

    def build(self, shape):
        super().build(shape)
        self.count = self.weight(scale=0.0, trainable=False)
        self.plain = tf.Variable(0.0, trainable=False)
        self.row = tf.Variable([0.0, 0.0], trainable=False)
        self.mean = self.weight(shape[-1], scale=0.0, trainable=False)
        # Their values depend on how the batch is cut into microbatches.
        self.of_batch = self.form in ("moving", "counter_of_samples")

    def call(self, x, training=None):
        if self.form == "after":
            x = ops.tanh(x) * (1 + self.count / 10)
        if training:
            super().call(x)
        if self.form == "annealed":
            x = x * ops.cast(self.count / 10, x.dtype)
        return x * self.k

    def forms(self, x, training):
        axes = list(range(len(x.shape) - 1))

        def moving():
            now = ops.cast(ops.mean(x, axes), self.mean.dtype)
            self.mean.assign(0.9 * self.mean + 0.1 * now)

        def count(by=1.0):
            self.count.assign_add(ops.cast(by, self.count.dtype))

        return {
            "counter": count,
            "plain": lambda: self.plain.assign_add(1.0),
            "annealed": count,
            "moving": moving,
            "assigned": lambda: self.k.assign(ops.sign(self.k) * 0.5),
            "counter_of_samples": lambda: count(ops.shape(x)[0]),
            "after": count,
            "part": lambda: self.row[:1].assign([1.0]),
        }


class KeepsTogether(Own, k="d"):
    """A variable is given something of all samples, and read again."""

    def build(self, shape):
        super().build(shape)
        self.kept = tf.Variable(tf.fill([shape[-1]], 0.1), trainable=False)
        self.queue = tf.queue.FIFOQueue(9, [tf.float32], [[shape[-1]]])

    def call(self, x, training=None):
        super().call(x)
        return (x + tf.cast(self.kept, x.dtype)) * self.k

    def forms(self, x, training):
        kept, k = self.kept, self.k
        rows = tf.reshape(x, [-1, x.shape[-1]])
        mean = tf.cast(tf.reduce_mean(rows, 0), kept.dtype)

        def assign():
            kept.assign(mean)
            return tf.constant(True)

        def added(h):
            kept.assign_add(mean)
            return h

        def queue():
            self.queue.enqueue(mean)
            kept.assign(self.queue.dequeue())

        def given(values):
            kept.assign(tf.cast(values, kept.dtype))

        return {
            "mean": lambda: given(0.5 * kept + mean),
            "added": lambda: added(x),
            "in_branch": lambda: tf.cond(
                tf.reduce_sum(k) < 9.0, assign, lambda: tf.constant(False)
            ),
            "in_loop": lambda: repeated(0.0, added),
            "in_function": lambda: tf.function(assign)(),
            "row": lambda: given(rows[0]),
            "scattered": lambda: kept.scatter_nd_update([[0]], mean[:1]),
            "largest": lambda: given(tf.reduce_max(rows, 0)),
            "queued": queue,
        }


class AddsLoss(Own, k="d"):
    """`added` says what the loss is over the batch; the oracle reads it."""

    def build(self, shape):
        super().build(shape)
        self.added = "sum" if self.form in ("sum", "zero") else "mean"
        self.count = self.weight(scale=0.0, trainable=False)

    def call(self, x, training=None):
        h = x * self.k
        of = h if self.form == "behind" else x
        for loss in self.forms(of, training)[self.form]():
            self.add_loss(loss)
        return h

    def forms(self, x, training):
        mean = ops.mean(ops.sum(x**2, list(range(1, len(x.shape)))))

        def annealed():
            if training:
                self.count.assign_add(1.0)
            return [ops.cast(self.count / 10, x.dtype) * mean]

        return {
            "mean": lambda: [0.1 * mean],
            "sum": lambda: [0.1 * ops.sum(x**2)],
            "zero": lambda: [0.1 * ops.sum(x - ops.stop_gradient(x))],
            "behind": lambda: [0.1 * mean],
            "annealed": annealed,
            "two": lambda: [0.1 * mean, 0.2 * ops.mean(ops.abs(x + 0.1))],
            "mean_entries": lambda: [0.1 * ops.mean(x**2)],
        }


class Unused(Own, k="d", other="2 2"):
    """One weight does not reach the output, one does so times zero."""

    def build(self, shape):
        super().build(shape)
        self.fixed = self.weight(shape[-1], trainable=False)

    def forms(self, x, training):
        return {
            "unused": lambda: x * self.k,
            "zero": lambda: x * self.k + 0 * self.other[0, 0],
            "frozen": lambda: x * self.fixed + self.k,
            "stopped": lambda: (
                x * self.k + ops.stop_gradient(ops.sum(self.other))
            ),
        }


class Penalised(Own, a="d d"):
    """Weights with a regulariser, also one that reads another variable."""

    def build(self, shape):
        super().build(shape)

        def near(k):
            return 0.5 * ops.sum((k - self.a) ** 2)

        penalty = keras.regularizers.L2(0.1) if self.form == "own" else near
        self.k = self.add_weight(shape=[shape[-1]] * 2, regularizer=penalty)

    def forms(self, x, training):
        h = ops.matmul(x, self.k)
        return {
            "own": lambda: h + ops.matmul(x, self.a),
            "other": lambda: h,
            "both": lambda: h + ops.matmul(x, self.a),
        }
