"""`keras.Model` with the gradient under the user's control."""

import contextlib
import functools
import inspect
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad import modes
from keras_pergrad.common import batches
from keras_pergrad.common.arguments import named_arguments, require_known
from keras_pergrad.common.callback_list import (
    EndOfEpochs,
    as_callback_list,
    prepare_fit,
    restored_at_end,
    with_first,
)
from keras_pergrad.common.names import did_you_mean
from keras_pergrad.common.registry import PACKAGE, serialize
from keras_pergrad.keras_internals.data.views import rows_of_views
from keras_pergrad.keras_internals.losses.losses import track_loss
from keras_pergrad.keras_internals.models import trained_parts
from keras_pergrad.keras_internals.models.building import (
    build_all,
    vouched_names,
)
from keras_pergrad.keras_internals.models.parts import (
    Functional,
    has_inputs_and_outputs,
    make_functional,
    naming_missing_loss,
    require_free_names,
    require_gradients,
    require_no_texts,
    require_targets,
    require_variables,
)
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.keras_internals.replicas.advice import advise, advising
from keras_pergrad.keras_internals.replicas.hooks import (
    FitHooks,
    bounded_samples,
    converted,
    not_converted,
    require_compiled,
)
from keras_pergrad.keras_internals.state.saved import (
    AggregationState,
    ValueState,
)
from keras_pergrad.model import custom_step
from keras_pergrad.model.logs import Logs, log_statistics
from keras_pergrad.modes.batch import evaluate
from keras_pergrad.modes.one_step import for_optimizer
from keras_pergrad.modes.part_metrics import update_metrics
from keras_pergrad.modes.step_options import StepOptions
from keras_pergrad.modes.step_readers import (
    StepReadings,
    checks_of,
    readings_of,
)


def compiled_state(aggregation, previous_state):
    """Return the `aggregation_state` of a model that is compiled."""
    state = aggregation and aggregation.make_state(previous_state)
    has_begun = (
        isinstance(previous_state, AggregationState) and previous_state.begun
    )
    if not has_begun or (aggregation is not None and aggregation.counts):
        return state
    if state is not None:
        raise ValueError(_STATE_LOST.format(aggregation))
    return previous_state


@contextlib.contextmanager
def during_fit(model, arguments):
    """Have the arguments of a `fit` checked and changed; note its ends."""
    if not model.compiled:
        yield  # Keras says so.
        return
    require_no_texts(model, arguments.get("x"), arguments.get("y"))
    mode = model.gradient_mode
    prepare_fit(
        model,
        arguments,
        arguments.get("x"),
        arguments.get("validation_data"),
        mode.aggregation,
    )
    mode.begin_fit(model)
    state = model.aggregation_state
    with bounded_samples(mode):
        if not isinstance(state, AggregationState):
            yield
            return
        state.begin_fit(model)
        try:
            yield
        finally:
            state.end_fit(model)


@not_converted
def require_fit(model, received, is_step=False):
    """Refuse training outside of `fit` if the model's mode counts updates."""
    aggregation = model.gradient_mode.aggregation if model.compiled else None
    if aggregation is not None:
        aggregation.require_fit(model, received, is_step=is_step)


def _require_batch(model, args, kwargs):
    """Refuse lists and texts in place of the arrays of one batch, (x, y)."""
    given = {**dict(zip(("x", "y"), args)), **kwargs}
    if model.compiled:  # Else Keras says so.
        require_no_texts(model, given.get("x"), given.get("y"))


_STATE_LOST = (
    "The model was trained privately, and what was spent would be forgotten. "
    "Expected the gradient_mode of a PrivateTraining, or one without a state. "
    "Received: {}. To give up the statement of what was spent, set "
    "model.aggregation_state = None before."
)


def _require_subclass(model_class, arguments):
    """Refuse arguments of the class itself that are no inputs and outputs."""
    if model_class is PerGradModel and arguments:
        raise TypeError(
            "PerGradModel() expected symbolic `inputs` and `outputs`. "
            f"Received: {', '.join(type(a).__name__ for a in arguments)}. "
            "Write PerGradModel.from_model(model) for a model that there is, "
            "and PerGradModel.from_model(keras.Sequential(layers)) for a list "
            "of layers."
        )


