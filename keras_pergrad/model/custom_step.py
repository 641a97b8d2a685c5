"""Gradients by the compiled mode inside the user's own `train_step`.

The user's function of a batch becomes the call of a model. The output of this
model is one loss per sample, and its compiled loss is their mean. So every
gradient mode serves it like any other model.
"""

import contextlib
import inspect
from types import FunctionType

import keras
import tensorflow as tf

from keras_pergrad.common.arguments import text
from keras_pergrad.common.batches import (
    TEXTS_AS_TARGETS,
    TEXTS_TO_NUMBERS,
    map_tensors,
    pack_like,
    require_arrays,
)
from keras_pergrad.keras_internals.losses.compiled import (
    compile_loss_of_samples,
)
from keras_pergrad.keras_internals.losses.losses import track_loss
from keras_pergrad.keras_internals.models.optimizers import nested_optimizers
from keras_pergrad.keras_internals.models.parts import (
    inner_layers,
    trace_symbolically,
)
from keras_pergrad.keras_internals.replicas import replicas, strategies
from keras_pergrad.keras_internals.replicas.advice import TEXT_ERRORS
from keras_pergrad.keras_internals.replicas.hooks import not_converted
from keras_pergrad.model.logs import prefixed
from keras_pergrad.modes.accumulated import Accumulated
from keras_pergrad.modes.batch import Batch
from keras_pergrad.modes.one_step import for_optimizer


class LossModel(keras.Model):
    """A model of a batch whose outputs are the samples' losses, (n,)."""

    def __init__(
        self, owner, loss_fn, batch, *, variables, optimizer, with_outputs
    ):
        # A batch is passed on unchanged, not cast to the owner's format.
        super().__init__(name=owner.name, dtype="float32", autocast=False)
        self.owner = owner
        # Keras must not track the variables as this model's own.
        object.__setattr__(self, "_chosen", list(variables))
        object.__setattr__(self, "_loss_fn", loss_fn)
        object.__setattr__(self, "_batch", batch)
        object.__setattr__(self, "keeps_outputs", with_outputs)
        object.__setattr__(self, "_errors", [])
        loss = _MeanOfOutputs(dtype=keras.config.floatx())
        compile_loss_of_samples(self, loss, owner)
        self.run_eagerly = owner.run_eagerly
        self.optimizer = optimizer
        self.aggregation_state = owner.aggregation_state
        self.step_options = owner.step_options
        object.__setattr__(self, "gradient_logs", owner.gradient_logs)
        self.gradient_state = None
        self.built = True

    @property
    def trainable_variables(self):
        return list(self._chosen)

    def call(self, inputs):
        batch = pack_like(self._batch, inputs)
        try:
            if not self.keeps_outputs:
                return checked_losses(self._loss_fn(*batch))
            losses, outputs = _losses_and_outputs(self._loss_fn(*batch))
            losses = checked_losses(losses)
            return losses, checked_outputs(outputs, losses)
        except Exception as error:
            self._errors.append(error)
            raise

    @contextlib.contextmanager
    def original_errors(self):
        """Raise what `loss_fn` raised, where Keras raised it in other words."""
        try:
            yield
        except Exception as error:
            # Keras raises a new error from ours, or while it handles ours.
            cause: BaseException | None = error
            while cause is not None:
                if any(cause is raised for raised in self._errors):
                    raise cause from cause.__cause__
                cause = cause.__context__
            raise


def checked_losses(losses):
    """Return what `loss_fn` gave for a batch, if it is of shape (n,)."""
    if isinstance(losses, (list, tuple, dict)) or losses is None:
        raise ValueError(
            "`loss_fn` expected to return one tensor, the losses of the "
            f"samples. Received: a {type(losses).__name__}"
        )
    losses = tf.convert_to_tensor(losses)
    if losses.shape.rank == 0:
        raise ValueError(
            "`loss_fn` expected to return one loss for each sample, of shape "
            "(n,), whose mean is minimised. Received: one number for the "
            "batch. Leave out the mean over the samples: use "
            "keras.losses.mean_squared_error(y, y_pred) and the like, or a "
            "keras.losses.Loss with reduction=None, and ops.mean over all "
            "axes but the first."
        )
    if losses.shape.rank not in (1, None):
        raise ValueError(
            "`loss_fn` expected to return one loss for each sample, of shape "
            f"(n,). Received: losses of shape {tuple(losses.shape)}. Take "
            "their mean or sum over all axes but the first."
        )
    return losses


