"""The log-likelihoods that compiled losses stand for."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.graphs.gradients import same_for_all
from keras_pergrad.keras_internals.losses.losses import read_by_crossentropy
from keras_pergrad.keras_internals.models.parts import (
    call_arguments_of,
    compile_arguments,
    mask_of,
    set_mask,
    trace_symbolically,
)
from keras_pergrad.keras_internals.state.model import random_state_kept

CATEGORICAL = "categorical"
BERNOULLI = "bernoulli"
GAUSSIAN = "gaussian"

#: What is a log-likelihood, by class and by function.
_KINDS = {
    keras.losses.SparseCategoricalCrossentropy: CATEGORICAL,
    keras.losses.CategoricalCrossentropy: CATEGORICAL,
    keras.losses.BinaryCrossentropy: BERNOULLI,
    keras.losses.MeanSquaredError: GAUSSIAN,
    keras.losses.sparse_categorical_crossentropy: CATEGORICAL,
    keras.losses.categorical_crossentropy: CATEGORICAL,
    keras.losses.binary_crossentropy: BERNOULLI,
    keras.losses.mean_squared_error: GAUSSIAN,
}
#: Arguments that make another loss of it; these values do not.
_PLAIN = {"label_smoothing": 0.0, "ignore_class": None, "axis": -1}
KNOWN = (
    "a compiled loss that is a categorical or binary cross-entropy, or the "
    "mean squared error, as Keras has them"
)
#: Outputs that are no chances, of a loss without logits.
NO_CHANCES = (
    "The loss has from_logits=False, so that outputs are expected to be "
    "chances, from 0 to 1. Received: outputs outside. Compile with a loss "
    "object with from_logits=True, or end the model in softmax or sigmoid."
)


class NoLikelihood(ValueError):
    """A compiled loss is no log-likelihood that is known here."""


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """The distribution that one output of a model stands for.

    Attributes:
        kind: "categorical", "bernoulli", or "gaussian" of unit variance.
        from_logits: what the loss was told: whether outputs are logits. Keras
            also reads those behind a softmax or sigmoid, and so does this.
        reduction: of the loss that it was read off.
    """

    kind: str
    from_logits: bool = False
    reduction: str | None = "sum_over_batch_size"

    def draw(self, outputs, seed):
        """Draw labels, as whole as `outputs` or (for classes) by index."""
        shape = tf.shape(outputs)
        if self.kind == GAUSSIAN:
            noise = tf.random.stateless_normal(shape, seed, dtype=outputs.dtype)
            return tf.stop_gradient(outputs) + noise
        chances = self._chances(outputs)
        if self.kind == BERNOULLI:
            uniform = tf.random.stateless_uniform(
                shape, seed, 0, 1, chances.dtype
            )
            return tf.cast(uniform < chances, outputs.dtype)
        sums = tf.cumsum(chances, -1)
        uniform = tf.random.stateless_uniform(
            shape[:-1], seed, 0, 1, chances.dtype
        )
        limits = tf.expand_dims(uniform, -1) * sums[..., -1:]
        below = tf.cast(sums <= limits, tf.int32)
        return tf.minimum(tf.reduce_sum(below, -1), shape[-1] - 1)

    def signed(self, outputs, seed):
        """Return targets that stand for all labels at once, as `outputs`.

        Each label has the root of its chance, with a random sign. The mean of
        g gᵀ over the signs is that over drawn labels, without its rare, large
        terms: signs are independent, and g is linear in the target.
        """
        bits = tf.random.stateless_uniform(
            tf.shape(outputs), seed, 0, 2, tf.int32
        )
        signs = tf.cast(2 * bits - 1, outputs.dtype)
        if self.kind == GAUSSIAN:
            return tf.stop_gradient(outputs) + signs
        chances = self._chances(outputs)
        if self.kind == BERNOULLI:
            variance = chances * (1 - chances)
            zero = tf.zeros([], variance.dtype)
            return chances + signs * tf.sqrt(tf.maximum(variance, zero))
        if outputs.shape[-1] == 1:
            return tf.zeros_like(chances)  # The index of the only class.
        roots = signs * tf.sqrt(chances)
        # They sum to 1, as losses take for granted.
        return chances + roots - chances * tf.reduce_sum(roots, -1, True)

    def _chances(self, outputs):
        """Return the chances; NO_CHANCES in an error if they are none."""
        is_one = self.kind == BERNOULLI
        outputs, from_logits = self._read(outputs)
        outputs = tf.stop_gradient(outputs)
        if from_logits:
            return tf.sigmoid(outputs) if is_one else tf.nn.softmax(outputs)
        least, most = tf.reduce_min(outputs), tf.reduce_max(outputs)
        # Of bfloat16, sums of chances round to more than 1.
        fits = (least >= 0) & (most <= 1.01)
        tf.debugging.Assert(fits | (tf.size(outputs) == 0), [NO_CHANCES])
        if is_one:
            return outputs
        # As Keras does, of what is no softmax.
        total = tf.reduce_sum(outputs, -1, True)
        return tf.math.divide_no_nan(outputs, total)

    def _read(self, outputs):
        """Return what the loss reads of outputs, and whether it is logits."""
        own = "Sigmoid" if self.kind == BERNOULLI else "Softmax"
        found, is_logits = read_by_crossentropy(outputs, own)
        return found, is_logits or self.from_logits

    def negative_log(self, labels, outputs):
        """Return −log p(labels | outputs) by sample, (n,), without constants.

        Masked positions, by the mask of the outputs, add nothing.
        """
        mask = mask_of(outputs)
        values = self.by_position(labels, outputs)
        if mask is not None:
            mask = tf.cast(mask, values.dtype)
            while mask.shape.rank < values.shape.rank:
                mask = mask[..., None]
            values *= mask
        axes = list(range(1, values.shape.rank))
        return tf.reduce_sum(values, axes) if axes else values

    def by_position(self, labels, outputs) -> Any:
        """Return −log p of each position, masked or not: (n, positions)."""
        labels = tf.convert_to_tensor(labels)
        if self.kind == CATEGORICAL:
            return self._cross_entropy(labels, outputs)
        labels = tf.cast(tf.reshape(labels, tf.shape(outputs)), outputs.dtype)
        values: Any
        if self.kind == GAUSSIAN:
            values = tf.square(outputs - labels) / 2
        else:
            read, from_logits = self._read(outputs)
            values = keras.ops.binary_crossentropy(labels, read, from_logits)
        return tf.reduce_sum(values, -1) if outputs.shape.rank > 1 else values

    def shares(self, outputs, sample_weight):
        """Return n times the weight of each position's −log p in the loss.

        So Keras weighs them: by sample weights, masks and its mean over
        positions and channels. (n, positions), as from `by_position`.
        """
        if outputs.shape.rank == 1:
            raise NoLikelihood("an output without an axis of channels")
        found = self._weights("sum", outputs, sample_weight)
        # Keras divides them all by one number, perhaps a sum over others.
        mean = self._weights(self.reduction, outputs, sample_weight)
        total, whole = (tf.reduce_sum(tf.abs(w)) for w in (mean, found))
        found *= same_for_all(tf.math.divide_no_nan(total, whole))
        channels = tf.cast(tf.shape(outputs)[-1], outputs.dtype)
        over = {CATEGORICAL: 1, BERNOULLI: channels, GAUSSIAN: channels / 2}
        n = tf.cast(tf.shape(outputs)[0], outputs.dtype)
        return n / over[self.kind] * found

    def _weights(self, reduction: Any, outputs, sample_weight):
        """Return by what Keras multiplies the values of each position."""
        values = tf.ones_like(outputs[..., 0])
        with tf.GradientTape() as tape:
            tape.watch(values)
            held = tf.identity(values)
            if mask_of(outputs) is not None:
                set_mask(held, mask_of(outputs))
            loss: Any = _OfValues("values", reduction)(
                values, held, sample_weight
            )
        return tf.cast(tape.gradient(loss, values), outputs.dtype)

    def _cross_entropy(self, labels, outputs):
        whole = labels.shape.rank == outputs.shape.rank
        if whole and labels.shape[-1] == outputs.shape[-1] != 1:
            labels = tf.cast(labels, outputs.dtype)
            return keras.ops.categorical_crossentropy(
                labels, *self._read(outputs)
            )
        labels = tf.cast(labels, tf.int32)
        labels = tf.reshape(labels, tf.shape(outputs)[:-1])
        return keras.ops.sparse_categorical_crossentropy(
            labels, *self._read(outputs)
        )


class _OfValues(keras.losses.Loss):
    """Keras's mean of values that are given."""

    def call(self, y_true, y_pred):
        del y_true
        return y_pred