def _require_no_mode(arguments):
    """Refuse a mode, which a functional model would pass over."""
    if "gradient_mode" in arguments:
        raise TypeError(
            "PerGradModel() expected `inputs`, `outputs` and what keras.Model "
            f"takes. Received: gradient_mode={arguments['gradient_mode']!r}. "
            "Give it to compile(), as in model.compile(..., gradient_mode=...)."
        )


@keras.saving.register_keras_serializable(PACKAGE)
class PerGradModel(FitHooks, keras.Model):
    """A `keras.Model` whose train step can use every sample's gradient.

    Use it like `keras.Model`: with inputs and outputs, or subclassed. It adds
    `compile(gradient_mode=...)`:

    | `gradient_mode` | what a train step does |
    |---|---|
    | `"batch"` (default) | exactly what `keras.Model` does |
    | `"per_sample"`, `PerSample(...)` | one pass per sample, in a loop |
    | `"vectorized"`, `Vectorized(...)` | one pass, by ops and their rules |
    | `"accumulated"`, `Accumulated(...)` | the batch in microbatches |
    | `"by_task"`, `ByTask(...)` | one gradient for each loss, aggregated |

    The mean of the per-sample gradients is the ordinary gradient of the Keras
    loss, with sample weights, class weights, loss weights, masks, several
    outputs and `add_loss`. Weight regularisers are added after aggregation.

    Args:
        inputs, outputs: as for `keras.Model`; omit them for a subclass that
            defines `call`.

    Example:

    >>> import keras
    >>> import keras_pergrad as kpg
    >>> inputs = keras.Input((4,))
    >>> outputs = keras.layers.Dense(3)(inputs)
    >>> model = kpg.PerGradModel(inputs, outputs)
    >>> model.compile("adam", "mse", gradient_mode="vectorized")
    """

    #: True where a helper of one's own `train_step` calls compute_gradients.
    step_uses_gradient_mode = False
    #: What `compile(vouched=...)` was given.
    vouched = ()
    #: The `StepOptions` of the steps that train now.
    step_options = StepOptions()
    #: The `StepReadings`, once a reader was opened.
    _step_readings = None
    #: What `from_model` calls. `wrapping`, whose classes derive from this
    #: one, sets it: it cannot be imported here.
    _wrap_model: Any = None

    def __new__(cls, *args, **kwargs):
        # Keras turns a class that is used with inputs and outputs into a
        # functional one for good; a class of its own keeps this one clean.
        if cls is PerGradModel and has_inputs_and_outputs(args, kwargs):
            _require_no_mode(kwargs)
            return super().__new__(FunctionalPerGradModel)
        _require_subclass(cls, args)
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        if has_inputs_and_outputs(args, kwargs):
            _require_no_mode(kwargs)
            make_functional(type(self), PerGradModel, FunctionalPerGradModel)
            Functional.__init__(self, *args, **kwargs)
        else:
            super().__init__(*args, **kwargs)
        setattr(self, trained_parts.ATTRIBUTE, trained_parts.LoRA(self))

    @classmethod
    def from_model(cls, model):
        """Return a PerGradModel that shares the layers and weights of `model`.

        What the model overrides is used: `compute_loss`, `compute_metrics`
        and, if it is built, what is around the steps: `fit`, `compile` etc. So
        a task of keras-hub keeps its preprocessor, defaults, `generate`.

        Args:
            model: any `keras.Model`: Sequential, functional or subclassed.

        Returns:
            A `PerGradModel`, not compiled. Training one trains the other.

        Raises:
            TypeError, ValueError: `model` is no `keras.Model`; it overrides
                `train_step`; or it is not built and overrides more.

        Example:

        >>> import keras
        >>> import keras_pergrad as kpg
        >>> net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        >>> model = kpg.PerGradModel.from_model(net)
        """
        wrapped = PerGradModel._wrap_model(cls, model)
        state = getattr(model, "aggregation_state", None)
        if isinstance(state, AggregationState):
            wrapped.aggregation_state = state.handed_on(model, wrapped)
        return wrapped

    def compile(
        self,
        *args: Any,
        gradient_mode: str | modes.GradientMode | dict[str, Any] = "batch",
        vouched: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        """Configure training: `keras.Model.compile` and the gradient mode.

        Args:
            gradient_mode: a name, a `GradientMode` object or its config dict.
            vouched: names of layers, or types of ops (`"EagerPyFunc"`), that
                treat each sample by itself and leave the samples on their
                axis. Nothing checks it; the privacy statement says so.
            *args: as for `keras.Model.compile`.
            **kwargs: as for `keras.Model.compile`.

        Raises:
            ValueError: the mode is unknown; a per-sample mode is given to a
                model without trainable variables; the model overrides
                `train_step` and does not use the mode there (see
                `compute_gradients`); or `vouched` names no layer and no op.
        """
        known = ["gradient_mode", "vouched"]
        for compile_ in (keras.Model.compile, super().compile):
            known += inspect.signature(compile_).parameters
        for name in set(kwargs).difference(known):
            if hint := did_you_mean(name, known):
                raise TypeError(
                    "compile() expected `gradient_mode`, `vouched` and what "
                    "keras.Model.compile takes. Received: "
                    f"{name}={kwargs[name]!r}.{hint}"
                )
        if len(args) > 2 and isinstance(args[2], (str, modes.GradientMode)):
            raise TypeError(
                "compile() expected the gradient mode by name. Received: "
                f"{args[2]!r} in third place, which is that of loss_weights. "
                "Write gradient_mode=... ."
            )
        mode = modes.get(gradient_mode)
        vouched = vouched_names(self, vouched)
        if type(self).train_step is not PerGradModel.train_step:
            custom_step.require_mode_used(type(self), PerGradModel, mode)
        if mode.per_sample and self.built:
            require_variables(self)
        with replicas.scope_of(self):
            super().compile(*args, **kwargs)
            self._gradient_mode = mode
            self.vouched = vouched
            # Not a list of metrics: Keras would report them in evaluate(), too.
            self._gradient_logs = Logs(mode.log_metrics)
            self.gradient_state = mode.make_state()
            old_state = getattr(self, "aggregation_state", None)
            self.aggregation_state = compiled_state(mode.aggregation, old_state)
        self._watch_logs = None
        self.step_options = StepOptions()
        if self._step_readings is not None:
            self._step_readings.on_compile()

    @property
    def gradient_mode(self):
        """The mode given to `compile`, as an object."""
        if not self.compiled:
            require_compiled(self, "gradient_mode")
        return self._gradient_mode

    @property
    def gradient_logs(self):
        """The `Logs` of the mode's statistics, for modes that add to them."""
        if not self.compiled:
            require_compiled(self, "gradient_logs")
        return self._gradient_logs

    @functools.cached_property
    def value_state(self):
        """What `callbacks.SampleValues` keeps, saved with the weights."""
        return ValueState()

    def watch_gradients(self):
        """Make a per-sample mode log its statistics while this is open.

        As with `statistics=True`, but the gradients stay the same, to the bit.
        Modes without statistics are left as they are. Callbacks open it when
        training begins.
        """
        require_compiled(self, "watch_gradients")
        return log_statistics(self)

    def read_steps(self, reader):
        """Have a `modes.StepReader` read the steps that train while open.

        Args:
            reader: a `keras_pergrad.modes.StepReader`; several may be open.

        Raises:
            TypeError: it is no such object.
            ValueError: its steps cannot be read; the error says why. `compile`
                raises it, too, while a reader is open.
        """
        require_compiled(self, "read_steps")
        if self._step_readings is None:
            self._step_readings = StepReadings(self, PerGradModel)
        return self._step_readings.opened(reader)

    def get_compile_config(self):
        config = super().get_compile_config()
        if config:
            config["gradient_mode"] = serialize(self._gradient_mode)
            config["trained_parts"] = trained_parts.config_of(self)
            if self.vouched:
                config["vouched"] = list(self.vouched)
        return config

    def compile_from_config(self, config):
        config = keras.saving.deserialize_keras_object(config)
        trained_parts.restore(self, config.pop("trained_parts", None))
        self.compile(**config)
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def fit(self, *args, **kwargs):
        signature = inspect.signature(super().fit)
        require_known("fit", signature.parameters, kwargs)
        bound = signature.bind(*args, **kwargs)
        arguments = bound.arguments
        callbacks = arguments.get("callbacks")
        with restored_at_end(self, callbacks), during_fit(self, arguments):
            try:
                callbacks = arguments.get("callbacks")
                callbacks = with_first(EndOfEpochs(self), callbacks)
                arguments["callbacks"] = callbacks
                prepare_fit(self, arguments, *as_callback_list(callbacks))
                return super().fit(*bound.args, **bound.kwargs)
            except Exception as error:
                advise(error, self.distribute_strategy)
                raise

    fit.__doc__ = keras.Model.fit.__doc__

    def train_on_batch(self, *args, **kwargs):
        require_fit(self, "train_on_batch()")
        _require_batch(self, args, kwargs)
        mode = self.gradient_mode if self.compiled else None
        with bounded_samples(mode), advising():
            return super().train_on_batch(*args, **kwargs)

    train_on_batch.__doc__ = keras.Model.train_on_batch.__doc__

    def test_on_batch(self, *args, **kwargs):
        _require_batch(self, args, kwargs)
        return super().test_on_batch(*args, **kwargs)

    test_on_batch.__doc__ = keras.Model.test_on_batch.__doc__

    def input_gradients(self, x, *args, **kwargs):
        """Call `keras_pergrad.input_gradients` with this model; see there."""
        import keras_pergrad

        return keras_pergrad.input_gradients(self, x, *args, **kwargs)

    def reset_metrics(self):
        super().reset_metrics()
        if getattr(self, "_gradient_logs", None):
            self._gradient_logs.reset()

    @not_converted
    def train_step(self, data):
        """Train on one batch, by the gradient mode."""
        mode = self._gradient_mode
        parts = keras.utils.unpack_x_y_sample_weight(batches.as_tensors(data))
        require_targets(self, parts)
        if type(mode) is modes.Batch and not replicas.has_several_replicas():
            with naming_missing_loss(self):
                return super().train_step(batches.without_numbers(data))
        require_fit(self, "train_step() in a custom loop", is_step=True)
        x, y, sample_weight = batches.with_checked_lengths(*parts)
        x, numbers = batches.split_numbers(x)
        readers = self.step_options.readers
        checks = checks_of(readers, numbers) if readers else ()
        # Loops and the optimizer need all variables.
        rows, targets, _, weights = rows_of_views(
            x, y, None, sample_weight=sample_weight
        )
        build_all(self, (rows, targets, weights))
        mode.build(self)
        require_variables(self)
        step = mode.step(self, x, y, sample_weight)
        require_free_names(self, step.statistics, mode)
        if step.loss is not None:
            track_loss(
                self, step.loss, batches.sample_count(x), whole=step.whole
            )
        if step.gradients is not None:
            require_gradients(self, step.gradients)
            gradients = for_optimizer(step.gradients, checks)
            if step.whole:
                replicas.apply(
                    self.optimizer, gradients, self.trainable_variables
                )
            else:
                self.optimizer.apply(gradients, self.trainable_variables)
        logs = self._metric_logs(x, y, step.y_pred, sample_weight=sample_weight)
        logs = {**logs, **self._gradient_logs.update(step.statistics)}
        logs = replicas.as_logs(logs)
        if readers:
            logs.update(readings_of(step, mode, readers, numbers=numbers))
        return logs

    @named_arguments
    def compute_gradients(
        self,
        loss_fn,
        x,
        y=None,
        sample_weight=None,
        *,
        variables=None,
        optimizer=None,
        name=None,
        return_outputs=False,
    ):
        """Compute gradients by the compiled mode, in your own `train_step`.

        For GANs, VAEs, distillation: `gradient_mode` says how each sample's
        gradient is clipped, measured or accumulated; all else in the step is
        up to you. Call it once for each loss of the step.

        Args:
            loss_fn: `loss_fn(x, y, sample_weight)` may call any models and
                returns the loss of each sample, (n,). Their mean is minimised,
                with weight regularisers and what layers of this model give to
                `add_loss` inside, as in Keras. All data of the samples must be
                arguments: it is also called with only some of the samples.
                What it raises reaches you as it is.
            x, y, sample_weight: tensors of shape (n, ...), or structures of
                them, such as (real, noise); y and sample_weight may be None.
            variables: what to differentiate with respect to: variables, a
                layer or model (built or not), or a list of them; by default
                `self.trainable_variables`.
            optimizer: the one that will apply the gradients, by default
                `self.optimizer`; it matters only if it scales the loss.
            name: a prefix for the logs of one of several losses: "d" gives
                "d_loss", "d_clipped_fraction".
            return_outputs: whether `loss_fn` returns (losses, outputs):
                tensors (n, ...), such as predictions for metrics.

        Returns:
            (gradients, logs) or (gradients, logs, outputs): one gradient per
            variable (None: the loss does not depend on it) for
            `optimizer.apply(gradients, variables)`, weight regularisers and
            noise included; a dict by name of the epoch's mean loss and what
            the mode logs; the outputs of the batch, in its order. On several
            replicas of a strategy the gradients are those of the batch of all,
            and each replica gets an equal share, which `apply` adds up.

        Raises:
            TypeError: `loss_fn` is not a function.
            ValueError: losses or outputs of another shape, a layer couples the
                samples, the mode calls the optimizer itself or (for outputs)
                takes microbatches; on several replicas, the optimizer clips
                or something was not built in the strategy's scope.

        Example:

        >>> import keras
        >>> import keras_pergrad as kpg
        >>> class Own(kpg.PerGradModel):
        ...     def train_step(self, data):
        ...         def loss_fn(x, y, sample_weight):
        ...             y_pred = self(x, training=True)
        ...             return (y - y_pred)[:, 0] ** 2, y_pred  # (n,), (n, 1)
        ...         gradients, logs, y_pred = self.compute_gradients(
        ...             loss_fn, *data, return_outputs=True)
        ...         self.optimizer.apply(gradients, self.trainable_variables)
        ...         return {**logs, **self.compute_metrics(*data, y_pred)}
        >>> inputs = keras.Input((4,))
        >>> model = Own(inputs, keras.layers.Dense(1)(inputs))
        >>> model.compile("sgd", metrics=["mae"], gradient_mode="vectorized")
        >>> x, y = keras.ops.ones((8, 4)), keras.ops.ones((8, 1))
        >>> sorted(model.fit(x, y, verbose=0).history)
        ['loss', 'mae']
        """
        require_fit(self, "compute_gradients()")
        return custom_step.function_gradients(
            self,
            converted(loss_fn),
            (x, y, sample_weight),
            variables=variables,
            optimizer=optimizer,
            name=name,
            return_outputs=return_outputs,
        )

    def test_step(self, data):
        """Run one step of `evaluate` on one batch."""
        data = batches.without_numbers(data)  # as in a validation split
        require_targets(self, keras.utils.unpack_x_y_sample_weight(data))
        if not replicas.has_several_replicas():
            with naming_missing_loss(self):
                return super().test_step(data)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        loss, y_pred, is_whole = evaluate(self, x, y, sample_weight)
        track_loss(
            self, loss, tf.shape(batches.first_tensor(x))[0], whole=is_whole
        )
        logs = self._metric_logs(x, y, y_pred, sample_weight=sample_weight)
        return replicas.as_logs(logs)

    def _metric_logs(self, x, y, y_pred, *, sample_weight):
        """Update the metrics, if there are outputs; return the results."""
        if y_pred is None:
            return self.get_metrics_result()
        rows = rows_of_views(x, y, y_pred, sample_weight=sample_weight)
        if not replicas.has_several_replicas():
            return self.compute_metrics(*rows)
        variables = self.metrics_variables
        replicas.update(variables, lambda: update_metrics(self, rows))
        return self.get_metrics_result()

    def _logs_of_epoch(self, logs, otherwise):
        """Return an epoch's metrics of all replicas, and the other logs."""
        own, several = type(self), self.distribute_strategy.num_replicas_in_sync
        is_ours = own.train_step is PerGradModel.train_step or (
            several > 1 and custom_step.uses_mode(own, PerGradModel)
        )
        if not is_ours or not isinstance(logs, dict):
            return otherwise(logs)
        self._gradient_logs.warn_of_blank_batches(self, logs)
        if several == 1:
            names = set(logs).difference(self._gradient_logs.names)
            return {**logs, **otherwise({name: logs[name] for name in names})}
        metrics = self.get_metrics_result()
        return {**logs, **metrics} if set(metrics) <= set(logs) else logs


@keras.saving.register_keras_serializable(PACKAGE)
class FunctionalPerGradModel(Functional, PerGradModel):
    """What `PerGradModel(inputs, outputs)` gives."""