def checked_outputs(outputs, losses):
    """Return a structure of tensors, if each has a row for each loss."""
    outputs = tf.nest.map_structure(tf.convert_to_tensor, outputs)
    shapes = [tuple(t.shape) for t in tf.nest.flatten(outputs)]
    n = losses.shape[0]
    if any(not s or (None not in (s[0], n) and s[0] != n) for s in shapes):
        raise ValueError(
            "with return_outputs=True `loss_fn` expected to return (losses, "
            "outputs), where each output has one row for each sample, of "
            f"shape (n, ...). Received: outputs of shapes {shapes}, and losses "
            f"of shape {tuple(losses.shape)}. Log numbers of the whole batch "
            "by a metric."
        )
    return outputs


def _losses_and_outputs(result):
    if isinstance(result, (list, tuple)) and len(result) == 2:
        return result
    raise ValueError(
        "with return_outputs=True `loss_fn` expected to return a pair "
        "(losses, outputs), such as (losses, y_pred). Received: "
        f"a {type(result).__name__}"
        + (f" of {len(result)}" if isinstance(result, (list, tuple)) else "")
    )


@not_converted
def function_gradients(
    owner,
    loss_fn,
    batch,
    *,
    variables=None,
    optimizer=None,
    name=None,
    return_outputs=False,
):
    """Return a function's gradients by the compiled mode, logs and outputs."""
    if not callable(loss_fn):
        raise TypeError(
            "compute_gradients() expected as first argument a function "
            "`loss_fn(x, y, sample_weight)` that returns the loss of each "
            "sample, and then the data: compute_gradients(loss_fn, x, y). "
            f"Received: loss_fn of type {type(loss_fn).__name__}"
        )
    _require_three_arguments(loss_fn)
    if name is not None:
        text("name", name, " or None")
    mode = owner.gradient_mode
    optimizer = owner.optimizer if optimizer is None else optimizer
    if return_outputs and isinstance(mode, Accumulated):
        raise ValueError(_NO_OUTPUTS.format(mode=mode))
    if replicas.has_several_replicas():
        _require_shares(optimizer)
    if mode.updates_by_itself:
        alternative = "PerSample(updates='batch')"
        if isinstance(mode, Accumulated):
            alternative = "Accumulated(steps=1, microbatch_size=...)"
        raise ValueError(
            "compute_gradients() leaves the update to its caller, but "
            f"gradient_mode={mode!r} calls the optimizer itself. Use "
            f"{alternative}."
        )
    x, y, _ = batch
    require_arrays(x, y)
    batch = map_tensors(tf.convert_to_tensor, batch)
    with _naming_texts(batch):
        _build_layers(owner, loss_fn, batch, return_outputs=return_outputs)
    if variables is None:
        variables = owner.trainable_variables
    sources = keras.tree.flatten(variables)
    for source in sources:
        is_variable = isinstance(source, (keras.Variable, tf.Variable))
        if not is_variable and not hasattr(source, "trainable_variables"):
            raise TypeError(
                "`variables` expected variables, a layer or a model, or a "
                f"list of them. Received: {source!r} of type "
                f"{type(source).__name__}"
            )
    variables = [
        variable
        for source in sources
        for variable in getattr(source, "trainable_variables", [source])
    ]
    if not variables:
        raise ValueError(
            "`variables` expected at least one trainable variable. Received: "
            "none. Weights of a layer that no call has built yet are not in "
            "its list: pass the layer or model instead, as in "
            "variables=self.generator."
        )
    strategies.require_inside(owner, variables, optimizer)
    model = LossModel(
        owner,
        loss_fn,
        batch,
        variables=variables,
        optimizer=optimizer,
        with_outputs=return_outputs,
    )
    inputs = tuple(t for t in tf.nest.flatten(batch) if t is not None)
    n = tf.shape(inputs[0])[0]
    # Keras wants targets; the mean of the outputs needs none.
    zero_targets = tf.zeros(tf.reshape(n, [1]), keras.config.floatx())
    zero_targets.set_shape([inputs[0].shape[0]])
    with (
        _naming_texts(batch),
        _explain_closures(loss_fn),
        model.original_errors(),
    ):
        step = mode.step(model, inputs, zero_targets, None)
    if return_outputs and step.y_pred is None:
        raise ValueError(_NO_OUTPUTS.format(mode=mode))
    if not name:
        # Keras overwrites the results of a step with those of its metrics.
        track_loss(owner, step.loss, n, whole=step.whole)
    logs = prefixed(name, {"loss": step.loss, **step.statistics})
    logs = owner._gradient_logs.of_loss(name).update(logs)
    outputs = [step.y_pred[1]] if return_outputs else []
    prepare = tf.tuple if type(mode) is Batch else for_optimizer
    gradients = prepare(step.gradients)
    if step.whole:
        gradients = replicas.shares(gradients)
    return gradients, logs, *outputs


