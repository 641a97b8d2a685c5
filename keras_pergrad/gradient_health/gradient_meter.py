"""The measurement of a batch's gradient, the model unchanged."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import first_tensor, pack_like, tensors_of
from keras_pergrad.common.gradients import dense_gradients
from keras_pergrad.common.text import reason
from keras_pergrad.factors.written_out import norm_type
from keras_pergrad.functions.batch_loss import MissingLoss, measured_loss
from keras_pergrad.gradient_health.observation import (
    Observation,
    along,
    observe,
)
from keras_pergrad.keras_internals.losses.regularizers import (
    Penalties,
    regularization_loss,
)
from keras_pergrad.keras_internals.models.parts import (
    call_model,
    has_own_loss,
    is_overwritten,
    require_variables,
)
from keras_pergrad.keras_internals.state.model import (
    assigned_variables,
    preserve_random_state,
    preserve_variables,
    run_and_restore,
    unchanged,
)
from keras_pergrad.modes.fractions import sample_losses
from keras_pergrad.modes.one_step import loss_scale
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


@dataclasses.dataclass(frozen=True)
class MeterPlan:
    """The programs of a measurement, and what their tracing showed.

    Attributes:
        gradient: the program of the mean gradient.
        samples: that of the samples, if it is another one.
        undefined: a clause that says why nothing is known of the samples' own
            gradients, else None.
        has_losses: whether each sample's loss is known, if it is needed.
    """

    gradient: Callable[..., Any]
    samples: Callable[..., Any] | None = None
    undefined: str | None = None
    has_losses: bool = False


@dataclasses.dataclass
class _Trace:
    """What the tracing of the samples' program shows.

    Attributes:
        refusal: the error by which a layer is refused, or None.
        is_joint: whether the layers are called in their ordinary way, so that
            one program may compute the gradient, too.
        has_losses: whether each sample's loss is known.
    """

    refusal: Exception | None = None
    is_joint: bool = True
    has_losses: bool = False


class GradientMeter:
    """Measures the gradient of one batch at a model's present weights.

    Layers act as in training. What that changes (seeds, moving statistics,
    metrics) is put back: repetitions draw the same random numbers.

    Args:
        model: a compiled model that is built.
        batch: (x, y, sample_weight), tensors.
        quantities: what else is measured of the samples, `SampleQuantities`.

    Attributes:
        plan: the `MeterPlan`. A layer may show only at a measurement that it
            mixes samples; the plan is another one from then on.
    """

    def __init__(self, model, batch, quantities=None):
        self.model = model
        self.batch = batch
        self.samples = int(first_tensor(batch[0]).shape[0])
        require_variables(model)
        self._variables = list(model.trainable_variables)
        # What else is measured of the samples, in the same pass.
        self._quantities = quantities
        self._needs_slopes = quantities is not None and quantities.needs_slopes
        self._values = [v.value for v in self._variables]
        self._dtype = norm_type(self._values)
        with preserve_random_state():
            self.plan: MeterPlan = self._make_plan()

    def measure(self, repeats=1, direction=None):
        """Return the `Observation` of the present weights.

        `direction`: what slopes are taken along, one array a variable.
        """
        # A model that has diverged is also measured.
        quiet = np.errstate(invalid="ignore", over="ignore")
        with quiet, preserve_random_state():
            try:
                return self._measure(repeats, direction)
            except Exception as error:
                if self.plan.undefined is not None:
                    raise
                # Only now may it show that a layer mixes samples.
                self.plan = self._plan_without_samples(error, _Trace())
                return self._measure(repeats)

    def _measure(self, repeats, direction=None):
        run, samples_run = self.plan.gradient, self.plan.samples
        loss, values, measured = run(_ALL_SAMPLES, direction)
        if samples_run is not None:
            measured = samples_run(_ALL_SAMPLES, direction)
        gradient = [np.asarray(g) for g in values]
        repetitions = (run(_NO_SAMPLES)[1] for _ in range(repeats - 1))
        return observe(
            gradient,
            samples=self.samples,
            loss=loss,
            measured=tf.nest.map_structure(np.asarray, measured),
            repetitions=repetitions if repeats > 1 else None,
        )

    def measure_along(self, direction, weights):
        """Return losses and slopes of the samples at other weights."""
        run = self.plan.samples or self.plan.gradient
        with preserve_random_state(), preserve_variables(self._values):
            for value, weight in zip(self._values, weights):
                value.assign(weight)
            results = run(_SLOPES_ONLY, direction)
        measured = results if run is self.plan.samples else results[-1]
        return along(tf.nest.map_structure(np.asarray, measured))

    def _make_plan(self):
        """Trace the programs, and find out about the samples."""
        if self.samples < 2:
            return MeterPlan(
                self._compile(self._gradient_alone),
                undefined="one sample alone has no variance.",
            )
        trace, is_eager = _Trace(), self.model.run_eagerly
        try:
            if not is_eager:
                joint = functools.partial(self._gradient_and_samples, trace)
                program = self._compile(joint)
                if trace.is_joint:
                    return MeterPlan(program, has_losses=trace.has_losses)
            # Only a graph shows how weights are used.
            samples_alone = functools.partial(self._samples_alone, trace)
            samples = self._compile(samples_alone, eager=False)
            gradient = self._compile(self._gradient_alone)
            return MeterPlan(gradient, samples, has_losses=trace.has_losses)
        except MissingLoss:
            raise
        except Exception as error:  # an error of the batch comes again
            return self._plan_without_samples(error, trace)

    def _plan_without_samples(self, error, trace):
        """Return the plan for the gradient alone: the samples' failed."""
        claim, cause = "are not defined", trace.refusal
        if cause is None:
            claim, cause = "cannot be obtained here", reason(error)
        clause = f"the samples' own gradients {claim}: {cause}"
        return MeterPlan(
            self._compile(self._gradient_alone),
            undefined=clause.rstrip(".") + ".",
        )

    def _gradient_alone(self, x, y, sample_weight, request, direction):
        del request, direction
        penalties = Penalties(self.model)
        with tf.GradientTape() as tape:
            y_pred = call_model(self.model, x)
            with penalties.noted():
                loss = measured_loss(
                    self.model, x, y, y_pred=y_pred, sample_weight=sample_weight
                )
            target = self._scaled(loss)
        gradients = tape.gradient(target, self._values)
        return (
            loss,
            self._without_penalties(gradients, penalties.gradients(loss)),
            {},
        )

    def _gradient_and_samples(
        self, trace, x, y, sample_weight, request, direction
    ):
        """Return the gradient, and what is wanted of the samples."""
        # One program computes both, so TensorFlow runs the backward pass once.
        batch_tape = tf.GradientTape()
        loss, target, _, observe = self._trace_samples(
            trace, (x, y, sample_weight), batch_tape
        )
        # The samples' tape keeps the gradients of regularisers separate.
        gradients = self._without_penalties(
            batch_tape.gradient(target, self._values)
        )
        observed = observe(gradients, request=request, direction=direction)
        return loss, gradients, observed

    def _samples_alone(self, trace, x, y, sample_weight, request, direction):
        _, _, factors, observe = self._trace_samples(
            trace, (x, y, sample_weight), contextlib.nullcontext()
        )
        sums = self._dense([f and f.weighted_sum(None) for f in factors])
        return observe(sums, request=request, direction=direction)

    def _trace_samples(self, trace, batch, outer_context):
        """Return the loss, also scaled, the factors, and `_observe` of them."""

        def refuse(layer, error):
            trace.refusal = error
            raise error

        x, y, sample_weight = batch
        tape = TracedStep(self.model, batch, loss=measured_loss, refuse=refuse)
        with outer_context, tape:
            y_pred = tape.forward(x)
            loss = measured_loss(
                self.model, x, y, y_pred=y_pred, sample_weight=sample_weight
            )
            target = self._scaled(loss)
        scale = loss_scale(self.model.optimizer)
        factors = tape.sample_gradients(target, scale)
        losses = None
        if self._needs_slopes:
            losses = sample_losses(
                self.model, y, y_pred, sample_weight=sample_weight
            )
            trace.has_losses = losses is not None
        # If it calls a layer in its own way, or vectorises it, the norms are
        # measured separately: repetitions must use the layer's ordinary call.
        trace.is_joint = all(call.rule.forward is None for call in tape.calls)
        observe = functools.partial(self._observe, loss, factors, losses=losses)
        return loss, target, factors, observe

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
        trained = [
            None if is_overwritten(variable) else gradient
            for variable, gradient in zip(self._variables, gradients)
        ]
        return dense_gradients(trained, self._variables)

    def _observe(self, loss, factors, gradients, *, losses, request, direction):
        """Return by name what is wanted of the samples."""
        n, dtype = self.samples, self._dtype

        def observe_all():
            held = [f and f.held() for f in factors]
            squares = [self._squared_sample_norms(factor) for factor in held]
            quantities = {}
            if self._quantities is not None:
                quantities = self._quantities(
                    n, held, gradients=gradients, dtype=dtype
                )
            return {"squared_norms": tf.stack(squares), **quantities}

        def observe_slopes():
            return {
                "slopes": self._quantities.dots(
                    n, factors, directions=direction, dtype=dtype
                ),
                "losses": tf.reshape(n * tf.cast(losses, dtype), [n]),
            }

        observed = compute_if(tf.equal(request, _ALL_SAMPLES), observe_all)
        if losses is not None:
            needs_any = tf.not_equal(request, _NO_SAMPLES)
            observed |= compute_if(needs_any, observe_slopes)
        data_loss = _loss_of_data(loss, self.model, self._variables)
        return {**observed, "loss": data_loss}

    def _squared_sample_norms(self, factor):
        """Return ‖g_i‖² of the samples, (n,); a contribution is g_i / n."""
        if factor is None:
            return tf.zeros([self.samples], self._dtype)
        squares = tf.cast(factor.squared_norms(), self._dtype)
        squares *= tf.cast(self.samples**2, self._dtype)
        return tf.reshape(squares, [self.samples])

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
            return compute(*pack_like(self.batch, parts), request, direction)

        def arguments(request, direction=None):
            if self._needs_slopes and direction is None:
                direction = self._values
            direction = [tf.convert_to_tensor(d) for d in direction or ()]
            return tensors_of(self.batch), tf.constant(request), direction

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


