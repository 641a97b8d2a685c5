"""One layer's call, repeated for a single sample of a recorded batch.

This is the exact way to a per-sample gradient for a layer that has no rule:
the call is run again on row i, with the random numbers that row i had in the
batch, and differentiated alone. Nothing it assigns is kept.
"""

import dataclasses
import functools

import keras
import tensorflow as tf

from keras_pergrad.common import refusal_messages
from keras_pergrad.common.batches import is_composite
from keras_pergrad.keras_internals.data import views
from keras_pergrad.keras_internals.graphs import draws as draws_module
from keras_pergrad.keras_internals.losses.losses import loss_tensors
from keras_pergrad.keras_internals.models.parts import (
    layers_of,
    mask_of,
    set_mask,
)
from keras_pergrad.keras_internals.tensorflow import settings

_HALF = ("float16", "bfloat16")


@dataclasses.dataclass
class Recorded:
    """The inputs and results of a call of `layer` for the whole batch.

    Attributes:
        layer: the layer (or model).
        args, kwargs: what its `call` was given.
        training: the value of `training` inside: layers that are called
            without the argument take it from the outer call. None: not set.
        draws: the random draws made inside, in order.
        outputs: the flat list of the `loss_tensors` of its output.
        losses: the tensors given to `add_loss` inside.
    """

    layer: keras.layers.Layer
    args: tuple
    kwargs: dict
    training: bool | None
    draws: list
    outputs: list
    losses: list = dataclasses.field(default_factory=list)

    @property
    def batch_axis(self):
        """The static batch size (None: unknown), from the first tensor."""
        tensors = _tensors((self.args, self.kwargs))
        if not tensors or tensors[0].shape.rank in (None, 0):
            return None
        return tensors[0].shape[0]


class _CallContext(keras.layers.Layer):
    """A call of a function with `training` set for all layers inside."""

    def __init__(self, function):
        super().__init__(name="sample", dtype="float32")
        self.function = function

    def call(self, inputs, training=None):
        del inputs, training
        return self.function()


def _layers_in(part):
    """Return the layers of a model or layer; a loss has none."""
    return layers_of(part) if isinstance(part, keras.layers.Layer) else []


def _tensors(structure):
    return [t for t in tf.nest.flatten(structure) if tf.is_tensor(t)]


