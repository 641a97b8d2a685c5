"""Forward and backward passes on a plain tape, in a chosen float format.

No gradient here comes from the package's tape, rules or factors: their results
are judged by these gradients. The package's tape only tells whether samples are
coupled, which decides what is compared. `reference` finds coupling in the
outputs, too.
"""

import contextlib
import functools

import keras
import tensorflow as tf

from keras_pergrad.common.batches import map_tensors
from keras_pergrad.keras_internals.graphs import draws
from keras_pergrad.keras_internals.losses.compiled import losses_computing_in
from keras_pergrad.keras_internals.losses.losses import total_loss
from keras_pergrad.keras_internals.losses.regularizers import (
    regularization_gradients,
)
from keras_pergrad.keras_internals.models.layers import layer_computing_in
from keras_pergrad.keras_internals.models.parts import (
    call_model,
    compiled_loss,
    layers_of,
    logits_behind,
    mask_of,
    set_logits,
    set_mask,
)
from keras_pergrad.keras_internals.tensorflow.cudnn import loops_instead
from keras_pergrad.uses import TracedStep, refusals


class Uncheckable(ValueError):
    """A model that has no gradient to compare with."""


class PlainTape:
    """Differentiates a model's compiled loss, of a batch or one sample.

    Only the first values of the model's variables are used, and nothing that it
    assigns is kept. `dtype` is the format to compute in; None: the model's own.
    """

    def __init__(
        self,
        model,
        y,
        sample_weight,
        *,
        dtype=None,
        recorded_draws=(),
        eager=False,
    ):
        self.model = model
        self.dtype = dtype
        self.recorded_draws = list(recorded_draws)
        self.coupling_reasons = []
        self._variables = [v for v in model.variables if _is_float(v)]
        self.trainable = list(model.trainable_variables)
        positions = {id(v): k for k, v in enumerate(self._variables)}
        self._trainable_places = [positions[id(v)] for v in self.trainable]
        self._y, self._sample_weight = y, sample_weight
        self._structure = None
        compile_function = (lambda f: f) if eager else _as_function
        self.forward = compile_function(self._forward)
        self.sample = compile_function(self._sample)
        self.added = compile_function(self._added)
        self.batch = compile_function(self._batch)

    def values(self):
        """Return the variables' values, a list of tensors."""
        tensors = [tf.convert_to_tensor(v.value) for v in self._variables]
        return cast(tensors, self.dtype)

    def _run(self, values, x, row=None):
        """Return what the model gives for the batch, or for one row of it."""
        with self._scope(values) as scope, draws.replaying(self._draws(row)):
            y_pred = call_model(self.model, x)
        return y_pred, scope.losses

    @contextlib.contextmanager
    def _scope(self, values):
        scope = keras.StatelessScope(collect_losses=True)
        # Not by the scope's argument, which casts to the variable's format.
        for variable, value in zip(self._variables, values):
            scope.state_mapping[id(variable)] = value
        with _computing_in_dtype(self.model, self.dtype), scope:
            yield scope
        for k in self._trainable_places:
            variable = self._variables[k]
            if scope.state_mapping[id(variable)] is not values[k]:
                raise Uncheckable(
                    f"The forward pass writes to the trainable variable "
                    f"{variable.path!r}, so that the gradient is not one of "
                    f"the weights that it starts from. Such a model (with "
                    f"SpectralNormalization, for example) cannot be checked."
                )

    def _draws(self, row):
        draws = [
            tf.convert_to_tensor(numbers) for numbers in self.recorded_draws
        ]
        draws = cast(draws, self.dtype)
        if row is None:
            return draws
        return [d if d.shape[0] == 1 else _single_row(d, row) for d in draws]

    def _forward(self, values, x):
        """Return outputs, logits, masks, added losses; fill `coupled`."""
        batch = x, self._y, self._sample_weight
        self.coupling_reasons += map(
            str, refusals(TracedStep(self.model, batch))
        )
        y_pred, added = self._run(values, x)
        self._structure = y_pred
        outputs = tf.nest.flatten(y_pred)
        logits = [logits_behind(t) for t in outputs]
        masks = [mask_of(t) for t in outputs]
        return outputs, logits, masks, added

    def _added(self, values, x, row):
        """Return the added losses of one sample alone."""
        sample = tf.nest.map_structure(lambda t: _single_row(t, row), x)
        return [tf.reduce_sum(a) for a in self._run(values, sample, row)[1]]

    def _sample(self, values, x, row, full_outputs, factors):
        """Return one sample's part of the gradient, and the gap of outputs."""
        # The other samples' outputs are constants, so the loss keeps the
        # denominators that it has for the batch.
        outputs, logits, masks, _ = full_outputs
        sample = tf.nest.map_structure(lambda t: _single_row(t, row), x)
        weights = [values[k] for k in self._trainable_places]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            y_pred, added = self._run(values, sample, row)
            sample_outputs = tf.nest.flatten(y_pred)
            joined_outputs = [
                _join(b, s, row) for b, s in zip(outputs, sample_outputs)
            ]
            for tensor, old, mask, new in zip(
                joined_outputs, logits, masks, sample_outputs
            ):
                if old is not None:
                    joined_logits = _join(old, logits_behind(new), row)
                    set_logits(tensor, joined_logits)
                if mask is not None:
                    set_mask(tensor, mask)
            loss = self._loss(
                tf.nest.pack_sequence_as(self._structure, joined_outputs)
            )
            parts = [] if loss is None else [loss]
            parts += [f * tf.reduce_sum(a) for f, a in zip(factors, added)]
        if not parts:
            return [None] * len(weights), _gap(outputs, sample_outputs, row)
        gradients = map_tensors(
            tf.convert_to_tensor, tape.gradient(parts, weights)
        )
        return list(gradients), _gap(outputs, sample_outputs, row)

    def _loss(self, y_pred):
        compiled = compiled_loss(self.model)
        if compiled is None:
            return None
        # The compiled loss updates its own metrics, so it needs a scope.
        with (
            _computing_in_dtype(self.model, self.dtype),
            keras.StatelessScope(),
        ):
            return compiled(self._y, y_pred, self._sample_weight)

    def _batch(self, values, x):
        """Return the gradient of the whole loss, for the batch as one."""
        weights = [values[k] for k in self._trainable_places]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            with self._scope(values), draws.replaying(self._draws(None)):
                y_pred = call_model(self.model, x)
                loss = total_loss(
                    self.model,
                    x,
                    self._y,
                    y_pred=y_pred,
                    sample_weight=self._sample_weight,
                )
        return map_tensors(tf.convert_to_tensor, tape.gradient(loss, weights))

    def penalties(self, values):
        """Return the gradients of the weight regularisers, None without one."""
        with self._scope(values):
            return regularization_gradients(self.trainable)


