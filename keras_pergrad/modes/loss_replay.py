"""The loss, repeated sample by sample: for weights that it reads by itself."""

from keras_pergrad.keras_internals.losses import (
    additional_loss_weights,
    total_loss,
)
from keras_pergrad.keras_internals.penalties import without_gradients
from keras_pergrad.samples.sample_replay import Recorded, Replay


class LossReplay:
    """What samples contribute to gradients by the loss alone.

    The outputs of the model count as constants. The loss must be a sum or a
    mean over the samples, which is checked as for `add_loss`.

    Args:
        model: a compiled model.
        batch: (x, y, y_pred, sample_weight).
        loss: the loss of the batch.
        drawn: the random draws of the loss.
        training: whether layers are called for training.
        state: as for `Replay`.
        variables: those to differentiate with respect to.
        n: the number of samples.
        scale: the loss scale, or None.
    """

    def __init__(
        self,
        model,
        batch,
        loss,
        drawn,
        training,
        state,
        variables,
        n,
        scale,
    ):
        recorded = Recorded(
            _Loss(model, training), batch, {}, training, drawn, [], [loss]
        )
        self._variables = variables
        self._replay = _OfLoss(recorded, variables, state)
        with without_gradients(variables):
            self._weights = additional_loss_weights(self._replay, n, scale)

    def added(self, i, contributions):
        """Return contributions of sample i, with those of the loss."""
        with without_gradients(self._variables):
            found = self._replay.gradients(i, [], self._weights)
        return [
            b if a is None else a if b is None else a + b
            for a, b in zip(contributions, found)
        ]


class _OfLoss(Replay):
    def forward(self, rows):
        (loss,), _ = super().forward(rows)
        return [], [loss]


class _Loss:
    """A model's loss as something to call."""

    def __init__(self, model, training):
        self.name = f"{model.name}, loss"
        self._model, self._training = model, training

    def __call__(self, x, y, y_pred, sample_weight):
        return total_loss(
            self._model, x, y, y_pred, sample_weight, self._training
        )
