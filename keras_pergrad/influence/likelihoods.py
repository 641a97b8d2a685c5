"""The log-likelihoods that compiled losses stand for."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.graphs.gradients import (
    SAME_FOR_ALL,
    marked,
)
from keras_pergrad.keras_internals.losses.losses import read_by_crossentropy
from keras_pergrad.keras_internals.models.layers import call_arguments_of
from keras_pergrad.keras_internals.models.parts import (
    compile_arguments,
    has_own_loss,
    mask_of,
    set_mask,
    trace_symbolically,
)
from keras_pergrad.keras_internals.state.model import preserve_random_state

CATEGORICAL = "categorical"
BERNOULLI = "bernoulli"
GAUSSIAN = "gaussian"

#: The losses that are log-likelihoods, by class and by function.
_LIKELIHOOD_KINDS = {
    keras.losses.SparseCategoricalCrossentropy: CATEGORICAL,
    keras.losses.CategoricalCrossentropy: CATEGORICAL,
    keras.losses.BinaryCrossentropy: BERNOULLI,
    keras.losses.MeanSquaredError: GAUSSIAN,
    keras.losses.sparse_categorical_crossentropy: CATEGORICAL,
    keras.losses.categorical_crossentropy: CATEGORICAL,
    keras.losses.binary_crossentropy: BERNOULLI,
    keras.losses.mean_squared_error: GAUSSIAN,
}
#: Those whose targets are numbers of classes.
_OF_INDICES = (
    keras.losses.SparseCategoricalCrossentropy,
    keras.losses.sparse_categorical_crossentropy,
)
#: Arguments that change a loss, with the values that leave it as it is.
_NEUTRAL_ARGUMENTS = {"label_smoothing": 0.0, "ignore_class": None, "axis": -1}
KNOWN_LOSSES = (
    "a compiled loss that is a categorical or binary cross-entropy, or the "
    "mean squared error, as Keras has them"
)
#: Outputs that are no probabilities, of a loss without logits.
NOT_PROBABILITIES = (
    "The loss has from_logits=False, so that outputs are expected to be "
    "probabilities, from 0 to 1. Received: outputs outside. Compile with a "
    "loss object with from_logits=True, or end the model in softmax or sigmoid."
)


class NoLikelihood(ValueError):
    """A compiled loss is no log-likelihood that is known here."""


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """The distribution that one output of a model stands for.

    Attributes:
        kind: "categorical", "bernoulli", or "gaussian" of unit variance.
        from_logits: whether the loss takes outputs for logits. Keras also
            reads those behind a softmax or sigmoid, and so does this.
        reduction: of the loss that it was read off.
        takes_indices: whether targets are numbers of classes.
    """

    kind: str
    from_logits: bool = False
    reduction: str | None = "sum_over_batch_size"
    takes_indices: bool = False

    def draw(self, outputs, seed):
        """Draw labels: of the shape of `outputs`, or indices of classes."""
        shape = tf.shape(outputs)
        if self.kind == GAUSSIAN:
            noise = tf.random.stateless_normal(shape, seed, dtype=outputs.dtype)
            return tf.stop_gradient(outputs) + noise
        probabilities = self._probabilities(outputs)
        if self.kind == BERNOULLI:
            uniform = tf.random.stateless_uniform(
                shape, seed, 0, 1, probabilities.dtype
            )
            return tf.cast(uniform < probabilities, outputs.dtype)
        cumulative = tf.cumsum(probabilities, -1)
        uniform = tf.random.stateless_uniform(
            shape[:-1], seed, 0, 1, probabilities.dtype
        )
        thresholds = tf.expand_dims(uniform, -1) * cumulative[..., -1:]
        is_below = tf.cast(cumulative <= thresholds, tf.int32)
        return tf.minimum(tf.reduce_sum(is_below, -1), shape[-1] - 1)

    def draw_signed(self, outputs, seed):
        """Return targets that stand for all labels at once, as `outputs`.

        Each label has the root of its probability, with a random sign. The
        signs are independent and g is linear in the target, so the mean of
        g gᵀ is the same as over drawn labels, without rare large terms.
        """
        bits = tf.random.stateless_uniform(
            tf.shape(outputs), seed, 0, 2, tf.int32
        )
        signs = tf.cast(2 * bits - 1, outputs.dtype)
        if self.kind == GAUSSIAN:
            return tf.stop_gradient(outputs) + signs
        probabilities = self._probabilities(outputs)
        if self.kind == BERNOULLI:
            variance = probabilities * (1 - probabilities)
            zero = tf.zeros([], variance.dtype)
            return probabilities + signs * tf.sqrt(tf.maximum(variance, zero))
        if outputs.shape[-1] == 1:
            return tf.zeros_like(probabilities)  # The index of the only class.
        roots = signs * tf.sqrt(probabilities)
        # Targets must sum to 1: cross-entropies from logits assume it.
        return (
            probabilities
            + roots
            - probabilities * tf.reduce_sum(roots, -1, True)
        )

    def _probabilities(self, outputs):
        """Return the probabilities; refuse outputs that are none."""
        is_bernoulli = self.kind == BERNOULLI
        outputs, from_logits = self._crossentropy_inputs(outputs)
        outputs = tf.stop_gradient(outputs)
        if from_logits:
            return (
                tf.sigmoid(outputs) if is_bernoulli else tf.nn.softmax(outputs)
            )
        lowest, highest = tf.reduce_min(outputs), tf.reduce_max(outputs)
        # In bfloat16, sums of probabilities may round to more than 1.
        is_valid = (lowest >= 0) & (highest <= 1.01)
        tf.debugging.Assert(
            is_valid | (tf.size(outputs) == 0), [NOT_PROBABILITIES]
        )
        if is_bernoulli:
            return outputs
        # As Keras does with outputs that do not come from a softmax.
        total = tf.reduce_sum(outputs, -1, True)
        return tf.math.divide_no_nan(outputs, total)

    def _crossentropy_inputs(self, outputs):
        """Return what the loss reads of outputs, and whether it is logits."""
        activation = "Sigmoid" if self.kind == BERNOULLI else "Softmax"
        inputs, is_logits = read_by_crossentropy(outputs, activation)
        return inputs, is_logits or self.from_logits

    def negative_log_likelihood(self, labels, outputs):
        """Return −log p(labels | outputs) by sample, (n,), without constants.

        Masked positions, by the mask of the outputs, add nothing.
        """
        mask = mask_of(outputs)
        values = self.position_losses(labels, outputs)
        if mask is not None:
            mask = tf.cast(mask, values.dtype)
            while mask.shape.rank < values.shape.rank:
                mask = mask[..., None]
            values *= mask
        axes = list(range(1, values.shape.rank))
        return tf.reduce_sum(values, axes) if axes else values

    def position_losses(self, labels, outputs) -> Any:
        """Return −log p of each position, masked or not: (n, positions)."""
        labels = tf.convert_to_tensor(labels)
        if self.kind == CATEGORICAL:
            return self._cross_entropy(labels, outputs)
        labels = tf.cast(tf.reshape(labels, tf.shape(outputs)), outputs.dtype)
        values: Any
        if self.kind == GAUSSIAN:
            values = tf.square(outputs - labels) / 2
        else:
            inputs, from_logits = self._crossentropy_inputs(outputs)
            values = keras.ops.binary_crossentropy(labels, inputs, from_logits)
        return tf.reduce_sum(values, -1) if outputs.shape.rank > 1 else values

    def shares(self, outputs, sample_weight):
        """Return n times the weight of each position's −log p in the loss.

        So Keras weighs them: by sample weights, masks and its mean over
        positions and channels. (n, positions), as from `position_losses`.
        """
        if outputs.shape.rank == 1:
            raise NoLikelihood("an output without an axis of channels")
        weights = self._position_weights("sum", outputs, sample_weight)
        # Keras divides them all by one number, perhaps a sum over others.
        mean_weights = self._position_weights(
            self.reduction, outputs, sample_weight
        )
        mean_sum, weight_sum = (
            tf.reduce_sum(tf.abs(w)) for w in (mean_weights, weights)
        )
        weights *= marked(
            tf.math.divide_no_nan(mean_sum, weight_sum), SAME_FOR_ALL
        )
        channels = tf.cast(tf.shape(outputs)[-1], outputs.dtype)
        divisors = {CATEGORICAL: 1, BERNOULLI: channels, GAUSSIAN: channels / 2}
        n = tf.cast(tf.shape(outputs)[0], outputs.dtype)
        return n / divisors[self.kind] * weights

    def _position_weights(self, reduction: Any, outputs, sample_weight):
        """Return by what Keras multiplies the values of each position."""
        values = tf.ones_like(outputs[..., 0])
        with tf.GradientTape() as tape:
            tape.watch(values)
            predictions = tf.identity(values)
            if mask_of(outputs) is not None:
                set_mask(predictions, mask_of(outputs))
            loss: Any = _GivenValues("values", reduction)(
                values, predictions, sample_weight
            )
        return tf.cast(tape.gradient(loss, values), outputs.dtype)

    def _cross_entropy(self, labels, outputs):
        has_class_axis = labels.shape.rank == outputs.shape.rank
        if has_class_axis and labels.shape[-1] == outputs.shape[-1] != 1:
            labels = tf.cast(labels, outputs.dtype)
            return keras.ops.categorical_crossentropy(
                labels, *self._crossentropy_inputs(outputs)
            )
        labels = tf.cast(labels, tf.int32)
        labels = tf.reshape(labels, tf.shape(outputs)[:-1])
        return keras.ops.sparse_categorical_crossentropy(
            labels, *self._crossentropy_inputs(outputs)
        )


class _GivenValues(keras.losses.Loss):
    """A Keras loss of given values, for Keras's own reduction of them."""

    def call(self, y_true, y_pred):
        del y_true
        return y_pred


