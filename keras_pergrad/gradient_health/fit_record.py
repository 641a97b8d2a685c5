"""The record of a `fit` that advice is given on, beside the readings."""

import dataclasses
import math

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.functions.batch_loss import measured_loss
from keras_pergrad.gradient_health.premises import (
    calls_per_update,
    facts_of_updates,
    regresses,
)
from keras_pergrad.keras_internals.models.parts import (
    call_model,
    layers_of,
    learning_rate,
)
from keras_pergrad.keras_internals.state.model import unchanged


@dataclasses.dataclass(frozen=True)
class FitRecord:
    """What is known of a `fit`; None or empty: not known.

    Attributes:
        batch_size: samples of an update.
        optimizer: the name of its class, such as "SGD"; of one inside another
            the innermost.
        follows_mean: whether updates follow the mean of the samples'
            gradients: none is clipped, noisy, or weighed otherwise.
        adds_noise: whether gradients are made noisy.
        is_private: whether the training data are protected.
        has_single_updates: whether a call of the train function makes one
            update at most.
        probe_is_trained: whether the probe is known to be trained on.
        learning_rates: the rate at each reading.
        losses: the probe's loss at each reading.
        first_loss: the probe's loss before the first update.
        half_losses: the same of its first and of its second half.
        input_scale: the largest root mean square of a float input.
        target_moments: the mean and the standard deviation of the targets, of
            the output whose targets are largest; only of targets that have
            an entry for each of the output's, and of a loss that may be
            computed in any unit, such as the mean squared error.
        shapes: the shape of each trainable variable, in their order.
        weight_norms: ‖w‖ of each before the first update.
        frozen_norm: that of all weights that are not trained.
        trained_before: the layers that had been trained before this `fit`.
        untrained: those whose weights were still as they were made, and that
            are trained.
        untrained_frozen: those still as they were made, and frozen.
        label_losses: at the end, the probe's loss with its own labels, then
            with those of other samples, drawn anew each time; not asked for
            where the loss has come down.
    """

    batch_size: int | None = None
    optimizer: str = ""
    follows_mean: bool = True
    adds_noise: bool = False
    is_private: bool = False
    has_single_updates: bool = True
    probe_is_trained: bool = False
    learning_rates: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    first_loss: float | None = None
    half_losses: tuple[float, ...] = ()
    input_scale: float | None = None
    target_moments: tuple[float, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    weight_norms: tuple[float, ...] = ()
    frozen_norm: float = 0.0
    trained_before: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()
    untrained_frozen: tuple[str, ...] = ()
    label_losses: tuple[float, ...] = ()

    @property
    def learned(self):
        """Whether the probe's loss has come down by half at least."""
        finite_losses = [v for v in self.losses[-3:] if math.isfinite(v)]
        if not finite_losses or self.first_loss is None:
            return False
        return min(finite_losses) < 0.5 * self.first_loss

    @property
    def rate(self):
        """The largest learning rate at a reading, or None."""
        return max(self.learning_rates, default=None)


# Layers whose weights are still as they were made, and others.
#
# Told by variables that are made of zeros or ones, as biases and scales are:
# training moves them. A layer without any is not judged.

_CONSTANT = (keras.initializers.Zeros, keras.initializers.Ones)


def layer_origins(layers):
    """Return the paths of layers: trained before, untrained, and frozen so."""
    trained, untrained, frozen = [], [], []
    for layer in layers:
        # The variables of inner layers are judged there.
        variables = [
            v for v in layer.variables if getattr(layer, v.name, 0) is v
        ]
        constants = [
            v for v in variables if _has_constant_initializer(layer, v)
        ]
        if not constants:
            continue
        path = constants[0].path.rpartition("/")[0]
        # An LSTM's bias is made of zeros and ones.
        if not all(np.isin(np.asarray(v), (0, 1)).all() for v in constants):
            trained.append(path)
        elif layer.trainable:
            untrained.append(path)
        elif len(variables) > len(constants):
            frozen.append(path)
    return tuple(trained), tuple(untrained), tuple(frozen)


def _has_constant_initializer(layer, variable):
    initializer = getattr(layer, f"{variable.name}_initializer", None)
    return isinstance(initializer, _CONSTANT)


# Losses of the probe that tell what a gradient does not.
#
# Layers act as in prediction, so that no sample depends on another one and
# nothing is random. The model is left as it was.

#: With the probe's own labels that makes 100 orders: p goes in steps of 1 %.
DRAWS = 99


def half_losses_of(model, batch):
    """Return the loss of the whole probe and of its halves, and its outputs."""
    n = len(tf.nest.flatten(batch[0])[0])
    halves = slice(0, n // 2), slice(n // 2, n)
    with unchanged(model):
        loss, outputs = _loss_of(model, *batch)
        half_losses = [
            _loss_of(model, *_select_rows(batch, half))[0] for half in halves
        ]
    return loss, half_losses, outputs


def permuted_label_losses(model, batch, draws=DRAWS):
    """Return the probe's loss, then with labels of other samples, (1 + D,).

    Empty if there are no labels.
    """
    x, y, sample_weight = batch
    if y is None:
        return ()
    n = len(tf.nest.flatten(y)[0])
    generator = np.random.default_rng(0)
    with unchanged(model):
        y_pred = call_model(model, x, training=False)
        orders = [np.arange(n)]
        orders += [generator.permutation(n) for _ in range(draws)]
        return tuple(
            float(
                measured_loss(
                    model,
                    x,
                    _select_rows(y, order),
                    y_pred,
                    sample_weight,
                    False,
                )
            )
            for order in orders
        )


def _loss_of(model, x, y, sample_weight):
    y_pred = call_model(model, x, training=False)
    loss = measured_loss(model, x, y, y_pred, sample_weight, False)
    return float(loss), y_pred


def _select_rows(batch, rows):
    """Return some rows of all tensors of a batch."""
    if isinstance(rows, slice):
        return tf.nest.map_structure(
            lambda t: None if t is None else t[rows], batch
        )
    return tf.nest.map_structure(
        lambda t: None if t is None else tf.gather(t, rows), batch
    )


class FitRecorder:
    """Notes what advice needs beside the readings.

    Made before the first update; `batch` is the probe, (x, y, sample_weight).
    """

    def __init__(
        self, model, batch, *, batch_size=None, probe_is_trained=False
    ):
        self._model, self._batch = model, batch
        first_loss, half_losses, outputs = half_losses_of(model, batch)
        trained, untrained, frozen = layer_origins(layers_of(model))
        variables = model.trainable_variables
        if batch_size is not None:
            batch_size *= calls_per_update(model)
        self._fit = FitRecord(
            **facts_of_updates(model),
            batch_size=batch_size,
            probe_is_trained=probe_is_trained,
            first_loss=first_loss,
            half_losses=tuple(half_losses),
            input_scale=_largest_scale(batch[0]),
            target_moments=_target_moments(model, batch[1], outputs),
            shapes=tuple(tuple(v.shape) for v in variables),
            weight_norms=tuple(map(_norm, variables)),
            frozen_norm=math.hypot(*map(_norm, model.non_trainable_variables)),
            trained_before=trained,
            untrained=untrained,
            untrained_frozen=frozen,
        )

    def record_reading(self, loss):
        """Note the probe's loss, and the rate, at a reading."""
        rate = learning_rate(self._model.optimizer)
        rate = float(tf.convert_to_tensor(rate))
        self._fit = dataclasses.replace(
            self._fit,
            losses=(*self._fit.losses, float(loss)),
            learning_rates=(*self._fit.learning_rates, rate),
        )

    def record(self):
        """Return the `FitRecord` up to now."""
        # What is frozen may be set from outside, as target networks are.
        _, _, frozen = layer_origins(layers_of(self._model))
        still_frozen = [p for p in self._fit.untrained_frozen if p in frozen]
        label_losses = ()
        if not self._fit.learned:
            label_losses = permuted_label_losses(self._model, self._batch)
        return dataclasses.replace(
            self._fit,
            untrained_frozen=tuple(still_frozen),
            label_losses=label_losses,
        )


def _norm(variable):
    """Return the norm of a float variable; 0 of others, such as seeds."""
    if not tf.as_dtype(variable.dtype).is_floating:
        return 0.0
    return float(np.linalg.norm(np.asarray(variable).astype("float64")))


def _largest_scale(x):
    """Return the largest root mean square of a float input, or None."""
    scales = [
        float(np.sqrt(np.mean(np.square(np.asarray(t, "float64")))))
        for t in tf.nest.flatten(x)
        if t.dtype.is_floating
    ]
    return max(scales, default=None)


def _target_moments(model, y, outputs):
    """Return (mean, standard deviation) of the largest targets, or ()."""
    targets, outputs = tf.nest.flatten(y), tf.nest.flatten(outputs)
    may_be_scaled = regresses(model)
    if not len(targets) == len(outputs) == len(may_be_scaled):
        return ()
    moments = [
        (float(np.mean(values)), float(np.std(values)))
        for target, output, has_unit in zip(targets, outputs, may_be_scaled)
        # Numbers of classes are fewer than the output's entries.
        if has_unit
        and isinstance(target, tf.Tensor)
        and (target.dtype.is_floating or target.dtype.is_integer)
        and tf.size(target) == tf.size(output)
        for values in [np.asarray(target, "float64")]
    ]
    return max(moments, key=lambda pair: math.hypot(*pair), default=())
