"""The measurement of a batch's gradient, the model unchanged."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import first_tensor
from keras_pergrad.common.numbers import squared_norm
from keras_pergrad.common.text import reason
from keras_pergrad.factors.written_out import norm_type
from keras_pergrad.functions.batch_loss import MissingLoss, measured_loss
from keras_pergrad.gradient_health.batch_gradient import (
    BatchGradient,
    covariance_traces,
)
from keras_pergrad.keras_internals.losses.terms import (
    Penalties,
    regularization_loss,
)
from keras_pergrad.keras_internals.models.overwritten import is_overwritten
from keras_pergrad.keras_internals.models.parts import (
    build_symbolically,
    call_model,
    loss_scale,
)
from keras_pergrad.keras_internals.state.model import (
    assigned_variables,
    preserve_random_state,
    preserve_variables,
    run_and_restore,
    unchanged,
)
from keras_pergrad.modes.fractions import sample_losses
from keras_pergrad.modes.step_readers import StepReader
from keras_pergrad.uses import TracedStep


def compute_if(condition, compute):
    """Return `compute()` if `condition` holds, else zeros of the same shapes.

    The shapes must be known.
    """
    results = []

    def compute_branch():
        results.append(tf.nest.map_structure(tf.identity, compute()))
        return results[0]

    def zero_branch():  # traced after the other branch
        return tf.nest.map_structure(
            lambda t: tf.zeros(t.shape, t.dtype), results[0]
        )

    return tf.cond(condition, compute_branch, zero_branch)


# What a run of the gradient's program measures of the samples: nothing, all, or
# only losses and slopes along a direction.
_NO_SAMPLES, _ALL_SAMPLES, _SLOPES_ONLY = range(3)


class GradientMeter:
    """Measures the gradient of one batch at a model's present weights.

    Layers act as in training. What that changes (seeds, moving statistics,
    metrics) is put back: repetitions draw the same random numbers.

    Args:
        model: a compiled model.
        batch: (x, y, sample_weight), tensors.
        quantities: a function of the model, once it is built; returns what
            else is measured of the samples, such as `SampleQuantities`.

    Attributes:
        has_sample_losses: whether each sample's loss is known, if it is needed.
        undefined: a clause that says why nothing is known of the samples' own
            gradients, else None, as far as `prepare` and `measure` show.
    """

    def __init__(self, model, batch, quantities=None):
        self.model = model
        self.batch = batch
        self.samples = int(first_tensor(batch[0]).shape[0])
        self.undefined = None
        # A model that is built by its first call has no variables before that.
        with preserve_random_state():
            build_symbolically(model, batch)
        self._variables = list(model.trainable_variables)
        if not self._variables:
            raise ValueError(
                f"Model {model.name!r} has no trainable variables, so there "
                "is no gradient to measure."
            )
        # What else is measured of the samples, in the same pass.
        self._quantities = quantities and quantities(model)
        self._needs_slopes = (
            self._quantities is not None and self._quantities.needs_slopes
        )
        self._values = [v.value for v in self._variables]
        self._dtype = norm_type(self._values)
        self._is_joint = True
        self._refusal = None
        self.has_sample_losses = False
        self._gradient_program: Callable[..., Any] | None = None
        self._sample_program: Callable[..., Any] | None = None

    def measure(self, repeats=1, direction=None):
        """Return the `BatchGradient` of the present weights.

        `direction`: what slopes are taken along, one array a variable.
        """
        run = self._gradient_program or self.prepare()
        # A model that has diverged is also measured.
        quiet = np.errstate(invalid="ignore", over="ignore")
        with quiet, preserve_random_state():
            try:
                return self._measure(run, repeats, direction)
            except Exception as error:
                if self.undefined is not None:
                    raise
                # Only now may it show that a layer mixes samples.
                return self._measure(
                    self._prepare_without_samples(error), repeats
                )

    def _measure(self, run, repeats, direction=None):
        loss, values, observed = run(_ALL_SAMPLES, direction)
        values = [np.asarray(g) for g in values]
        squared_norms = np.array([squared_norm(g) for g in values])
        if self._sample_program is not None:
            observed = self._sample_program(_ALL_SAMPLES, direction)
        variances = None
        if self.undefined is None:
            observed = tf.nest.map_structure(np.asarray, observed)
            variances = covariance_traces(
                observed["squared_norms"], squared_norms
            )
        fields = self.samples, float(loss), values, squared_norms, variances
        gradient = BatchGradient(*fields, observed=observed)
        if repeats > 1:
            repetitions = (run(_NO_SAMPLES)[1] for _ in range(repeats - 1))
            gradient.compare(repetitions)
        return gradient

    def measure_along(self, direction, weights):
        """Return losses and slopes of the samples at other weights."""
        run: Any = self._sample_program or self._gradient_program
        with preserve_random_state(), preserve_variables(self._values):
            for value, weight in zip(self._values, weights):
                value.assign(weight)
            results = run(_SLOPES_ONLY, direction)
        observed = results if run is self._sample_program else results[-1]
        return tf.nest.map_structure(np.asarray, observed)

    def prepare(self):
        """Trace, find out about samples, and return the gradient's program."""
        with preserve_random_state():
            return self._prepare()

    def _prepare(self):
        if self.samples < 2:
            self.undefined = "one sample alone has no variance."
            return self._prepare_without_samples()
        try:
            is_eager = self.model.run_eagerly
            if not is_eager:
                self._gradient_program = self._compile(
                    self._gradient_and_samples
                )
            if is_eager or not self._is_joint:
                # Only a graph shows how weights are used.
                self._sample_program = self._compile(
                    self._samples_alone, eager=False
                )
                self._gradient_program = self._compile(self._gradient_alone)
        except MissingLoss:
            raise
        except Exception as error:  # an error of the batch comes again
            return self._prepare_without_samples(error)
        return self._gradient_program

    def _prepare_without_samples(self, error=None):
        """Return the program for the gradient alone: the samples' failed."""
        self._sample_program = None
        self._gradient_program = self._compile(self._gradient_alone)
        if error is not None:
            self.undefined = self._undefined_reason(error)
        return self._gradient_program

    def _undefined_reason(self, error):
        claim, cause = "are not defined", self._refusal
        if cause is None:
            claim, cause = "cannot be obtained here", reason(error)
        return f"the samples' own gradients {claim}: {cause}".rstrip(".") + "."

    def _gradient_alone(self, x, y, sample_weight, request, direction):
        del request, direction
        penalties = Penalties(self.model)
        with tf.GradientTape() as tape:
            y_pred = call_model(self.model, x)
            with penalties.noted():
                loss = measured_loss(self.model, x, y, y_pred, sample_weight)
            target = self._scaled(loss)
        gradients = tape.gradient(target, self._values)
        return (
            loss,
            self._without_penalties(gradients, penalties.gradients(loss)),
            {},
        )

    def _gradient_and_samples(self, x, y, sample_weight, request, direction):
        """Return the gradient, and what is wanted of the samples."""
        # One program computes both, so TensorFlow runs the backward pass once.
        batch_tape = tf.GradientTape()
        loss, target, factors, losses = self._trace_samples(
            x, y, sample_weight, batch_tape
        )
        # The samples' tape keeps the gradients of regularisers apart.
        gradients = self._without_penalties(
            batch_tape.gradient(target, self._values)
        )
        observed = self._observe(
            loss, factors, gradients, losses, request, direction
        )
        return loss, gradients, observed

    def _samples_alone(self, x, y, sample_weight, request, direction):
        outer_context = contextlib.nullcontext()
        loss, _, factors, losses = self._trace_samples(
            x, y, sample_weight, outer_context
        )
        sums = self._dense([f and f.weighted_sum(None) for f in factors])
        return self._observe(loss, factors, sums, losses, request, direction)

    def _trace_samples(self, x, y, sample_weight, outer_context):
        """Return the loss, also scaled, the factors and samples' losses."""

        def refuse(layer, error):
            self._refusal = error
            raise error

        batch = x, y, sample_weight
        tape = TracedStep(self.model, batch, loss=measured_loss, refuse=refuse)
        with outer_context, tape:
            y_pred = tape.forward(x)
            loss = measured_loss(self.model, x, y, y_pred, sample_weight)
            target = self._scaled(loss)
        scale = loss_scale(self.model.optimizer)
        factors = tape.sample_gradients(target, scale)
        losses = None
        if self._needs_slopes:
            losses = sample_losses(self.model, y, y_pred, sample_weight)
            self.has_sample_losses = losses is not None
        # If it calls a layer in its own way, or vectorises it, the norms are
        # measured apart: repetitions must use the layer's ordinary call.
        self._is_joint = all(call.rule.forward is None for call in tape.calls)
        return loss, target, factors, losses

    def _scaled(self, loss):
        scale = loss_scale(self.model.optimizer)
        return loss if scale is None else loss * tf.cast(scale, loss.dtype)

    def _without_penalties(self, gradients, penalties=None):
        """Return dense gradients without loss scale and regularisers."""
        scale = loss_scale(self.model.optimizer)
        penalties = penalties or [None] * len(self._variables)
        dense = []
        for gradient, penalty in zip(self._dense(gradients), penalties):
            if scale is not None:
                gradient /= tf.cast(scale, gradient.dtype)
            dense.append(gradient if penalty is None else gradient - penalty)
        return dense

    def _dense(self, gradients):
        return [
            tf.zeros_like(variable.value)
            if gradient is None or is_overwritten(variable)
            else tf.convert_to_tensor(gradient)
            for variable, gradient in zip(self._variables, gradients)
        ]

    def _observe(self, loss, factors, gradients, losses, request, direction):
        """Return by name what is wanted of the samples."""
        n, dtype = self.samples, self._dtype

        def observe_all():
            held = [f and f.held() for f in factors]
            squares = [self._squared_sample_norms(factor) for factor in held]
            quantities = {}
            if self._quantities is not None:
                quantities = self._quantities(n, held, gradients, dtype)
            return {"squared_norms": tf.stack(squares), **quantities}

        def observe_slopes():
            return {
                "slopes": self._quantities.dots(n, factors, direction, dtype),
                "losses": tf.reshape(n * tf.cast(losses, dtype), [n]),
            }

        observed = compute_if(tf.equal(request, _ALL_SAMPLES), observe_all)
        if losses is not None:
            needs_any = tf.not_equal(request, _NO_SAMPLES)
            observed |= compute_if(needs_any, observe_slopes)
        return {**observed, "loss": self._loss_of_data(loss)}

    def _squared_sample_norms(self, factor):
        """Return ‖g_i‖² of the samples, (n,); a contribution is g_i / n."""
        if factor is None:
            return tf.zeros([self.samples], self._dtype)
        squares = tf.cast(factor.squared_norms(), self._dtype)
        squares *= tf.cast(self.samples**2, self._dtype)
        return tf.reshape(squares, [self.samples])

    def _loss_of_data(self, loss):
        """Return the loss without the regularisers that Keras adds."""
        if type(self.model).compute_loss is not keras.Model.compute_loss:
            return loss
        penalty = regularization_loss(self._variables)
        return loss - tf.cast(penalty, loss.dtype)

    def _compile(self, compute, eager=True):
        """Return a program of `compute` that runs the way the model trains."""
        if eager and self.model.run_eagerly:

            def run_eagerly(request, direction=None):
                with unchanged(self.model):
                    return compute(*self.batch, request, direction)

            run_eagerly(_NO_SAMPLES)  # raises any error now
            return run_eagerly

        # Leave out None: a call whose structure differs from the signature
        # first prints its arguments, which takes longer than the call.
        def call_with_tensors(parts, request, direction):
            parts = iter(parts)
            batch = tf.nest.map_structure(
                lambda t: None if t is None else next(parts), self.batch
            )
            return compute(*batch, request, direction)

        def arguments(request, direction=None):
            if self._needs_slopes and direction is None:
                direction = self._values
            direction = [tf.convert_to_tensor(d) for d in direction or ()]
            return self._batch_tensors(), tf.constant(request), direction

        function = tf.function(
            call_with_tensors,
            autograph=False,
            jit_compile=bool(self.model.jit_compile),
        ).get_concrete_function(*arguments(_NO_SAMPLES))

        if not assigned_variables(function):
            return lambda *request: function(*arguments(*request))

        def run(*request):
            return run_and_restore(function, *arguments(*request))

        return run

    def _batch_tensors(self):
        return [t for t in tf.nest.flatten(self.batch) if t is not None]


