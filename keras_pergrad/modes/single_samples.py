"""A batch whose samples can be differentiated one at a time."""

import tensorflow as tf

from keras_pergrad.common.float_types import norm_type
from keras_pergrad.keras_internals import draws
from keras_pergrad.keras_internals.batches import sample_count
from keras_pergrad.keras_internals.loss_tensors import loss_tensors
from keras_pergrad.keras_internals.losses import (
    additional_loss_weights,
    noting_losses,
    total_loss,
)
from keras_pergrad.keras_internals.model_parts import (
    call_model,
    training_inside,
)
from keras_pergrad.keras_internals.penalties import without_gradients
from keras_pergrad.modes.microbatch_sums import plus, unscaled
from keras_pergrad.samples import TracedStep, divides, messages, refusals
from keras_pergrad.samples.sample_replay import Recorded, Replay


class Samples:
    """A batch whose samples can be differentiated one at a time.

    Attributes:
        y_pred: the outputs.
        n: how many samples there are.
        variables: those that samples have gradients for.
    """

    def __init__(self, model, part, training=True):
        self.variables = list(model.trainable_variables)
        self.scale, self.whole = part.scale, part.n
        x, batch = part.x, (part.x, part.y, part.sample_weight)
        self.n = part.n if part.is_whole else sample_count(x)
        drawn, drawn_by_loss, terms = [], [], []
        tried = TracedStep(model, batch, training)
        for error in refusals(tried, repeated="sample"):
            raise error
        # Each sample reads state as it was before the layers assign it.
        state = [
            (v, tf.identity(tf.convert_to_tensor(v.value)))
            for v in model.non_trainable_variables
        ]
        with part.watched():
            with (
                draws.recording(drawn.append),
                noting_losses(model, terms),
            ):
                self.y_pred = call_model(model, x, training)
            outputs = loss_tensors(self.y_pred)
            floats = [t for t in outputs if t.dtype.is_floating]
            with (
                tf.GradientTape(watch_accessed_variables=False) as tape,
                without_gradients(self.variables),
                draws.recording(drawn_by_loss.append),
            ):
                values = [v.value for v in self.variables]
                tape.watch(floats + values)
                target = part.target(self.y_pred, terms, training)
        slopes = tape.gradient(target, floats + values)
        error = _read_by_loss(self.variables, slopes[len(floats) :])
        self._by_loss = None
        if error is not None:
            if not part.is_whole:
                raise error
            if divides(tried, "sample"):
                text = messages.loss_follows_size(model, "sample")
                raise ValueError(text)
            batch = *batch[:2], self.y_pred, batch[2]
            call = _Loss(model, training), batch, {}, training, drawn_by_loss
            recorded = Recorded(*call, [], [part.loss])
            self._by_loss = LossReplay(recorded, self.variables, state, part)
        # A tensor that is given out twice has one gradient, which counts once.
        by_output = {id(t): slope for t, slope in zip(floats, slopes)}
        self._output_gradients = [by_output.pop(id(t), None) for t in outputs]
        inside = training_inside(model, training)
        recorded = Recorded(model, (x,), {}, inside, drawn, outputs, terms)
        self._replay = Replay(recorded, self.variables, state)
        self._loss_weights = part.added_weights(self._replay)

    @property
    def norm_dtype(self):
        """float64 where a variable is, else float32."""
        return norm_type(self.variables)

    def contributions(self, i):
        """Return sample i's part in each variable's gradient, or None."""
        gradients = self._replay.gradients(
            i, self._output_gradients, self._loss_weights
        )
        if self._by_loss is not None:
            gradients = self._by_loss.added_to(gradients, i)
        return unscaled(gradients, self.scale)

    def norm(self, contributions, groups=None):
        """Return the norm of a sample, (), or of each group, (groups,)."""
        count = 1 if groups is None else max(groups) + 1
        totals = [tf.zeros([], self.norm_dtype)] * count
        for k, g in enumerate(contributions):
            if g is not None:
                square = tf.square(tf.cast(g, self.norm_dtype))
                group = 0 if groups is None else groups[k]
                totals[group] += tf.reduce_sum(square)
        total = totals[0] if groups is None else tf.stack(totals)
        return tf.cast(self.whole, self.norm_dtype) * tf.sqrt(total)


class LossReplay(Replay):
    """What samples contribute by weights that the loss reads itself."""

    # The outputs of the model count as constants. The loss must be a sum or a
    # mean over the samples, which is checked as for `add_loss`.

    def __init__(self, recorded, variables, state, part):
        super().__init__(recorded, variables, state)
        self._variables = variables
        with without_gradients(variables):
            self._weights = additional_loss_weights(self, part.n, part.scale)

    def forward(self, rows):
        (loss,), _ = super().forward(rows)
        return [], [loss]

    def added_to(self, contributions, i):
        """Return contributions of sample i, with those of the loss."""
        with without_gradients(self._variables):
            return plus(contributions, self.gradients(i, [], self._weights))


class _Loss:
    """A model's loss as something to call."""

    def __init__(self, model, training):
        self.name = f"{model.name}, loss"
        self._model, self._training = model, training

    def __call__(self, x, y, y_pred, sample_weight):
        batch = x, y, y_pred, sample_weight
        return total_loss(self._model, *batch, self._training)


def _read_by_loss(variables, gradients):
    """Return the error for weights that the loss reads itself, or None."""
    # Regularisers also do: they belong to no sample, and are added later.
    names = [
        repr(v.path) for v, g in zip(variables, gradients) if g is not None
    ]
    if not names:
        return None
    return ValueError(
        f"The loss depends on {', '.join(names)} outside the forward pass, "
        "where no layer sees a sample's part in it: its per-sample gradient "
        "is not known. Use the weight in the `call` of a layer or of the "
        "model, put a penalty on weights into a `kernel_regularizer` (or "
        "`add_weight(regularizer=...)`), or compile with "
        "gradient_mode='vectorized' or 'batch'."
    )
