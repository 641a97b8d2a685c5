"""A report of what a vectorized step would do with a model, layer by layer.

The step is traced on symbolic inputs and not run.
"""

import functools
import itertools
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.checking.numerics import precision
from keras_pergrad.common.arguments import (
    named_arguments,
    positive_integer,
    require_switch,
)
from keras_pergrad.common.batches import require_arrays
from keras_pergrad.common.refusal_messages import not_one_number
from keras_pergrad.explanation import peak, step_memory
from keras_pergrad.explanation.explanation import (
    Explanation,
    LayerRow,
    VariableRow,
    VouchedOp,
)
from keras_pergrad.functions.data_passes import (
    require_call,
    require_outside_functions,
)
from keras_pergrad.keras_internals.losses.losses import additional_losses
from keras_pergrad.keras_internals.models.layers import (
    direct_sublayers,
    own_weights,
)
from keras_pergrad.keras_internals.models.parts import compiles_by_xla
from keras_pergrad.keras_internals.replicas.advice import advising
from keras_pergrad.keras_internals.state.model import preserve_random_state
from keras_pergrad.keras_internals.tensorflow import settings
from keras_pergrad.modes.accumulated import Accumulated
from keras_pergrad.modes.inspection import (
    fixed_batch_size,
    require_any_batch_size,
    require_model,
    require_no_data_set,
)
from keras_pergrad.uses import TracedStep, factor_of_uses, sum_of_outputs

_EXPLAIN_PARTS = (
    "Explain its parts, as in explain(model.generator, x). The losses that a "
    "PerGradModel gives to compute_gradients() in a train_step of its own are "
    "looked at, and refused where they must be, when training begins."
)


@advising()
@named_arguments
def explain(
    model: keras.Model,
    batch_size: Any = None,
    *,
    x: Any = None,
    y: Any = None,
    jit_compile: bool | None = None,
) -> Explanation:
    """Show before training how each layer's gradients will be computed.

    The model is traced on inputs of this batch size, but not run. The types of
    its ops prove that it keeps the samples separate. An op that mixes them, or
    is not known, is refused: by its name and layer, with the reason and what
    to do.

    Args:
        model: a `keras.Model`, compiled or not.
        batch_size: the number of samples in a batch; or a batch of inputs:
            explain(model, x) takes the size of x. Default: the size that the
            model's inputs name, else 32.
        x: a batch, or one sample, whose shapes and dtypes are those of
            training; needed where the model does not know its inputs.
        y: its targets, for `memory` alone; needed if the loss and the outputs
            do not determine them.
        jit_compile: whether the step is compiled by XLA; default: what the
            model was compiled with.

    Returns:
        An `Explanation`: prints as a table, in a terminal and in a notebook;
        iterates over `LayerRow` objects. Its `memory` is the peak of a
        step, measured once it is asked for.

    Raises:
        TypeError: `model` is no `keras.Model`.
        ValueError: `batch_size` is not positive, the inputs are unknown, or the
            model has no `call` (a GAN, for example): explain its parts. Its
            `compute_gradients` examines the whole step when training begins.

    Example:

    >>> import keras
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> table = kpg.explain(model, batch_size=64)
    >>> table.rows[0].served_by, table.rows[0].variables[0].ops
    ('ops', ('MatMul',))
    >>> table.verdict, table.rows[0].verdict
    ('proved', 'proved')
    """
    require_outside_functions()
    require_model(model)
    require_call(model, _EXPLAIN_PARTS)
    require_no_data_set(batch_size if x is None else x)
    if batch_size is None:
        batch_size = fixed_batch_size(model) or 32
    if x is None and not isinstance(batch_size, (int, np.integer)):
        x, batch_size = batch_size, _rows_in(batch_size)
    batch_size = positive_integer("batch_size", batch_size)
    require_arrays(batch_size if x is None else x, y)
    if jit_compile not in (None, "auto"):
        require_switch("jit_compile", jit_compile)
    if fixed_batch_size(model) not in (None, batch_size):
        request = f"is asked for batches of {batch_size}"
        require_any_batch_size(model, "explain()", request)
    requested_jit = jit_compile
    if jit_compile is None:
        jit_compile = model.compiled and model.jit_compile
    if jit_compile == "auto":
        jit_compile = compiles_by_xla(model)
    specs = step_memory.input_specs(model, batch_size, x)
    step_memory.build_on_zeros(model, specs)
    inspections = []

    def trace(x):
        inspections.append(_inspect_step(model, x, batch_size))

    with preserve_random_state():
        tf.function(
            trace, autograph=False, jit_compile=bool(jit_compile)
        ).get_concrete_function(specs)
    rows, ops, vouched = inspections[-1]

    def memory():
        own_jit = jit_compile if requested_jit is not None else None
        with step_memory.SavedModel(
            model, x, y, rows=batch_size, jit_compile=own_jit
        ) as saved:
            step = saved.step(step_memory.mode_of(model), batch_size)
        if step is None:
            raise step_memory.too_large(model, batch_size)
        return step

    return Explanation(
        model=model.name,
        batch_size=batch_size,
        jit_compile=bool(jit_compile),
        rows=rows,
        split=_batch_split(model, batch_size),
        ops=ops,
        vouched=vouched,
        products=_lost_precision(model),
        _memory=memory,
    )


