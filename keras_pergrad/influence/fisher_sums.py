"""The sums of a Fisher information over one batch, in one traced function."""

import dataclasses
import weakref

import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import first_tensor, ranks
from keras_pergrad.functions.data_passes import run_on_batch
from keras_pergrad.influence.likelihoods import (
    NOT_PROBABILITIES,
    Likelihood,
    NoLikelihood,
)
from keras_pergrad.influence.sides import kronecker
from keras_pergrad.keras_internals.losses.losses import (
    additional_losses,
    total_loss,
)
from keras_pergrad.keras_internals.models.parts import build_symbolically
from keras_pergrad.uses import TracedStep


@dataclasses.dataclass(frozen=True)
class FisherStatistic:
    """Sums over the samples of a batch, of gradients of a log-likelihood.

    Attributes:
        kind: "diagonal" or "kfac".
        likelihoods: one for each flat output, or None for an output without a
            loss; None instead: the compiled loss.
        sampled: whether labels are drawn.
        training: whether layers act as in training.
        as_loss: whether positions count as in n times the compiled loss, and
            labels have random signs (`draw_signed`); else each position
            counts as one.
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
            data = x, y, sample_weight
            return self._batch_sums(reference(), data, seed, more=more)

        return function

    def _batch_sums(self, model, batch, seed, *, more):
        x, y, sample_weight = batch

        def loss(model, x, y, y_pred, sample_weight, training):
            if self.likelihoods is None:
                return total_loss(
                    model,
                    x,
                    y,
                    y_pred=y_pred,
                    sample_weight=None,
                    training=training,
                )
            if additional_losses(model):
                raise NoLikelihood("terms of add_loss")
            return self._weighted_loss(y, y_pred, sample_weight, seed=seed)

        traced = TracedStep(model, batch, self.training, loss=loss)
        with traced:
            y_pred = traced.forward(x)
            value = loss(
                model,
                x,
                y,
                y_pred=y_pred,
                sample_weight=sample_weight,
                training=self.training,
            )
        factors = traced.sample_gradients(value)
        scale = 1
        # Contributions to a mean loss are gradients over n; they get squared.
        if self.likelihoods is None and not self.adds_up:
            n = tf.shape(first_tensor(x))[0]
            scale = tf.square(tf.cast(n, tf.float32))
        return self.of_factors(factors, scale, *more)

    def of_factors(self, factors, scale):
        """Return the sums of each variable; `scale`: of squares."""
        return [factor and self._sums(factor, scale) for factor in factors]

    def _sums(self, factor, scale):
        if self.kind == "kfac":
            inputs, outputs, count, axes = kronecker(factor)
            outputs *= tf.cast(scale, outputs.dtype)
            return inputs, outputs, count, tf.constant(axes, tf.int32)
        total = tf.convert_to_tensor(factor.sum_of_squares())
        return total * tf.cast(scale, total.dtype)

    def _weighted_loss(self, y, y_pred, sample_weight, *, seed):
        """Return the sum of √weight · −log p over the samples.

        The root, since gradients are squared afterwards.
        """
        outputs = tf.nest.flatten(y_pred)
        labels_by_output = [None] * len(outputs)
        weights = tf.nest.flatten(sample_weight)
        if len(weights) == 1:
            weights *= len(outputs)
        if not self.sampled:
            labels_by_output = self._labels(y, y_pred)
        parts = []
        families = zip(self.likelihoods or (), outputs)
        for k, (family, output) in enumerate(families):
            if family is None:
                continue
            labels = labels_by_output[k]
            if self.sampled:
                draw = family.draw_signed if self.as_loss else family.draw
                labels = draw(output, seed + tf.constant([0, k], seed.dtype))
            if self.as_loss:
                share = tf.stop_gradient(family.shares(output, weights[k]))
                # Gradients are squared.
                values = tf.sqrt(share) * family.position_losses(labels, output)
                parts.append(tf.reduce_sum(values))
            else:
                parts.append(family.negative_log_likelihood(labels, output))
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


def compute_sums(statistic, model, batch, *more, seed):
    """Return the sums of a batch; the function is traced once."""
    build = build_symbolically if statistic.likelihoods is None else _build
    try:
        return run_on_batch(
            model,
            batch,
            (statistic, ranks(batch)),
            trace=lambda: statistic.trace(model),
            training=statistic.training,
            extra_tensors=(seed, *more),
            build=build,
        )
    except tf.errors.InvalidArgumentError as error:
        if NOT_PROBABILITIES not in str(error):
            raise
        raise ValueError(f"Model {model.name!r}: {NOT_PROBABILITIES}") from None


def add_sums(totals, sums):
    """Return sums over several batches; integers say how they lie."""
    return tf.nest.map_structure(
        lambda a, b: (
            a + b if b is not None and tf.as_dtype(b.dtype).is_floating else b
        ),
        totals,
        sums,
    )


def _build(model, batch):
    """Build a model by a call; its loss, which would need targets, is not."""
    if not model.built:
        model(batch[0])


def require_finite(model, sums, first, *, n):
    """Refuse gradients with NaN or infinity, and name their batch."""
    for variable, variable_sums in zip(model.trainable_variables, sums):
        parts = tf.nest.flatten(variable_sums)[:2]
        if all(p is None or np.isfinite(np.sum(p)) for p in parts):
            continue
        raise ValueError(
            f"The squared gradients of {variable.path!r} are not finite in the "
            f"batch of samples {first} to {first + n - 1}. Look for NaN or "
            "infinity in x[i] and y[i] of these samples, or for a loss that "
            "overflows on them: per_sample_norms names the samples."
        )