class Replay:
    """A recorded call that can be repeated row by row.

    `state` has pairs of other variables and the values that they had before
    the recorded call.

    Raises:
        ValueError: when the call drew random numbers in a way that cannot be
            repeated for one sample.
    """

    def __init__(self, recorded, variables, state=()):
        self.recorded = recorded
        self._state = list(state)
        # The variables themselves, not their values: a custom gradient, as in
        # `keras.remat`, does not pass on gradients of captured tensors.
        self.values = [v.value for v in variables]
        self._views = views.count_views(*recorded.args)
        self._rows = [self._draw_rows(draw) for draw in recorded.draws]
        #: How far a repeated value may be off, relative to its size; None:
        #: only as far as its type rounds.
        self.tolerance = 0.05 if _is_coarse(recorded.layer) else None
        # What all outputs add up is rounded by its size, not by that of what
        # is left of it in those of a single sample.
        self._coarse_scales = [
            _largest(t) if self.tolerance and t.dtype.is_floating else None
            for t in recorded.outputs
        ]

    def _draw_rows(self, draw):
        caller = f"layer {self.recorded.layer.name!r}"
        if draw.name == "shuffle":
            raise ValueError(
                f"{caller} calls keras.random.shuffle, which mixes the "
                "samples of a batch: a per-sample gradient is not defined. "
                "Shuffle in the input pipeline instead."
            )
        if draw.graph is not draws_module.current_graph():
            raise ValueError(
                f"{caller} calls keras.random.{draw.name} inside a loop or a "
                "condition, so that one sample's numbers cannot be told from "
                "the batch's. Draw the numbers before the loop."
            )
        rows = draw.rows()
        if rows.shape.rank == 0:
            return rows  # One number for all samples.
        size = self.recorded.batch_axis
        if size is not None:
            size *= self._views or 1
        if rows.shape[0] not in (None, 1, size):
            raise ValueError(
                f"{caller} calls keras.random.{draw.name} for an array of "
                f"shape {tuple(rows.shape)}, whose first axis is not the "
                "batch. Draw one number, or numbers of shape (batch, ...) or "
                "(1, ...)."
            )
        return rows

    def _take(self, tensor, rows):
        """Return these rows of a batch tensor; other tensors as they are."""
        if is_composite(tensor):
            raise ValueError(
                refusal_messages.sparse_layer_input(self.recorded.layer)
            )
        if not tf.is_tensor(tensor) or tensor.shape.rank in (None, 0):
            return tensor
        if tensor.shape[0] != self.recorded.batch_axis:
            return tensor
        selected = tf.gather(tensor, rows)
        mask = mask_of(tensor)
        if mask is not None:
            set_mask(selected, tf.gather(mask, rows))
        return selected

    def _take_drawn(self, drawn, rows):
        """Return the numbers that were drawn for these rows of the batch."""
        if drawn.shape.rank == 0 or drawn.shape[0] == 1:
            return drawn
        if self._views:
            rows = rows[:, None] * self._views + tf.range(self._views)
            rows = tf.reshape(rows, [-1])
        return tf.gather(drawn, rows)

    def forward(self, rows):
        """Return the outputs and added losses of a batch of these rows."""
        args, kwargs = tf.nest.map_structure(
            lambda t: self._take(t, rows),
            (self.recorded.args, self.recorded.kwargs),
        )
        drawn_rows = [self._take_drawn(r, rows) for r in self._rows]
        scope = keras.StatelessScope(self._state, collect_losses=True)
        layer = self.recorded.layer
        call = layer
        if self._views and _layers_in(layer):
            call = functools.partial(views.on_rows, layer)
        context = _CallContext(lambda: call(*args, **kwargs))
        with scope, draws_module.replaying(drawn_rows):
            outputs = context(tf.zeros([]), training=self.recorded.training)
        return loss_tensors(outputs), scope.losses

    def gradients(self, i, output_gradients, loss_weights=()):
        """Return what row i contributes to each variable's gradient, or None.

        Given are the gradient of the total loss for each output, (n, ...) or
        None, and the factor of each added loss in the total.
        """
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for value in self.values:
                tape.watch(value)
            # With a gather XLA knows the size of the batch, 1.
            row = tf.reshape(i, [1])
            outputs, losses = self.forward(row)
            targets, weights = [], []
            for output, gradient in zip(outputs, output_gradients):
                if gradient is not None:
                    targets.append(output)
                    weights.append(tf.gather(gradient, row))
            for loss, weight in zip(losses, loss_weights):
                targets.append(loss)
                weights.append(tf.cast(weight, loss.dtype))
        result = tape.gradient(targets, self.values, output_gradients=weights)
        is_reproduced = self._check_reproduced(row, outputs, output_gradients)
        return [
            None if g is None else _nan_unless(is_reproduced, g)
            for g in map(_dense, result)
        ]

    def _check_reproduced(self, row, outputs, output_gradients):
        """Return whether row i was reproduced; in graphs also assert it."""
        checks = []
        for single, batch, gradient, scale in zip(
            outputs,
            self.recorded.outputs,
            output_gradients,
            self._coarse_scales,
        ):
            if gradient is None:
                continue
            if single.shape.rank != batch.shape.rank:
                raise ValueError(self._message())
            reference = tf.gather(batch, row), scale, self.tolerance
            checks.append(is_close(single, *reference))
        is_reproduced = tf.reduce_all(checks) if checks else tf.constant(True)
        check = tf.debugging.Assert(is_reproduced, [self._message()])
        if check is None:
            return is_reproduced
        with tf.control_dependencies([check]):
            return tf.identity(is_reproduced)

    def _message(self):
        layer = self.recorded.layer
        return (
            f"layer {layer.name!r} ({type(layer).__name__}) gives another "
            "output for a sample alone than for the same sample in its batch. "
            "It mixes the samples of a batch, moves the batch off the first "
            "axis, or draws numbers without keras.random; its per-sample "
            "gradient cannot be computed. Make the layer act on each sample "
            "alone and draw with keras.random, or use gradient_mode='batch'."
        )


def _largest(tensor):
    """Return the largest size of the numbers, but for NaN and infinity."""
    sizes = tf.abs(tf.cast(tensor, tf.float64))
    finite = tf.math.is_finite(sizes)
    return tf.reduce_max(tf.where(finite, sizes, tf.zeros_like(sizes)))


def _dense(gradient):
    return None if gradient is None else tf.convert_to_tensor(gradient)


def _nan_unless(is_reproduced, gradient):
    """Return NaN if the check failed: XLA drops assertions, but not NaN."""
    nan = tf.constant(float("nan"), gradient.dtype)
    return tf.where(is_reproduced, gradient, nan)


def is_close(single, batch, scale=None, tolerance=None):
    """Whether both are equal up to rounding; NaN counts as reproduced.

    For outputs that are computed coarsely, `scale` is how large they are, and
    `tolerance` how far they may be off, relative to it.
    """
    if not single.dtype.is_floating:
        return tf.constant(True)
    # A float64 model may compute in float32 inside.
    epsilon = {"float64": 1e-4, "float32": 1e-3}.get(single.dtype.name, 0.05)
    single = tf.cast(single, tf.float64)
    batch = tf.cast(batch, tf.float64)
    error = tf.reduce_max(tf.abs(single - batch))
    if scale is None:
        scale = tf.reduce_max(tf.abs(batch))
    differs = error > (tolerance or epsilon) * (scale + 1e-3)
    return tf.logical_or(tf.logical_not(differs), tf.math.is_nan(error))


def _is_coarse(layer):
    """Whether products inside may have factors of at most eleven bits."""
    # A GPU may take ten bits of a factor in one product and all of them in
    # another, such as in that of a batch and that of one of its samples.
    types = {getattr(x, "compute_dtype", None) for x in _layers_in(layer)}
    if types.intersection(_HALF):
        return True
    return types != {"float64"} and settings.may_use_tf32()