def _loss_of_data(loss, model, variables):
    """Return the loss without the regularisers that Keras adds."""
    if has_own_loss(model):
        return loss
    return loss - tf.cast(regularization_loss(variables), loss.dtype)


class TrainingReader(StepReader):
    """Reads the gradient of the batch, and what instruments are made of.

    Attributes:
        quantities: the `SampleQuantities`, once the model is built.
        is_wanted: whether the next step is read.
        observation: the `Observation` of the last one, or None.
    """

    def __init__(self):
        self.quantities: Any = None
        self.observation: Observation | None = None
        self.is_wanted = False

    def is_due(self):
        return self.is_wanted

    def read(self, samples):
        dtype, samples = samples.dtype, samples.held()
        mean, loss = samples.mean(), samples.loss
        quantities = self.quantities(
            samples.n, samples.factors, gradients=mean, dtype=dtype
        )
        return {
            **quantities,
            "squared_norms": samples.squared_norms(),
            "mean": mean,
            "loss_with_penalties": loss,
            "loss": _loss_of_data(loss, samples.model, samples.variables),
        }

    def receive(self, values):
        measured = tf.nest.map_structure(np.asarray, values)
        gradient = measured.pop("mean")
        loss = measured.pop("loss_with_penalties")
        n = measured["squared_norms"].shape[1]
        self.observation = observe(
            gradient,
            samples=n,
            loss=loss,
            measured=measured,
            is_defined=n > 1,
        )
