"""Layers that add a loss: a sum over the samples, or a mean."""

from keras import ops

from tests.hunt.layers.base import Own


class AddsLoss(Own):
    """`added` says what the loss is over the batch; the oracle reads it."""

    FORMS = (
        "mean",
        "sum",
        "zero",
        "behind",
        "before",
        "annealed",
        "two",
        "mean_entries",
    )

    def build(self, shape):
        self.added = "sum" if self.form in ("sum", "zero") else "mean"
        self.k = self.weight(shape[-1])
        self.count = self.weight(scale=0.0, trainable=False)
        self.axes = list(range(1, len(shape)))

    def call(self, x, training=None):
        each = ops.sum(x**2, self.axes)
        if self.form == "sum":
            self.add_loss(0.1 * ops.sum(each))
        elif self.form == "zero":
            self.add_loss(0.1 * ops.sum(x - ops.stop_gradient(x)))
        elif self.form == "behind":
            x = x * self.k
            self.add_loss(0.1 * ops.mean(ops.sum(x**2, self.axes)))
        elif self.form == "annealed":
            if training:
                self.count.assign_add(1.0)
            share = ops.cast(self.count / 10, x.dtype)
            self.add_loss(share * ops.mean(each))
        elif self.form == "two":
            self.add_loss(0.1 * ops.mean(each))
            self.add_loss(0.2 * ops.mean(ops.abs(x + 0.1)))
        elif self.form == "mean_entries":
            self.add_loss(0.1 * ops.mean(x**2))
        else:
            self.add_loss(0.1 * ops.mean(each))
        return x if self.form == "behind" else x * self.k
