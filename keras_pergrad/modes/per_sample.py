"""One forward and backward pass per sample."""

from typing import Any, Literal

import tensorflow as tf

from keras_pergrad.aggregations.aggregation import (
    Aggregation,
    aggregations,
    is_finite,
    of_samples,
    variable_weights,
    weighs,
)
from keras_pergrad.common import refusal_messages
from keras_pergrad.common.batches import map_tensors, sample_count
from keras_pergrad.common.names import require_one_of
from keras_pergrad.common.numbers import positive_integer
from keras_pergrad.common.registry import serialize
from keras_pergrad.factors import wide
from keras_pergrad.factors.base import norm_type
from keras_pergrad.keras_internals.data.views import call_views
from keras_pergrad.keras_internals.graphs import draws
from keras_pergrad.keras_internals.losses.losses import (
    additional_loss_weights,
    loss_tensors,
    recording_losses,
    total_loss,
)
from keras_pergrad.keras_internals.losses.terms import without_gradients
from keras_pergrad.keras_internals.models.parts import training_inside
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.modes.base import GradientMode, PartialSums, gradient_modes
from keras_pergrad.modes.inspection import require_any_batch_size
from keras_pergrad.modes.sums import plus, unscaled
from keras_pergrad.proof import messages
from keras_pergrad.uses import TracedStep, divides, refusals
from keras_pergrad.uses.sample_replay import Recorded, Replay

# A batch whose samples can be differentiated one at a time.


class Samples:
    """A batch whose samples can be differentiated one at a time.

    Attributes:
        y_pred: the outputs.
        n: how many samples there are.
        variables: those that samples have gradients for.
    """

    def __init__(self, model, part, training=True):
        self.variables = list(model.trainable_variables)
        self.scale, self.batch_size = part.scale, part.n
        x, batch = part.x, (part.x, part.y, part.sample_weight)
        self.n = part.n if part.is_whole else sample_count(x)
        model_draws, loss_draws, added_losses = [], [], []
        traced_step = TracedStep(model, batch, training)
        for error in refusals(traced_step, repeated="sample"):
            raise error
        # Each sample reads state as it was before the layers assign it.
        state = [
            (v, tf.identity(tf.convert_to_tensor(v.value)))
            for v in model.non_trainable_variables
        ]
        with part.watched():
            with (
                draws.recording(model_draws.append),
                recording_losses(model, added_losses),
            ):
                self.y_pred = call_views(model, x, training)
            outputs = loss_tensors(self.y_pred)
            floats = [t for t in outputs if t.dtype.is_floating]
            with (
                tf.GradientTape(watch_accessed_variables=False) as tape,
                without_gradients(self.variables),
                draws.recording(loss_draws.append),
            ):
                values = [v.value for v in self.variables]
                tape.watch(floats + values)
                target = part.target(self.y_pred, added_losses, training)
        target_gradients = tape.gradient(target, floats + values)
        error = _loss_read_error(
            self.variables, target_gradients[len(floats) :]
        )
        self._loss_replay = None
        if error is not None:
            if not part.is_whole:
                raise error
            if divides(traced_step, "sample"):
                text = messages.loss_follows_size(model, "sample")
                raise ValueError(text)
            batch = *batch[:2], self.y_pred, batch[2]
            loss_call = (
                _LossCall(model, training),
                batch,
                {},
                training,
                loss_draws,
            )
            recorded = Recorded(*loss_call, [], [part.loss])
            self._loss_replay = LossReplay(
                recorded, self.variables, state, part
            )
        # A tensor that is given out twice has one gradient, which counts once.
        gradients_by_id = {
            id(t): gradient for t, gradient in zip(floats, target_gradients)
        }
        self._output_gradients = [
            gradients_by_id.pop(id(t), None) for t in outputs
        ]
        inner_training = training_inside(model, training)
        recorded = Recorded(
            model, (x,), {}, inner_training, model_draws, outputs, added_losses
        )
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
        if self._loss_replay is not None:
            gradients = self._loss_replay.add_contributions(gradients, i)
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
        return tf.cast(self.batch_size, self.norm_dtype) * tf.sqrt(total)


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

    def add_contributions(self, contributions, i):
        """Return contributions of sample i, with those of the loss."""
        with without_gradients(self._variables):
            return plus(contributions, self.gradients(i, [], self._weights))


class _LossCall:
    """A model's loss as something to call."""

    def __init__(self, model, training):
        self.name = f"{model.name}, loss"
        self._model, self._training = model, training

    def __call__(self, x, y, y_pred, sample_weight):
        batch = x, y, y_pred, sample_weight
        return total_loss(self._model, *batch, self._training)


def _loss_read_error(variables, gradients):
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


# One forward and backward pass per sample.


UPDATES = ("batch", "sample")