def likelihoods_for(model, batch):
    """Return `likelihoods_of` a model's outputs of a batch."""
    if not model.built:
        with preserve_random_state():
            model(batch[0])
    return likelihoods_of(model, trace_symbolically(model, batch[0]))


def likelihoods_of(model, outputs):
    """Return a `Likelihood`, or None, for each flat output of a model."""
    arguments = compile_arguments(model)
    if has_own_loss(model):
        raise NoLikelihood("a compute_loss of its own")
    if arguments.get("loss_weights") is not None:
        raise NoLikelihood(f"loss_weights={arguments['loss_weights']!r}")
    likelihoods = [
        None if loss is None else _likelihood_of(loss)
        for loss in _losses_by_output(model, arguments.get("loss"), outputs)
    ]
    if all(likelihood is None for likelihood in likelihoods):
        raise NoLikelihood("no loss")
    return likelihoods


def _losses_by_output(model, loss, outputs) -> list[Any]:
    """Return the compiled loss of each flat output."""
    flat = tf.nest.flatten(outputs)
    if not isinstance(loss, (list, tuple, dict)):
        return [loss] * len(flat)
    if isinstance(loss, dict):
        names = getattr(model, "output_names", None) or ()
        if isinstance(outputs, dict):
            # Flat outputs are in the order of the sorted keys.
            names = list(tf.nest.flatten({k: k for k in outputs}))
        if len(names) != len(flat) or not set(loss) <= set(names):
            raise NoLikelihood(f"losses {sorted(loss)} of unknown outputs")
        return [loss.get(name) for name in names]
    losses = list(loss)
    if len(losses) != len(flat) or isinstance(outputs, dict):
        raise NoLikelihood(f"{len(losses)} losses for {len(flat)} outputs")
    return losses


def _likelihood_of(loss):
    try:
        loss = keras.losses.get(loss)
    except ValueError:
        raise NoLikelihood(f"loss={loss!r}") from None
    is_object = isinstance(loss, keras.losses.Loss)
    loss_type = type(loss) if is_object else loss
    kind = _LIKELIHOOD_KINDS.get(loss_type)
    if kind is None:
        name = getattr(loss, "name", None) or getattr(loss, "__name__", loss)
        raise NoLikelihood(f"the loss {name!r}")
    config = loss.get_config() if is_object else {}
    # Not all stand in the config: `axis` of a sparse crossentropy does not.
    settings = {
        **config,
        **(call_arguments_of(loss) or {} if is_object else {}),
    }
    for name, neutral in _NEUTRAL_ARGUMENTS.items():
        if settings.get(name, neutral) != neutral:
            raise NoLikelihood(
                f"the loss {loss.name!r} with {name}={settings[name]!r}"
            )
    return Likelihood(
        kind,
        bool(config.get("from_logits", False)),
        config.get("reduction", "sum_over_batch_size"),
        takes_indices=loss_type in _OF_INDICES,
    )
