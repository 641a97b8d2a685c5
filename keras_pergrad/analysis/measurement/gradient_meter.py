"""The measurement of a model's gradient on one batch, the model unchanged."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.measurement.batch_gradient import (
    BatchGradient,
    squared_norm,
)
from keras_pergrad.common.error_text import reason
from keras_pergrad.keras_internals.batches import first_tensor
from keras_pergrad.keras_internals.losses import additional_losses, total_loss
from keras_pergrad.keras_internals.model_parts import (
    build_symbolically,
    call_model,
    compiled_loss,
)
from keras_pergrad.keras_internals.model_state import (
    random_state_kept,
    run_and_restore,
    unchanged,
)
from keras_pergrad.keras_internals.optimizers import loss_scale
from keras_pergrad.keras_internals.overwritten import (
    SetApart,
    is_overwritten,
)
from keras_pergrad.keras_internals.penalties import Penalties
from keras_pergrad.samples import TracedStep


class GradientMeter:
    """Measures the gradient of one batch at a model's present weights.

    Layers act as in training. What that changes (seeds, moving statistics,
    metrics) is put back: repetitions draw the same random numbers.

    Attributes:
        undefined: a clause that says why nothing is known of the samples' own
            gradients, else None, as far as `prepare` and `measure` show.
    """

    def __init__(self, model, batch):
        self.model = model
        self.batch = batch
        self.samples = int(first_tensor(batch[0]).shape[0])
        self.undefined = None
        # A model that is built by its first call has no variables before that.
        with random_state_kept():
            build_symbolically(model, batch)
        self._variables = list(model.trainable_variables)
        if not self._variables:
            raise ValueError(
                f"Model {model.name!r} has no trainable variables, so there "
                "is no gradient to measure."
            )
        self._values = [v.value for v in self._variables]
        wide = tf.float64 in {v.dtype for v in self._values}
        self._dtype = tf.float64 if wide else tf.float32
        self._joint = True
        self._refusal = None
        self._gradient: Callable[[bool], Any] | None = None
        self._squares: Callable[[bool], Any] | None = None

    def measure(self, repeats=1):
        """Return the `BatchGradient` of the present weights."""
        run = self._gradient or self.prepare()
        # A model that has diverged is also measured.
        quiet = np.errstate(invalid="ignore", over="ignore")
        with quiet, random_state_kept():
            try:
                return self._measure(run, repeats)
            except Exception as error:
                if self.undefined is not None:
                    raise
                # Only now may it show that a layer mixes samples.
                return self._measure(self._without_samples(error), repeats)

    def _measure(self, run, repeats):
        loss, values, sums = run(True)
        values = [np.asarray(g) for g in values]
        squares = np.array([squared_norm(g) for g in values])
        if self._squares is not None:
            sums = self._squares(True)
        variances = None
        if self.undefined is None:
            sums = np.array([float(s) for s in sums])
            spread = sums - self.samples * squares
            # Rounding can leave a tiny negative number.
            variances = np.maximum(spread, 0) / (self.samples - 1)
        known = self.samples, float(loss), values, squares, variances
        gradient = BatchGradient(*known)
        if repeats > 1:
            gradient.compare(run(False)[1] for _ in range(repeats - 1))
        return gradient

    def prepare(self):
        """Trace, find out about samples, and return the gradient's program."""
        with random_state_kept():
            return self._prepare()

    def _prepare(self):
        if self.samples < 2:
            self.undefined = "one sample alone has no variance."
            return self._without_samples()
        try:
            eager = self.model.run_eagerly
            if not eager:
                self._gradient = self._compiled(self._with_squares)
            if eager or not self._joint:
                # Only a graph shows how weights are used.
                self._squares = self._compiled(self._only_squares, eager=False)
                self._gradient = self._compiled(self._plainly)
        except MissingLoss:
            raise
        except Exception as error:  # an error of the batch comes again
            return self._without_samples(error)
        return self._gradient

    def _without_samples(self, error=None):
        """Return the program for the gradient alone: the samples' failed."""
        self._squares = None
        self._gradient = self._compiled(self._plainly)
        if error is not None:
            self.undefined = self._why(error)
        return self._gradient

    def _why(self, error):
        how, why = "are not defined", self._refusal
        if why is None:
            how, why = "cannot be obtained here", reason(error)
        return f"the samples' own gradients {how}: {why}".rstrip(".") + "."

    def _plainly(self, x, y, sample_weight, wanted):
        del wanted
        penalties = Penalties(self.model)
        with tf.GradientTape() as tape:
            y_pred = call_model(self.model, x)
            with penalties.noted():
                loss = measured_loss(self.model, x, y, y_pred, sample_weight)
            target = self._scaled(loss)
        gradients = tape.gradient(target, self._values)
        return loss, self._of_data(gradients, penalties.gradients(loss)), []

    def _with_squares(self, x, y, sample_weight, wanted):
        """Return the gradient, and the samples' norms where they are wanted."""
        # One program computes both, so TensorFlow runs the backward pass once.
        of_batch = tf.GradientTape()
        loss, target, factors = self._of_samples(x, y, sample_weight, of_batch)
        # The samples' tape keeps the gradients of regularisers apart.
        gradients = self._of_data(of_batch.gradient(target, self._values))
        sums = tf.cond(
            wanted,
            lambda: [self._sum(f) for f in factors],
            lambda: [tf.zeros([], self._dtype) for _ in factors],
        )
        return loss, gradients, sums

    def _only_squares(self, x, y, sample_weight, wanted):
        del wanted
        around = contextlib.nullcontext()
        *_, factors = self._of_samples(x, y, sample_weight, around)
        return [self._sum(f) for f in factors]

    def _of_samples(self, x, y, sample_weight, around):
        """Return the loss, the same scaled, and each variable's factor."""

        def refuse(layer, error):
            self._refusal = error
            raise error

        batch = x, y, sample_weight
        with SetApart(self.model) as apart:
            tape = TracedStep(
                self.model, batch, loss=measured_loss, refuse=refuse
            )
            with around, tape:
                y_pred = tape.forward(x)
                loss = measured_loss(self.model, x, y, y_pred, sample_weight)
                target = self._scaled(loss)
            scale = loss_scale(self.model.optimizer)
            factors = apart.merged(tape.sample_gradients(target, scale))
        # If it calls a layer in its own way, or vectorises it, the norms are
        # measured apart: repetitions must use the layer's ordinary call.
        self._joint = all(call.rule.forward is None for call in tape.calls)
        return loss, target, factors

    def _scaled(self, loss):
        scale = loss_scale(self.model.optimizer)
        return loss if scale is None else loss * tf.cast(scale, loss.dtype)

    def _of_data(self, gradients, penalties=None):
        """Return dense gradients without loss scale and regularisers."""
        scale = loss_scale(self.model.optimizer)
        penalties = penalties or [None] * len(self._variables)
        dense = []
        for variable, gradient, penalty in zip(
            self._variables, gradients, penalties
        ):
            if gradient is None or is_overwritten(variable):
                gradient = tf.zeros_like(variable.value)
            gradient = tf.convert_to_tensor(gradient)
            if scale is not None:
                gradient /= tf.cast(scale, gradient.dtype)
            dense.append(gradient if penalty is None else gradient - penalty)
        return dense

    def _sum(self, factor):
        """Return Σ ‖g_i‖² over the samples; a contribution is g_i / n."""
        if factor is None:
            return tf.zeros([], self._dtype)
        total = tf.reduce_sum(tf.cast(factor.squared_norms(), self._dtype))
        return total * tf.cast(self.samples**2, self._dtype)

    def _compiled(self, compute, eager=True):
        """Return a program of `compute` that runs the way the model trains."""
        if eager and self.model.run_eagerly:

            def run(wanted):
                with unchanged(self.model):
                    return compute(*self.batch, tf.constant(wanted))

            run(False)  # raises any error now
            return run

        # Leave out None: a call whose structure differs from the signature
        # first prints its arguments, which takes longer than the call.
        def packed(parts, wanted):
            parts = iter(parts)
            batch = tf.nest.map_structure(
                lambda t: None if t is None else next(parts), self.batch
            )
            return compute(*batch, wanted)

        function = tf.function(
            packed, autograph=False, jit_compile=bool(self.model.jit_compile)
        ).get_concrete_function(self._parts(), tf.constant(True))

        def run(wanted):
            return run_and_restore(function, self._parts(), tf.constant(wanted))

        return run

    def _parts(self):
        return [t for t in tf.nest.flatten(self.batch) if t is not None]


class MissingLoss(ValueError):
    """There is no loss to take a gradient of."""


def measured_loss(model, x, y, y_pred, sample_weight, training=True):
    """Return the scalar loss of a batch, after the forward pass."""
    del training
    if (
        compiled_loss(model) is None
        and not additional_losses(model)
        and type(model).compute_loss is keras.Model.compute_loss
    ):
        raise MissingLoss(
            f"Model {model.name!r} was compiled without a loss, and that of a "
            "`train_step` of its own is not seen from outside. Expected "
            "compile(loss=...) with the loss that it is trained by, or a "
            "`compute_loss` or `add_loss` of the model's own. Received: no "
            "loss"
        )
    return total_loss(model, x, y, y_pred, sample_weight)
