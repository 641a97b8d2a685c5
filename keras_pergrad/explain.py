"""What a vectorized step would do with a model, layer by layer.

The tape runs in a trace on symbolic inputs.

Private names in use: `Functional._inputs_struct`,
`Trainer._resolve_auto_jit_compile`.
"""

import math

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.arguments import positive_integer
from keras_pergrad.explanation import Explanation, LayerRow, VariableRow
from keras_pergrad.factors import join, widened
from keras_pergrad.model_state import random_state_kept
from keras_pergrad.refusals import not_one_number
from keras_pergrad.replay import is_composite
from keras_pergrad.tape import Tape


def explain(model, batch_size=32, x=None, jit_compile=None):
    """Says before training how each layer's gradients will be found.

    The model is traced on inputs of this batch size. Parts of it that Keras
    does not ship are tried out on a few made-up samples, where they can be;
    what mixes them there is refused. A layer without a rule is checked with
    every batch, too: training stops with an error that names it.

    Args:
        model: a `keras.Model`, compiled or not.
        batch_size: the number of samples in a batch; or a batch of inputs in
            its place: explain(model, x) takes its size from it.
        x: a batch, or one sample, whose shapes and dtypes are those of
            training; needed where the model does not know its inputs.
        jit_compile: whether the step is compiled by XLA; default: what the
            model was compiled with.

    Returns:
        An `Explanation`: prints as a table, in a terminal and in a notebook;
        iterates over `LayerRow` objects.

    Raises:
        TypeError: `model` is no `keras.Model`.
        ValueError: `batch_size` is not positive, or the inputs are unknown.

    Example:

    >>> import keras
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> table = kpg.explain(model, batch_size=64)
    >>> table.rows[0].served_by, table.rows[0].variables[0].norms
    ('rule', 'product')
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a keras.Model. Received: "
            f"{model!r} of type {type(model).__name__}"
        )
    if x is None and not isinstance(batch_size, (int, np.integer)):
        x, batch_size = batch_size, _rows_in(batch_size)
    batch_size = positive_integer("batch_size", batch_size)
    if jit_compile is None:
        jit_compile = model.compiled and model.jit_compile
    if jit_compile == "auto":
        jit_compile = model._resolve_auto_jit_compile()
    specs = _specs(model, batch_size, x)
    if not model.built:
        sample = tf.nest.map_structure(_zeros, specs)
        model(sample)
    rows = []

    def trace(x):
        rows.extend(_rows(model, x, batch_size))

    with random_state_kept():
        tf.function(
            trace, autograph=False, jit_compile=bool(jit_compile)
        ).get_concrete_function(specs)
    return Explanation(model.name, batch_size, bool(jit_compile), tuple(rows))


def _rows_in(x):
    """The number of samples in a batch given in place of its size."""
    sizes = [t.shape for t in tf.nest.flatten(x) if hasattr(t, "shape")]
    if not sizes or not len(sizes[0]):
        raise ValueError(
            "`batch_size` expected a positive integer, or a batch of inputs "
            f"(arrays) in its place. Received: batch_size={x!r}"
        )
    return int(sizes[0][0])


def _specs(model, batch_size, x):
    if x is not None:
        return tf.nest.map_structure(lambda t: _spec(t, batch_size), x)
    known = getattr(model, "_inputs_struct", None)
    if known is None and getattr(model, "inputs", None):
        known = model.inputs if len(model.inputs) > 1 else model.inputs[0]
    if known is None:
        raise ValueError(
            f"Model {model.name!r} does not know the shapes of its inputs. "
            "Pass a batch: explain(model, batch_size, x=x)."
        )
    return tf.nest.map_structure(lambda t: _spec(t, batch_size), known)


def _spec(tensor, n):
    """The type of `n` samples like those in a tensor, perhaps symbolic."""
    if not isinstance(tensor, keras.KerasTensor) and not is_composite(tensor):
        tensor = tf.convert_to_tensor(tensor)
    shape = [n, *tensor.shape[1:]]
    if isinstance(tensor, tf.SparseTensor) or getattr(tensor, "sparse", False):
        return tf.SparseTensorSpec(shape, tensor.dtype)
    if isinstance(tensor, tf.RaggedTensor) or getattr(tensor, "ragged", False):
        return tf.RaggedTensorSpec(shape, tensor.dtype)
    return tf.TensorSpec(shape, tensor.dtype)


def _zeros(spec):
    return tf.zeros([1 if s is None else s for s in spec.shape], spec.dtype)


class _Collecting(Tape):
    """A tape that notes refusals and goes on."""

    def __init__(self, model):
        super().__init__(model)
        self.refusals = []

    def refuse(self, layer, error):
        self.refusals.append((layer, str(error), len(self.calls)))

    def layers(self):
        """Those with a call or a refusal, as they were first called."""
        found = [(k, layer) for layer, _, k in self.refusals]
        for k, call in enumerate(self.calls):
            # A call is noted when it ends, after those inside it.
            found += [(k + 0.5, one.layer) for one in call.parents]
            found.append((k + 0.5, call.layer))
        ordered = [layer for _, layer in sorted(found, key=lambda kv: kv[0])]
        concerned = {id(call.layer) for call in self.calls}
        concerned |= {id(layer) for layer, _, _ in self.refusals}
        unique = {id(layer): layer for layer in ordered}
        return [one for key, one in unique.items() if key in concerned]


def _rows(model, x, n):
    tape = _Collecting(model)
    _look_at_losses(model, tape.refuse)
    with tape:
        y_pred = tape.forward(x)
        loss = tf.add_n(
            [
                tf.reduce_sum(tf.cast(t, tf.float32))
                for t in tf.nest.flatten(y_pred)
                if tf.is_tensor(t) and t.dtype.is_floating
            ]
        )
    found, joined = {}, {}
    for call, variable, factor in tape.parts(loss):
        found.setdefault(id(call.layer), {})[id(variable)] = variable
        joined.setdefault(id(variable), []).append(factor)
    refusals = {}
    for layer, message, _ in tape.refusals:
        refusals.setdefault(id(layer), message)
    for layer in tape.layers():
        key = id(layer)
        calls = [call for call in tape.calls if call.layer is layer]
        variables = tuple(
            _variable_row(v, joined[k], n)
            for k, v in found.get(key, {}).items()
        )
        reason = next((c.reason for c in calls if c.reason), None)
        if key in refusals:
            served, reason, variables = "refused", refusals[key], ()
        elif not variables:
            served = "unused"
        elif any(c.rule is None for c in calls):
            served = "fallback"
            reason = reason or "there is no rule for its class"
        else:
            served = "rule"
        yield LayerRow(
            layer.name,
            getattr(layer, "path", None) or layer.name,
            type(layer).__name__,
            served,
            reason,
            len(calls),
            variables,
        )


def _look_at_losses(model, refuse):
    """Refuses what training would: a loss for each sample, not for all."""
    for loss in tf.nest.flatten(getattr(model, "loss", None)):
        reduction = getattr(loss, "reduction", "sum")
        if isinstance(loss, keras.losses.Loss) and reduction in (None, "none"):
            message = not_one_number(f"a loss with reduction={reduction!r}")
            refuse(model, ValueError(message))


def _variable_row(variable, factors, n):
    factor = widened(join(factors), variable.value.dtype)
    return VariableRow(
        variable.path,
        tuple(variable.shape),
        factor.chosen_method(),
        factor.sum_method(),
        n * math.prod(variable.shape) * tf.as_dtype(variable.dtype).size,
        factor.norm_bytes(n),
        len(factors) > 1,
    )