@contextlib.contextmanager
def _naming_texts(batch):
    """Name the texts in a batch from which numbers were expected."""
    # They may be right: a function may look them up before it calls layers.
    try:
        yield
    except (ValueError, tf.errors.OpError) as error:
        is_text = [
            any(getattr(t, "dtype", None) == tf.string for t in parts)
            for parts in map(tf.nest.flatten, batch)
        ]
        if not any(is_text) or not any(t in str(error) for t in TEXT_ERRORS):
            raise
        if not is_text[0]:
            raise ValueError(TEXTS_AS_TARGETS) from error
        raise ValueError(
            "compute_gradients() expected numbers as `x`. Received: texts. "
            f"{TEXTS_TO_NUMBERS}"
        ) from error


def _require_three_arguments(loss_fn):
    """Refuse a `loss_fn` that cannot be called with a batch's three parts."""
    try:
        signature = inspect.signature(loss_fn)
    except ValueError:  # of a function that is not written in Python
        return
    try:
        signature.bind(None, None, None)
    except TypeError as error:
        raise TypeError(
            "`loss_fn` expected three arguments, loss_fn(x, y, sample_weight); "
            "the last two may be None. Received: a function of "
            f"{signature}. Write `def loss_fn(x, y, sample_weight):`, and pass "
            "what else it needs as in functools.partial."
        ) from error


def require_mode_used(cls, base, mode):
    """Refuse a mode that the `train_step` of a class would ignore."""
    if type(mode) is not Batch and not uses_mode(cls, base):
        raise ValueError(_OWN_STEP.format(name=cls.__name__, mode=mode))


def uses_mode(cls, base):
    """Whether a `train_step` calls `compute_gradients` or that of `base`."""
    for owner in cls.__mro__:
        if owner is base:
            return True
        step = vars(owner).get("train_step")
        if step is None:
            continue
        step = getattr(step, "python_function", step)
        step = getattr(step, "__wrapped__", step)
        names = step.__code__.co_names if isinstance(step, FunctionType) else ()
        if "compute_gradients" in names or owner.step_uses_gradient_mode:
            return True
        if "train_step" not in names:
            return False
    return True


class _MeanOfOutputs(keras.losses.Loss):
    """The mean of the outputs, which are losses already."""

    def __init__(self, dtype=None):
        super().__init__(
            name="loss_fn", reduction="sum_over_batch_size", dtype=dtype
        )

    def call(self, y_true, y_pred):
        return y_pred