def _batch_split(model, batch_size):
    """Say how `Accumulated` splits a batch; None: another mode."""
    mode = getattr(model, "_gradient_mode", None)
    if not isinstance(mode, Accumulated):
        return None
    size = mode.microbatch_size
    division = "stays whole"
    if size is not None and size < batch_size:
        division = f"is split into microbatches of {size}"
    frequency = "every batch" if mode.steps == 1 else f"{mode.steps} batches"
    return f"A batch of {batch_size} {division}; an update after {frequency}."


def _lost_precision(model):
    """Say how TensorFloat-32 shortens this model's products; None: not."""
    if precision(model) != "float32" or not settings.may_use_tf32():
        return None
    aggregation = step_memory.mode_of(model).aggregation
    remark = ""
    if aggregation is not None and aggregation.adds_noise:
        remark = " fit() switches it off while it adds noise."
    elif aggregation is not None and aggregation.limits_norms:
        remark = " A clipped sample may keep more than `clip_norm`."
    return (
        "On the GPU products of float32 have ten bits (TensorFloat-32), so "
        f"gradients and norms have three digits.{remark}"
    )


def _rows_in(x):
    """Return the number of samples in a batch given in place of its size."""
    sizes = [t.shape for t in tf.nest.flatten(x) if hasattr(t, "shape")]
    if not sizes or not len(sizes[0]):
        raise ValueError(
            "`batch_size` expected a positive integer, or a batch of inputs "
            f"(arrays) in its place. Received: batch_size={x!r}"
        )
    return int(sizes[0][0])


def _inspect_step(model, x, n):
    """Return the rows, how many ops have a type, and those vouched for."""
    refused = {}

    def refuse(layer, error):
        if layer is None and refused:
            # This error follows from an earlier refusal.
            return
        refused.setdefault(id(layer or model), str(error))

    batch = x, None, None
    traced = TracedStep(model, batch, loss=_sum_with_added, refuse=refuse)
    _refuse_unreduced(model, refuse)
    uses = {id(v): [] for v in traced.variables}
    try:
        with traced:
            y_pred = traced.forward(x)
            loss = _sum_with_added(
                model, x, None, y_pred=y_pred, sample_weight=None, training=True
            )
        aggregation = step_memory.mode_of(model).aggregation
        with settings.adding_noise(aggregation and aggregation.adds_noise):
            parts = list(traced.parts(loss))
        for k, factor, use in parts:
            seen = getattr(use, "seen", None)
            # After a refused layer nothing shows how an op is served.
            if not refused or seen is None or not seen.mixed:
                uses[id(traced.variables[k])].append((factor, use))
    except ValueError as error:
        refuse(None, error)
    ops, vouched = 0, {}
    if traced.proof is not None:
        types, origin = traced.proof.types, traced.proof.origin
        ops = types.typing.count
        for op, name in types.typing.vouched_ops:
            layer = origin.layer(name)
            vouched_op = VouchedOp(op, name, layer and layer.name)
            vouched.setdefault(id(layer), []).append(vouched_op)
    rows = tuple(_layer_rows(model, uses, refused, vouched=vouched, n=n))
    return rows, ops, tuple(itertools.chain(*vouched.values()))