def _as_function(function):
    # TensorFlow counts the traces of one piece of code, over all models, and
    # warns of too many; a partial function counts by itself.
    return tf.function(functools.partial(function), autograph=False)


def _is_float(variable):
    return str(variable.dtype).startswith(("float", "bfloat"))


def _join(batch, sample, row):
    """Return the batch with one row in which the gradient flows."""
    n, rank = batch.shape[0], batch.shape.rank
    is_row = tf.reshape(tf.range(n) == row, [n] + [1] * (rank - 1))
    return tf.where(is_row, sample, tf.stop_gradient(batch))


def _single_row(tensor, row):
    """Return one row; with a gather the batch size, 1, stays known."""
    return tf.gather(tensor, tf.reshape(row, [1]))


def _gap(batch, sample, row):
    """Return how far a sample's outputs differ, relative to all outputs."""
    gaps = [tf.zeros([], tf.float64)]
    for b, s in zip(batch, sample):
        if b.dtype.is_floating:
            b, s = tf.cast(b, tf.float64), tf.cast(s, tf.float64)
            error = tf.reduce_max(tf.abs(b[row] - s[0]))
            gaps.append(error / (tf.reduce_max(tf.abs(b)) + 1e-300))
    return functools.reduce(tf.maximum, gaps)


@contextlib.contextmanager
def _computing_in_dtype(model, dtype):
    """Make a model with a built loss compute in `dtype`; None: as it is.

    Recurrent layers run their loop, as in the modes.
    """
    # No copy: that needs a `get_config`, which many models lack.
    with contextlib.ExitStack() as stack:
        stack.enter_context(loops_instead(layers_of(model)))
        if dtype is not None:
            policy = keras.DTypePolicy(dtype)
            for layer in layers_of(model):
                stack.enter_context(layer_computing_in(layer, policy))
            loss = compiled_loss(model)
            stack.enter_context(losses_computing_in(loss, dtype))
            stack.callback(keras.config.set_floatx, keras.config.floatx())
            keras.config.set_floatx(dtype)
        yield


def cast(structure, dtype):
    """Cast the floating-point tensors of a structure; None leaves them."""
    return tf.nest.map_structure(
        lambda t: (
            tf.cast(t, dtype)
            if dtype and tf.is_tensor(t) and t.dtype.is_floating
            else t
        ),
        structure,
    )