class TrainingReader(StepReader):
    """Reads the gradient of the batch, and what instruments are made of.

    Args:
        quantities: a function of the model, once it is built; returns the
            `SampleQuantities`.

    Attributes:
        is_wanted: whether the next step is read.
        measurement: the `BatchGradient` of the last one, or None.
    """

    def __init__(self, quantities):
        self._quantities = quantities
        self.is_wanted, self.measurement = False, None

    def is_due(self):
        return self.is_wanted

    def read(self, samples):
        samples, dtype, results = samples.held(), samples.dtype, {}
        results["squared_norms"] = samples.squared_norms()
        results["mean"] = samples.mean()
        arguments = samples.n, samples.factors, results["mean"], dtype
        results |= self._quantities(samples.model)(*arguments)
        loss = results["loss_with_penalties"] = samples.loss
        if type(samples.model).compute_loss is keras.Model.compute_loss:
            penalty = regularization_loss(samples.variables)
            loss -= tf.cast(penalty, loss.dtype)
        return {**results, "loss": loss}

    def receive(self, values):
        results = tf.nest.map_structure(np.asarray, values)
        gradient, loss = results.pop("mean"), results.pop("loss_with_penalties")
        sample_norms = results["squared_norms"]
        n = sample_norms.shape[1]
        with np.errstate(invalid="ignore", over="ignore"):
            squared_norms = np.array([squared_norm(g) for g in gradient])
            variances = (
                covariance_traces(sample_norms, squared_norms)
                if n > 1
                else None
            )
        fields = n, float(loss), list(gradient), squared_norms, variances
        self.measurement = BatchGradient(*fields, observed=results)
