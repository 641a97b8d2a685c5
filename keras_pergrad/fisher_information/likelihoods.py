"""The log-likelihoods that compiled losses stand for."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.model_parts import (
    compile_arguments,
    mask_of,
)

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


class NoLikelihood(ValueError):
    """A compiled loss is no log-likelihood that is known here."""


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """The distribution that one output of a model stands for.

    Attributes:
        kind: "categorical", "bernoulli", or "gaussian" of unit variance.
        from_logits: whether the output holds logits.
    """

    kind: str
    from_logits: bool = False

    def draw(self, outputs, seed):
        """Draw labels, as whole as `outputs` or (for classes) by index."""
        outputs = tf.stop_gradient(outputs)
        shape = tf.shape(outputs)
        if self.kind == GAUSSIAN:
            noise = tf.random.stateless_normal(shape, seed, dtype=outputs.dtype)
            return outputs + noise
        if self.kind == BERNOULLI:
            chances = tf.sigmoid(outputs) if self.from_logits else outputs
            uniform = tf.random.stateless_uniform(
                shape, seed, 0, 1, chances.dtype
            )
            return tf.cast(uniform < chances, outputs.dtype)
        chances = tf.nn.softmax(outputs) if self.from_logits else outputs
        sums = tf.cumsum(chances, -1)
        uniform = tf.random.stateless_uniform(
            shape[:-1], seed, 0, 1, chances.dtype
        )
        limits = tf.expand_dims(uniform, -1) * sums[..., -1:]
        below = tf.cast(sums <= limits, tf.int32)
        return tf.minimum(tf.reduce_sum(below, -1), shape[-1] - 1)

    def negative_log(self, labels, outputs):
        """Return −log p(labels | outputs) by sample, (n,), without constants.

        Masked positions, by the mask of the outputs, add nothing.
        """
        mask = mask_of(outputs)
        values: Any
        labels = tf.convert_to_tensor(labels)
        if self.kind == CATEGORICAL:
            values = self._cross_entropy(labels, outputs)
        else:
            labels = tf.cast(
                tf.reshape(labels, tf.shape(outputs)), outputs.dtype
            )
            if self.kind == GAUSSIAN:
                values = tf.square(outputs - labels) / 2
            else:
                values = keras.ops.binary_crossentropy(
                    labels, outputs, self.from_logits
                )
        if mask is not None:
            mask = tf.cast(mask, values.dtype)
            while mask.shape.rank < values.shape.rank:
                mask = mask[..., None]
            values *= mask
        axes = list(range(1, values.shape.rank))
        return tf.reduce_sum(values, axes) if axes else values

    def _cross_entropy(self, labels, outputs):
        whole = labels.shape.rank == outputs.shape.rank
        if whole and labels.shape[-1] == outputs.shape[-1] != 1:
            labels = tf.cast(labels, outputs.dtype)
            return keras.ops.categorical_crossentropy(
                labels, outputs, self.from_logits
            )
        labels = tf.cast(labels, tf.int32)
        labels = tf.reshape(labels, tf.shape(outputs)[:-1])
        return keras.ops.sparse_categorical_crossentropy(
            labels, outputs, self.from_logits
        )


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
    for name, plain in _PLAIN.items():
        if config.get(name, plain) != plain:
            raise NoLikelihood(
                f"the loss {loss.name!r} with {name}={config[name]!r}"
            )
    return Likelihood(kind, bool(config.get("from_logits", False)))