class PerSample(GradientMode):
    """Per-sample gradients one at a time: any model, little memory.

    One forward pass of the batch gives the loss and its gradient with respect
    to each sample's output. A loop then makes one forward and backward pass
    per sample and holds `parallel_iterations` of the samples' gradients at a
    time. For each sample, random layers repeat the numbers that they drew for
    it in the batch.

    Args:
        aggregation: "mean", a `ClippedMean` or another `Aggregation`, or its
            config dict.
        updates: "batch" applies the aggregated gradient once; "sample" is
            online descent: it calls the optimizer after every sample, as
            `fit(batch_size=1)` does. A batch of 100 makes 100 updates.
        parallel_iterations: how many samples may be processed at a time.
        statistics: whether to log `gradient_norm`, `gradient_variance` and
            `gradient_noise_scale`, as `Vectorized` does. With clipping this
            holds one more sum of gradients. Not with updates="sample": an
            update by one sample has no variance.

    Raises:
        ValueError: an argument is out of range.

    Example:

    >>> import keras_pergrad as kpg
    >>> mode = kpg.PerSample(updates="sample")
    """

    per_sample = True

    def __init__(
        self,
        aggregation: str | Aggregation | dict[str, Any] = "mean",
        updates: Literal["batch", "sample"] = "batch",
        parallel_iterations: int = 1,
        statistics: bool = False,
    ):
        self.aggregation: Aggregation = aggregations.get(aggregation)
        if self.aggregation.needs == "gramian":
            text = refusal_messages.needs_all_samples
            raise ValueError(text("aggregation", self.aggregation))
        require_one_of("updates", updates, UPDATES)
        if statistics and updates == "sample":
            raise ValueError(
                "`statistics` are of the samples of one update, and with "
                "updates='sample' there is one: its variance is not defined. "
                "Received: statistics=True, updates='sample'"
            )
        self.with_statistics: bool = bool(statistics)
        self.updates: Literal["batch", "sample"] = updates
        self.parallel_iterations: int = positive_integer(
            "parallel_iterations", parallel_iterations
        )

    @property
    def updates_by_sample(self) -> bool:
        return self.updates == "sample"

    @property
    def updates_by_itself(self) -> bool:
        return self.updates_by_sample

    @property
    def can_be_watched(self) -> bool:
        # One update by one sample has no variance.
        return not self.updates_by_sample

    def require(self, model: Any) -> None:
        require_any_batch_size(model)
        for layer in replicas.synchronizing_layers(model):
            raise ValueError(
                refusal_messages.synchronized_statistics(layer, "sample")
            )

    def partial_sums(self, model: Any, part: Any) -> PartialSums:
        samples, aggregation = Samples(model, part), part.aggregation
        # Whether each has a gradient; None: there was no sample to tell.
        has_gradient: list = [None] * len(samples.variables)
        needs_plain_sums = self.gives_statistics and weighs(aggregation)
        groups = aggregation.groups(samples.variables)

        def add_sample(i, sums, plain):
            """Return the sums with those of sample i, and its norm."""
            contributions = map_tensors(wide, samples.contributions(i))
            has_gradient[:] = [
                gradient is not None for gradient in contributions
            ]
            norm = samples.norm(contributions, groups)
            weights = aggregation.weights(norm[None])
            if part.padded is not None:
                weights = part.padded.weights(weights, i)
            weighted = [
                _scaled(g, variable_weights(weights, groups, k)[0])
                if weighs(aggregation)
                else g
                for k, g in enumerate(contributions)
            ]
            if needs_plain_sums:
                finite = is_finite(of_samples(norm[None]))[0]
                plain = plus(plain, [_scaled(g, finite) for g in contributions])
            return plus(sums, weighted), plain, norm

        values = [v.value for v in samples.variables]
        sums = [wide(tf.zeros(v.shape, v.dtype)) for v in values]
        plain = sums if needs_plain_sums else []
        if part.is_single:
            sums, plain, norm = add_sample(tf.constant(0), sums, plain)
            norms = norm[None]
        else:
            sums, plain, norms = self._sum_samples(
                add_sample, samples, groups, sums, plain
            )
        gradients = [
            None if k is False else s for s, k in zip(sums, has_gradient)
        ]
        return PartialSums(samples.y_pred, gradients, norms, plain or None)

    def _sum_samples(self, add_sample, samples, groups, sums, plain):
        """Return the sums over all samples, and the norms."""

        def body(i, sums, plain, norms):
            sums, plain, norm = add_sample(i, sums, plain)
            return i + 1, sums, plain, norms.write(i, norm)

        shape = [] if groups is None else [max(groups) + 1]
        norms = tf.TensorArray(
            samples.norm_dtype, samples.n, element_shape=shape
        )
        _, sums, plain, norms = tf.while_loop(
            lambda i, *_: i < samples.n,
            body,
            (tf.constant(0), sums, plain, norms),
            parallel_iterations=self.parallel_iterations,
        )
        return sums, plain, norms.stack()

    def get_config(self) -> dict[str, Any]:
        return {
            "aggregation": serialize(self.aggregation),
            "updates": self.updates,
            "parallel_iterations": self.parallel_iterations,
            "statistics": self.with_statistics,
        }


def _scaled(gradient, factor):
    if gradient is None:
        return None
    # Zero times NaN is NaN; a sample of weight zero must add nothing.
    factor = tf.cast(factor, gradient.dtype)
    return tf.math.multiply_no_nan(gradient, factor)


gradient_modes.register("per_sample", PerSample)