def _layer_rows(model, uses, refused, *, vouched, n):
    """Yield a `LayerRow` for each trainable or refused layer."""
    for layer in _nested_layers(model):
        weights = [v for v in _direct_weights(layer) if id(v) in uses]
        used = [(v, uses[id(v)]) for v in weights if uses[id(v)]]
        path = getattr(layer, "path", None) or layer.name
        row = functools.partial(
            LayerRow, layer=layer.name, path=path, type=type(layer).__name__
        )
        if id(layer) in refused:
            yield row(
                served_by="refused",
                reason=refused[id(layer)],
                calls=1,
                verdict="refused",
            )
        elif used or (weights and not refused):  # else not all uses are known
            calls = max((len(each) for _, each in used), default=1)
            layer_uses = [use for _, each in used for use in each]
            served_by, reason = _how_served(model, layer_uses)
            verdict, vouched_inside = "open", ()
            if not refused and served_by != "unknown":
                vouched_inside = [
                    vouched.get(id(part), ()) for part in _nested_layers(layer)
                ]
                vouched_inside = tuple(itertools.chain(*vouched_inside))
                verdict = "vouched" if vouched_inside else "proved"
            yield row(
                served_by=served_by,
                reason=reason,
                calls=calls,
                variables=tuple(_variable_row(*pair, n) for pair in used),
                verdict=verdict,
                vouched=vouched_inside,
            )


def _how_served(model, uses):
    """Return what serves the uses of a layer's variables, and a reason."""
    if not uses:
        # A loss of the model's own may use what the outputs do not depend on.
        own = getattr(model, "wrapped", model)
        if peak.overrides(own, "compute_loss", "train_step"):
            return "unknown", _OWN_LOSS_REASON
        return "unused", None
    for _, use in uses:
        if getattr(use, "reason", None):
            return "fallback", use.reason
    rules = any(hasattr(use, "rule") for _, use in uses)
    return "rule" if rules else "ops", None


def _sum_with_added(model, x, y, y_pred, sample_weight, training):
    """Return the sum of the outputs and of what was given to `add_loss`."""
    outputs = sum_of_outputs(
        model,
        x,
        y,
        y_pred=y_pred,
        sample_weight=sample_weight,
        training=training,
    )
    added = [
        tf.cast(tf.reduce_sum(loss), outputs.dtype)
        for loss in additional_losses(model)
    ]
    return tf.add_n([outputs, *added])


def _nested_layers(layer, visited=None):
    """Yield a layer and all layers inside it, each once, as they were made."""
    visited = set() if visited is None else visited
    if id(layer) not in visited:
        visited.add(id(layer))
        yield layer
        for inner in direct_sublayers(layer):
            yield from _nested_layers(inner, visited)


def _direct_weights(layer):
    parts = direct_sublayers(layer)
    nested_weights = [
        getattr(part, "trainable_variables", ()) for part in parts
    ]
    nested_weights = {id(v) for variables in nested_weights for v in variables}
    return [v for v in own_weights(layer) if id(v) not in nested_weights]


_OWN_LOSS_REASON = (
    "the outputs and add_loss do not depend on it, but the model's own "
    "compute_loss or train_step may, which explain() cannot see without "
    "targets. per_sample_gradients(model, x, y) gives its gradients, or None."
)


def _refuse_unreduced(model, refuse):
    """Refuse, as training would, a loss with one value for each sample."""
    for loss in tf.nest.flatten(getattr(model, "loss", None)):
        reduction = getattr(loss, "reduction", "sum")
        if isinstance(loss, keras.losses.Loss) and reduction in (None, "none"):
            message = not_one_number(f"a loss with reduction={reduction!r}")
            refuse(model, ValueError(message))


def _variable_row(variable, uses, n):
    factor = factor_of_uses([f for f, _ in uses], variable)
    ops = tuple(
        type(use.layer).__name__ if hasattr(use, "rule") else use.type
        for _, use in uses
    )
    return VariableRow(
        variable.path,
        tuple(variable.shape),
        factor.chosen_method(),
        sum=factor.sum_method(),
        materialized_bytes=n
        * math.prod(variable.shape)
        * tf.as_dtype(variable.dtype).size,
        held_bytes=factor.norm_bytes(n),
        shared=len(uses) > 1,
        ops=ops,
    )