@contextlib.contextmanager
def _explain_closures(loss_fn):
    """Say what to do if `loss_fn` uses tensors that are no arguments of it."""
    try:
        yield
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        names, text = _captured_tensors(loss_fn), str(error)
        is_tracing_error = isinstance(error, ValueError)
        is_size_error = (
            names and ("input shapes" if is_tracing_error else "shape") in text
        )
        if "out of scope" not in text and not is_size_error:
            raise
        tensors = ", ".join(map(repr, names)) or "such a tensor"
        raise ValueError(
            "`loss_fn` uses tensors of the step that are not its arguments, "
            "and it is called with only some of the samples. Expected all "
            "data of the samples as arguments, also noise that is drawn "
            f"before. Received: {tensors} from outside. Pass it, as in "
            "compute_gradients(loss_fn, (x, noise), y). Compute numbers such "
            "as an annealed weight inside `loss_fn`, from variables."
        ) from error


def _captured_tensors(function):
    """Return the names of tensors that a function uses from outside."""
    function = inspect.unwrap(getattr(function, "func", function))
    try:
        closure = inspect.getclosurevars(function)
    except TypeError:  # an object that can be called
        return []
    return [
        name
        for name, value in {**closure.globals, **closure.nonlocals}.items()
        if any(isinstance(t, tf.Tensor) for t in _flatten(value))
    ]


def _flatten(value):
    return tf.nest.flatten(value) if type(value) in _NESTED_TYPES else [value]


def _require_shares(optimizer):
    """Refuse an optimizer that would not train by shares of a gradient."""
    strategies.require_built(optimizer)
    for nested in nested_optimizers(optimizer):
        for name in ("clipnorm", "global_clipnorm", "clipvalue"):
            value = getattr(nested, name, None)
            if value:
                raise ValueError(
                    "compute_gradients() on several replicas gives each its "
                    "share of the gradient, which the optimizer adds up after "
                    "it has clipped. Expected an optimizer that does not clip. "
                    f"Received: {name}={value!r}. Clip each sample by the "
                    "mode, as in Vectorized(ClippedMean(1.0)); or train by "
                    "fit() without a train_step of your own."
                )


def _build_layers(owner, loss_fn, batch, *, return_outputs):
    """Create the weights of layers that no call has built yet."""
    unbuilt = [layer for layer in inner_layers(owner) if not layer.built]
    if not unbuilt:
        return
    if replicas.has_several_replicas():
        raise ValueError(
            "compute_gradients() on several replicas expected layers that are "
            f"built. Received: layer {unbuilt[0].name!r}, which has no weights "
            "yet. Build it, or call it on a batch, inside `with "
            "strategy.scope():`; then build its optimizer."
        )
    specs = map_tensors(
        lambda t: keras.KerasTensor(t.shape, t.dtype.name), batch
    )
    trace_symbolically(loss_fn, *specs)


_NO_OUTPUTS = (
    "compute_gradients(return_outputs=True) expected a mode that has the whole "
    "batch at once. Received: gradient_mode={mode!r}, which calls `loss_fn` "
    "for one microbatch after the other and keeps no outputs. Leave out "
    "return_outputs and call the model for the metrics, as in "
    "self.compute_metrics(x, y, self(x, training=True)); or use "
    "gradient_mode='vectorized', 'per_sample' or 'batch'."
)

_NESTED_TYPES = (list, tuple, dict)

_OWN_STEP = (
    "{name} has a train_step of its own, which would ignore "
    "gradient_mode={mode!r}. Inside it, get the gradients by the mode:\n\n"
    "    def train_step(self, data):\n"
    "        x, y = data\n"
    "        def loss_fn(x, y, sample_weight):  # one loss for each sample\n"
    "            y_pred = self(x, training=True)\n"
    "            return keras.losses.mean_squared_error(y, y_pred)\n"
    "        gradients, logs = self.compute_gradients(loss_fn, x, y)\n"
    "        self.optimizer.apply(gradients, self.trainable_variables)\n"
    "        return logs\n\n"
    "(Where a helper of train_step calls it, say so by the class attribute "
    "step_uses_gradient_mode = True.) Or leave gradient_mode='batch'."
)
