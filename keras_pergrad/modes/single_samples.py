"""A batch whose samples can be differentiated one at a time."""

import tensorflow as tf

from keras_pergrad.keras_internals import draws, stray_weights
from keras_pergrad.keras_internals.batches import first_tensor
from keras_pergrad.keras_internals.loss_tensors import loss_tensors
from keras_pergrad.keras_internals.losses import (
    additional_loss_weights,
    noting_losses,
    total_loss,
)
from keras_pergrad.keras_internals.overwritten import SetApart
from keras_pergrad.keras_internals.penalties import Penalties
from keras_pergrad.modes.base import call_model, training_inside
from keras_pergrad.modes.loss_replay import LossReplay
from keras_pergrad.samples import Tape, divides, messages, refusals
from keras_pergrad.samples.sample_replay import Recorded, Replay


class Samples:
    """A batch whose samples can be differentiated one at a time.

    Args:
        model: a compiled `keras.Model`.
        x, y, sample_weight: the batch.
        scale: the loss scale, or None.
        training: whether layers are called for training.
        part: a `PartOfBatch`, for samples of a larger batch, or None.
        apart: the open `SetApart` of the model; None: a new one.

    Attributes:
        loss: the loss of the batch.
        target: the loss times the loss scale.
        y_pred: the outputs.
        variables: those that samples have gradients for.
    """

    def __init__(
        self,
        model,
        x,
        y,
        sample_weight,
        scale=None,
        training=True,
        part=None,
        apart=None,
    ):
        apart = SetApart(model) if apart is None else apart
        self.variables = list(model.trainable_variables)
        self.scale = scale
        self.n = tf.shape(first_tensor(x))[0]
        drawn, drawn_by_loss, added = [], [], []
        if part is not None:
            y, sample_weight = part.y, part.sample_weight
        tried = Tape(model, (x, y, sample_weight), training)
        for error in refusals(tried, repeated="sample"):
            raise error
        # Each sample reads state as it was before the layers assign it.
        state = [
            (v, tf.identity(tf.convert_to_tensor(v.value)))
            for v in model.non_trainable_variables
        ]
        penalties = Penalties(model)
        with apart.watched():
            with (
                draws.recording(drawn.append),
                noting_losses(model, added),
            ):
                self.y_pred = call_model(model, x, training)
            outputs = loss_tensors(self.y_pred)
            floats = [t for t in outputs if t.dtype.is_floating]
            with (
                tf.GradientTape(watch_accessed_variables=False) as tape,
                stray_weights.watched(tape, self.variables),
                draws.recording(drawn_by_loss.append),
                penalties.noted(),
            ):
                tape.watch(floats)
                if part is None:
                    self.whole = self.n
                    self.loss = total_loss(
                        model, x, y, self.y_pred, sample_weight, training
                    )
                else:
                    self.whole = part.n
                    self.loss = part.loss(self.y_pred, added)
                target = self.loss if scale is None else self.loss * scale
        self.target = target
        self._penalties = penalties
        values = [v.value for v in self.variables]
        found = tape.gradient(target, floats + values)
        error = stray_weights.error(self.variables, found[len(floats) :])
        self._by_loss = None
        if error is not None:
            if part is not None:
                raise error
            if divides(tried, "sample"):
                text = messages.loss_follows_size(model, "sample")
                raise ValueError(text)
            batch = x, y, self.y_pred, sample_weight
            given = self.loss, drawn_by_loss, training, state, self.variables
            self._by_loss = LossReplay(model, batch, *given, self.n, scale)
        found = iter(found)
        self._output_gradients = [
            next(found) if t.dtype.is_floating else None for t in outputs
        ]
        inside = training_inside(model, training)
        recorded = Recorded(model, (x,), {}, inside, drawn, outputs, added)
        self._replay = Replay(recorded, self.variables, state)
        if part is None:
            self._loss_weights = additional_loss_weights(
                self._replay, self.n, scale
            )
        else:
            self._loss_weights = [
                w if scale is None else w * tf.cast(scale, w.dtype)
                for w in part.added_weights
            ]

    def penalties(self):
        """Return the gradients of the weight regularisers in the loss."""
        return self._penalties.gradients(self.loss)

    @property
    def norm_dtype(self):
        """float64 where a variable is, else float32."""
        dtypes = {v.value.dtype for v in self.variables}
        return tf.float64 if tf.float64 in dtypes else tf.float32

    def contributions(self, i):
        """Return sample i's part in each variable's gradient, or None."""
        found = self._replay.gradients(
            i, self._output_gradients, self._loss_weights
        )
        if self._by_loss is not None:
            found = self._by_loss.added(i, found)
        if self.scale is None:
            return found
        return [
            None if g is None else g / tf.cast(self.scale, g.dtype)
            for g in found
        ]

    def norm(self, contributions, groups=None):
        """Return the norm of the per-sample gradient: contribution times batch.

        Args:
            contributions: as from `contributions`.
            groups: as from `Aggregation.groups`; the norm of each of them is
                given then, (groups,).
        """
        count = 1 if groups is None else max(groups) + 1
        totals = [tf.zeros([], self.norm_dtype)] * count
        for k, g in enumerate(contributions):
            if g is not None:
                square = tf.square(tf.cast(g, self.norm_dtype))
                totals[0 if groups is None else groups[k]] += tf.reduce_sum(
                    square
                )
        total = totals[0] if groups is None else tf.stack(totals)
        return tf.cast(self.whole, self.norm_dtype) * tf.sqrt(total)
