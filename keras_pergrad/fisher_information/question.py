"""The sums of one batch, as one traced function."""

import dataclasses
import weakref

import numpy as np
import tensorflow as tf

from keras_pergrad.data_passes import of_batch
from keras_pergrad.fisher_information.likelihoods import (
    NO_CHANCES,
    Likelihood,
    NoLikelihood,
)
from keras_pergrad.keras_internals.batches import first_tensor, ranks
from keras_pergrad.keras_internals.losses import additional_losses, total_loss
from keras_pergrad.keras_internals.model_parts import build_symbolically
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
        as_loss: whether positions count as in n times the compiled loss;
            else each counts as one. Drawn are signs then (`signed`).
        adds_up: whether the compiled loss is a sum over samples, no mean.
    """

    kind: str
    likelihoods: tuple[Likelihood | None, ...] | None
    sampled: bool
    training: bool
    as_loss: bool = False
    adds_up: bool = False

    def trace(self, model):
        """Return a function of (x, y, sample_weight, seed, *more)."""
        reference = weakref.ref(model)

        @tf.function(autograph=False, reduce_retracing=True)
        def function(x, y, sample_weight, seed, *more):
            model = reference()
            with SetApart(model) as apart:
                data = x, y, sample_weight
                answers = self._answers(model, data, seed, more)
            return apart.merged(answers)

        return function

    def _answers(self, model, batch, seed, more):
        x, y, sample_weight = batch

        def loss(model, x, y, y_pred, sample_weight, training):
            if self.likelihoods is None:
                return total_loss(model, x, y, y_pred, None, training)
            if additional_losses(model):
                raise NoLikelihood("terms of add_loss")
            return self._negative_log(y, y_pred, sample_weight, seed)

        traced = TracedStep(model, batch, self.training, loss)
        with traced:
            y_pred = traced.forward(x)
            value = loss(model, x, y, y_pred, sample_weight, self.training)
        factors = traced.sample_gradients(value)
        scale = 1
        if self.likelihoods is None and not self.adds_up:
            n = tf.shape(first_tensor(x))[0]
            scale = tf.square(tf.cast(n, tf.float32))
        return self.of_factors(factors, scale, *more)

    def of_factors(self, factors, scale):
        """Return the sums of each variable; `scale`: of squares."""
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
        weights = tf.nest.flatten(sample_weight)
        if len(weights) == 1:
            weights *= len(outputs)
        if not self.sampled:
            given = self._labels(y, y_pred)
        parts = []
        for k, (one, output) in enumerate(zip(self.likelihoods or (), outputs)):
            if one is None:
                continue
            labels = given[k]
            if self.sampled:
                draw = one.signed if self.as_loss else one.draw
                labels = draw(output, seed + tf.constant([0, k], seed.dtype))
            if self.as_loss:
                shares = tf.stop_gradient(one.shares(output, weights[k]))
                # Gradients are squared.
                values = tf.sqrt(shares) * one.by_position(labels, output)
                parts.append(tf.reduce_sum(values))
            else:
                parts.append(one.negative_log(labels, output))
        values = tf.add_n(parts)
        if self.as_loss:
            return values
        if sample_weight is not None:
            weight = tf.cast(tf.reshape(sample_weight, [-1]), values.dtype)
            values *= tf.sqrt(weight)
        return tf.reduce_sum(values)

    def _labels(self, y, y_pred):
        """Return the labels of each flat output."""
        if not tf.nest.is_nested(y_pred):
            return tf.nest.flatten(y)[:1]
        if isinstance(y_pred, dict) and isinstance(y, dict):
            return tf.nest.flatten({k: y.get(k) for k in y_pred})
        return tf.nest.flatten(y)


def asked(question, model, batch, seed, *more):
    """Return the sums of a batch; the function is traced once."""
    build = build_symbolically if question.likelihoods is None else _built
    try:
        return of_batch(
            model,
            batch,
            (question, ranks(batch)),
            lambda: question.trace(model),
            question.training,
            (seed, *more),
            build,
        )
    except tf.errors.InvalidArgumentError as error:
        if NO_CHANCES not in str(error):
            raise
        raise ValueError(f"Model {model.name!r}: {NO_CHANCES}") from None


def _built(model, batch):
    """Let a model be; its loss is not called, and has no targets."""
    if not model.built:
        model(batch[0])


def require_finite(model, answers, samples, n):
    """Refuse gradients with NaN or infinity, and name their batch."""
    variables = model.trainable_variables
    for variable, answer in zip(variables, answers):
        parts = tf.nest.flatten(answer)[:2]
        if all(p is None or np.isfinite(np.sum(p)) for p in parts):
            continue
        raise ValueError(
            f"The squared gradients of {variable.path!r} are not finite in the "
            f"batch of samples {samples} to {samples + n - 1}. Look for NaN or "
            "infinity in x[i] and y[i] of these samples, or for a loss that "
            "overflows on them: per_sample_norms names the samples."
        )