def likelihoods_for(model, batch):
    """Return `likelihoods_of` a model's outputs of a batch."""
    if not model.built:
        with random_state_kept():
            model(batch[0])
    return likelihoods_of(model, trace_symbolically(model, batch[0]))


def likelihoods_of(model, outputs):
    """Return a `Likelihood`, or None, for each flat output of a model.

    Args:
        model: a compiled model.
        outputs: what it returns.

    Raises:
        NoLikelihood: its loss is none that is known.
    """
    arguments = compile_arguments(model)
    if type(model).compute_loss is not keras.Model.compute_loss:
        raise NoLikelihood("a compute_loss of its own")
    if arguments.get("loss_weights") is not None:
        raise NoLikelihood(f"loss_weights={arguments['loss_weights']!r}")
    found = [
        None if loss is None else _likelihood(loss)
        for loss in _by_output(model, arguments.get("loss"), outputs)
    ]
    if all(one is None for one in found):
        raise NoLikelihood("no loss")
    return found


def _by_output(model, loss, outputs) -> list[Any]:
    """Return the loss that `compile` was given for each flat output."""
    flat = tf.nest.flatten(outputs)
    if not isinstance(loss, (list, tuple, dict)):
        return [loss] * len(flat)
    if isinstance(loss, dict):
        names = getattr(model, "output_names", None) or ()
        if isinstance(outputs, dict):
            names = list(tf.nest.flatten({k: k for k in outputs}))
        if len(names) != len(flat) or not set(loss) <= set(names):
            raise NoLikelihood(f"losses {sorted(loss)} of unknown outputs")
        return [loss.get(name) for name in names]
    losses = list(loss)
    if len(losses) != len(flat) or isinstance(outputs, dict):
        raise NoLikelihood(f"{len(losses)} losses for {len(flat)} outputs")
    return losses


def _likelihood(loss):
    try:
        loss = keras.losses.get(loss)
    except ValueError:
        raise NoLikelihood(f"loss={loss!r}") from None
    is_object = isinstance(loss, keras.losses.Loss)
    kind = _KINDS.get(type(loss) if is_object else loss)
    if kind is None:
        name = getattr(loss, "name", None) or getattr(loss, "__name__", loss)
        raise NoLikelihood(f"the loss {name!r}")
    config = loss.get_config() if is_object else {}
    # Not all stand in the config: `axis` of a sparse crossentropy does not.
    given = {**config, **(call_arguments_of(loss) or {} if is_object else {})}
    for name, plain in _PLAIN.items():
        if given.get(name, plain) != plain:
            raise NoLikelihood(
                f"the loss {loss.name!r} with {name}={given[name]!r}"
            )
    return Likelihood(
        kind,
        bool(config.get("from_logits", False)),
        config.get("reduction", "sum_over_batch_size"),
    )
