"""The sums of one batch, as one traced function."""

import dataclasses
import weakref

import tensorflow as tf

from keras_pergrad.fisher_information.likelihoods import (
    Likelihood,
    NoLikelihood,
)
from keras_pergrad.keras_internals.batches import first_tensor
from keras_pergrad.keras_internals.losses import additional_losses, total_loss
from keras_pergrad.keras_internals.overwritten import SetApart
from keras_pergrad.samples import TracedStep


@dataclasses.dataclass(frozen=True)
class Question:
    """Sums over the samples of a batch, of gradients of a log-likelihood.

    Attributes:
        kind: "diagonal" or "kfac".
        likelihoods: one for each flat output, or None for an output without a
            loss; None instead: the compiled loss.
        sampled: whether labels are drawn.
        training: whether layers act as in training.
    """

    kind: str
    likelihoods: tuple[Likelihood | None, ...] | None
    sampled: bool
    training: bool

    def trace(self, model):
        """Return a function of (x, y, sample_weight, seed)."""
        reference = weakref.ref(model)

        @tf.function(autograph=False, reduce_retracing=True)
        def function(x, y, sample_weight, seed):
            model = reference()
            with SetApart(model) as apart:
                answers = self._answers(model, x, y, sample_weight, seed)
            return apart.merged(answers)

        return function

    def _answers(self, model, x, y, sample_weight, seed):
        def loss(model, x, y, y_pred, sample_weight, training):
            if self.likelihoods is None:
                return total_loss(model, x, y, y_pred, None, training)
            if additional_losses(model):
                raise NoLikelihood("terms of add_loss")
            return self._negative_log(y, y_pred, sample_weight, seed)

        batch = x, y, sample_weight
        traced = TracedStep(model, batch, self.training, loss)
        with traced:
            y_pred = traced.forward(x)
            value = loss(model, x, y, y_pred, sample_weight, self.training)
        factors = traced.sample_gradients(value)
        scale = 1
        if self.likelihoods is None:
            n = tf.shape(first_tensor(x))[0]
            scale = tf.square(tf.cast(n, tf.float32))
        return [factor and self._of(factor, scale) for factor in factors]

    def _of(self, factor, scale):
        if self.kind == "kfac":
            inputs, outputs, count, axes = factor.kronecker()
            outputs *= tf.cast(scale, outputs.dtype)
            return inputs, outputs, count, tf.constant(axes, tf.int32)
        total = tf.convert_to_tensor(factor.sum_of_squares())
        return total * tf.cast(scale, total.dtype)

    def _negative_log(self, y, y_pred, sample_weight, seed):
        """Return the sum of √weight · −log p over the samples."""
        outputs = tf.nest.flatten(y_pred)
        given = [None] * len(outputs)
        if not self.sampled:
            given = self._labels(y, y_pred)
        parts = []
        for k, (one, output) in enumerate(zip(self.likelihoods or (), outputs)):
            if one is None:
                continue
            labels = given[k]
            if self.sampled:
                own = tf.constant([0, k], seed.dtype)
                labels = one.draw(output, seed + own)
            parts.append(one.negative_log(labels, output))
        values = tf.add_n(parts)
        if sample_weight is not None:
            weights = tf.cast(tf.reshape(sample_weight, [-1]), values.dtype)
            # Gradients are squared.
            values *= tf.sqrt(weights)
        return tf.reduce_sum(values)

    def _labels(self, y, y_pred):
        """Return the labels of each flat output."""
        if not tf.nest.is_nested(y_pred):
            return tf.nest.flatten(y)[:1]
        if isinstance(y_pred, dict) and isinstance(y, dict):
            return tf.nest.flatten({k: y.get(k) for k in y_pred})
        return tf.nest.flatten(y)
