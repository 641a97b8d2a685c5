"""The traced step whose memory is predicted: gradients and their application.

The model is left as it is: the loss is compiled aside, an optimizer that has
no variables yet is copied, and nothing runs.
"""

import contextlib
import math

import keras
import tensorflow as tf

from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.compiled_losses import compiled_as
from keras_pergrad.keras_internals.model_parts import (
    compile_arguments,
    compiled_loss,
    symbolic_outputs,
    trace_symbolically,
)
from keras_pergrad.keras_internals.model_state import (
    losses_kept,
    random_state_kept,
)
from keras_pergrad.keras_internals.tracing import inspecting, traced_functions


class StepMemory:
    """The steps of a model by a gradient mode, traced for sizes of a batch.

    `specs`: n → the `TensorSpec`s of n samples; `y`: a batch of targets, or
    None: they are guessed from the outputs and the loss.

    Attributes:
        slots: bytes of the variables that the optimizer has yet to make.
    """

    def __init__(self, model, specs, y=None):
        _refuse_own_step(model)
        _refuse_replicas(model)
        self._model, self._specs, self._y = model, specs, y
        given = compile_arguments(model) if model.compiled else {}
        self._loss = given.get("loss")
        self._other = keras.Model()
        names = getattr(model, "output_names", None)
        if names is not None:
            self._other.output_names = names
        self._other.compile(
            loss="mse" if self._loss is None else self._loss,
            loss_weights=given.get("loss_weights"),
        )
        self._optimizer, self.slots = _ready(model)

    def trace(self, mode, n, jit_compile=False):
        """Return the traced step of `n` samples, not run."""
        x = self._specs(n)
        batch = x, self._targets(x, n)
        loss = compiled_loss(self._other)
        if not loss.built:
            loss.build(_symbolic(batch[1]), self._outputs(x))
        return self._traced(mode, batch, jit_compile)

    def _traced(self, mode, batch, jit_compile):
        model, optimizer = self._model, self._optimizer
        aggregation = mode.aggregation
        state = aggregation and aggregation.make_state()

        def step(batch):
            mode.build(model)
            step = mode.step(model, *batch, None)
            if step.gradients is not None:
                gradients = tf.tuple(step.gradients)
                optimizer.apply(gradients, model.trainable_variables)
            return step.loss, step.y_pred

        with contextlib.ExitStack() as stack:
            for context in (
                random_state_kept(),
                losses_kept(model),
                compiled_as(model, self._other),
                attribute(model, "optimizer", optimizer),
                attribute(model, "aggregation_state", state),
                attribute(model, "gradient_state", mode.make_state()),
                inspecting(),
                traced_functions(),
            ):
                stack.enter_context(context)
            function = tf.function(
                step, autograph=False, jit_compile=jit_compile
            )
            return function.get_concrete_function(batch)

    def _targets(self, x, n):
        if self._y is not None:
            return tf.nest.map_structure(
                lambda t: tf.TensorSpec([n, *t.shape[1:]], t.dtype),
                tf.nest.map_structure(tf.convert_to_tensor, self._y),
            )
        sparse = "sparse" in _name_of(self._loss).lower()
        outputs = self._outputs(x)
        return tf.nest.map_structure(lambda t: _target(t, n, sparse), outputs)

    def _outputs(self, x):
        outputs = symbolic_outputs(self._model)
        if outputs is None:
            outputs = trace_symbolically(self._model, _symbolic(x))
        return outputs


def _symbolic(batch):
    return tf.nest.map_structure(
        lambda t: keras.KerasTensor(t.shape, t.dtype.name), batch
    )


def _target(output, n, sparse):
    shape = [n, *output.shape[1:]]
    if sparse:
        return tf.TensorSpec(shape[:-1], tf.int32)
    return tf.TensorSpec(shape, output.dtype)


def _name_of(loss):
    """Return the names of losses in one text."""
    parts = [
        part
        if isinstance(part, str)
        else getattr(part, "__name__", None) or type(part).__name__
        for part in tf.nest.flatten(loss)
        if part is not None
    ]
    return " ".join(parts)


def _ready(model):
    """Return an optimizer with variables, and the bytes of those it lacks."""
    own = model.optimizer if model.compiled else None
    if own is not None and own.built:
        return own, 0
    if own is None:
        optimizer = keras.optimizers.SGD()
    else:
        optimizer = type(own).from_config(own.get_config())
    optimizer.build(model.trainable_variables)
    return optimizer, sum(map(bytes_of, optimizer.variables))


def bytes_of(variable):
    """Return the bytes of a variable, or of a tensor's spec."""
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size


def _refuse_replicas(model):
    count = model.distribute_strategy.num_replicas_in_sync
    if count > 1:
        raise ValueError(
            f"Model {model.name!r} belongs to a tf.distribute strategy with "
            f"{count} replicas: expected a model of one device, whose memory "
            "can be predicted. Make the same model outside of the strategy's "
            "scope; each replica takes a part of the batch."
        )


def _refuse_own_step(model):
    for kind in type(model).__mro__:
        ours = kind.__module__.split(".")[0] in ("keras", "keras_pergrad")
        if not ours and "train_step" in vars(kind):
            raise ValueError(
                f"Model {model.name!r} has a train_step() of its own "
                f"({kind.__name__}), whose memory cannot be predicted: "
                "expected a model that trains by Keras's step. Measure such a "
                "step in a process of its own."
            )
