"""The reference gradient: one sample after the other, on the CPU."""

import dataclasses
import functools

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import variable_weights
from keras_pergrad.checking.numerics import unit
from keras_pergrad.checking.plain_tape import PlainTape, Uncheckable, cast
from keras_pergrad.common.text import reason
from keras_pergrad.keras_internals.models.parts import has_own_loss

# The largest difference that rounding explains between a sample's outputs
# alone and in its batch.
_MAX_GAP = {"float64": 1e-6, "float32": 1e-3}
# Raised by an op without a float64 kernel, or one that mixes formats.
_NO_FLOAT64_ERRORS = (tf.errors.OpError, TypeError, ValueError)
_NOT_FINITE = (
    "The gradient of {what} is not finite, so that there is nothing to "
    "compare. Look for NaN or infinity in x, y and the weights, or for a "
    "loss that overflows."
)


@dataclasses.dataclass
class Reference:
    """The gradient that every other computation is judged by.

    Attributes:
        dtype: the format that it was computed in.
        how: "loop", over single samples, or "batch", where that is not
            defined.
        notes: sentences on how it was computed.
        gradients: for each aggregation the gradient of each variable, an
            array or None.
        magnitudes: likewise, the size of the numbers that it was summed from.
        sensitivities: likewise, how much it changes when the weights and inputs
            are off by a few units in the last place of the model's format.
    """

    dtype: str
    how: str = "loop"
    notes: list = dataclasses.field(default_factory=list)
    gradients: list = dataclasses.field(default_factory=list)
    magnitudes: list = dataclasses.field(default_factory=list)
    sensitivities: list = dataclasses.field(default_factory=list)


def find(model, batch, aggregations, *, dtype, recorded_draws=()):
    """Compute the reference; an aggregation None stands for the mean."""
    batch = tf.nest.map_structure(
        lambda t: None if t is None else tf.convert_to_tensor(t), batch
    )
    find_in = functools.partial(
        _find_in,
        model,
        batch,
        aggregations,
        dtype=dtype,
        recorded_draws=recorded_draws,
    )
    with tf.device("/device:CPU:0"):
        try:
            return find_in(compute_dtype="float64")
        except _NO_FLOAT64_ERRORS as error:
            if dtype == "float64" or isinstance(error, Uncheckable):
                raise
            own_reference = find_in(compute_dtype=None)
            own_reference.notes.append(
                f"the reference is in {own_reference.dtype}, since the "
                f"model does not run in float64: {reason(error)[:200]}"
            )
            return own_reference


def _find_in(
    model, batch, aggregations, *, dtype, compute_dtype, recorded_draws
):
    x, y, sample_weight = batch
    # Draws are handed out in order, which a loop in a graph does only once.
    eager = bool(recorded_draws) or model.run_eagerly
    tape = PlainTape(
        model,
        y,
        sample_weight,
        dtype=compute_dtype,
        recorded_draws=recorded_draws,
        eager=eager,
    )
    values, x = tape.values(), cast(x, compute_dtype)
    full_outputs = tape.forward(values, x)
    _require_repeatable(model, full_outputs, tape.forward(values, x))
    is_plain_format = dtype in ("float32", "float64")
    own_dtype = dtype if is_plain_format else keras.config.floatx()
    result = Reference(compute_dtype or own_dtype)
    compute = functools.partial(
        _sum_over_samples, aggregations=aggregations, reference=result
    )
    try:
        _require_samples(model, tape)
        base_gradients = compute(tape, values, x)
    except _Coupled as cause:
        result.how, compute = "batch", _batch_as_one
        result.notes.append(
            f"no sample has a gradient of its own ({cause}): the reference "
            f"is the batch's gradient in {result.dtype}"
        )
        base_gradients = compute(tape, values, x)
    result.gradients, result.magnitudes = map(list, zip(*base_gradients))
    result.sensitivities = [
        np.zeros(len(tape.trainable)) for _ in base_gradients
    ]
    # Off by a few roundings of the model's format; and of the wide one, which
    # shows in small the noise of a gradient that is zero by cancellation. The
    # number of terms tells neither that nor how much the model amplifies (a
    # ReLU may sit at its kink).
    perturbations = [(unit(dtype), True)]
    if result.dtype != dtype:
        perturbations.append((unit(result.dtype), False))
    for size, inputs in perturbations:
        perturb = _make_perturbation(size)
        shifted = list(map(perturb, values))
        shifted_x = tf.nest.map_structure(perturb, x) if inputs else x
        perturbed = compute(tape, shifted, shifted_x)
        for change, (old_gradients, _), (new_gradients, _) in zip(
            result.sensitivities, base_gradients, perturbed
        ):
            for k, (a, b) in enumerate(zip(old_gradients, new_gradients)):
                if a is not None and b is not None:
                    gap = np.max(np.abs(a - b), initial=0.0)
                    change[k] = max(change[k], gap * unit(dtype) / size)
    return result


def _make_perturbation(size):
    """Return a function that moves tensors by a few units in the last place."""
    random = np.random.default_rng(0)

    def perturb(tensor):
        if not tensor.dtype.is_floating:
            return tensor
        relative_steps = random.choice([-4.0 * size, 4.0 * size], tensor.shape)
        return tensor * tf.constant(1.0 + relative_steps, tensor.dtype)

    return perturb


class _Coupled(Exception):
    """Raised where the batch's gradient is not a sum over its samples."""


def _require_repeatable(model, first, second):
    for a, b in zip(tf.nest.flatten(first[0]), tf.nest.flatten(second[0])):
        if not np.allclose(a, b, rtol=1e-3, atol=1e-6, equal_nan=True):
            raise Uncheckable(
                f"Expected a model that computes the same from the same "
                f"numbers. Received: {model.name!r}, whose outputs differ "
                f"from call to call: it draws random numbers without "
                f"keras.random, which nothing can repeat. Draw them with "
                f"keras.random and a keras.random.SeedGenerator."
            )


def _require_samples(model, tape):
    if tape.coupling_reasons:
        raise _Coupled(tape.coupling_reasons[0].split(", so that")[0])
    if has_own_loss(model):
        raise _Coupled(f"{type(model).__name__} overrides compute_loss")


def _check_gap(gap, reference):
    """Refuse or note samples whose outputs depend on their batch."""
    if gap <= _MAX_GAP[reference.dtype]:
        return
    what = "a sample alone gives other outputs than in its batch"
    if reference.dtype == "float64":
        raise _Coupled(f"{what}: a layer mixes the samples")
    note = f"{what}: a layer mixes the samples, or an op is wrong on batches"
    if note not in reference.notes:
        reference.notes.append(note)


def _sum_over_samples(tape, values, x, *, aggregations, reference):
    """Return (gradients, sizes of the summed terms) for each aggregation."""
    full_outputs = tape.forward(values, x)
    n = len(tf.nest.flatten(x)[0])
    factors = _added_loss_factors(
        tape, values, x, full_outputs=full_outputs, n=n
    )
    kept_parts, keeps = [], any(map(_needs_gramian, aggregations))
    totals: list = [[None] * len(tape.trainable) for _ in aggregations]
    sizes = [np.zeros(len(tape.trainable)) for _ in aggregations]
    for row in range(n):
        parts, gap = tape.sample(
            values, x, tf.constant(row), full_outputs, factors
        )
        _check_gap(float(gap), reference)
        parts = _arrays(parts)
        squares = [0.0 if g is None else np.sum(np.square(g)) for g in parts]
        # A sample's gradient is n times its part of the batch's gradient.
        norm = n * np.sqrt(sum(squares))
        if not np.isfinite(norm):
            raise Uncheckable(_NOT_FINITE.format(what=f"sample {row}"))
        if keeps:
            kept_parts.append(parts)
        for k, aggregation in enumerate(aggregations):
            if _needs_gramian(aggregation):
                continue
            weights = np.ones(len(parts))
            if aggregation is not None:
                weights = _sample_weights(
                    aggregation, tape.trainable, squares, n=n
                )
            _add_weighted(totals[k], sizes[k], weights, parts=parts)
    for k, aggregation in enumerate(aggregations):
        if _needs_gramian(aggregation):
            weights = _gramian_weights(aggregation, kept_parts)
            for weight, parts in zip(weights, kept_parts):
                _add_weighted(
                    totals[k], sizes[k], [weight] * len(parts), parts=parts
                )
    penalties = tape.penalties(values)
    return [
        (_finish_total(total, aggregation, penalties, n=n), size)
        for total, size, aggregation in zip(totals, sizes, aggregations)
    ]


def _needs_gramian(aggregation):
    return aggregation is not None and aggregation.needs == "gramian"


def _add_weighted(total, size, weights, *, parts):
    """Add a sample's weighted gradients, and how large they are."""
    for k, gradient in enumerate(parts):
        if gradient is not None:
            part = weights[k] * gradient
            total[k] = part if total[k] is None else total[k] + part
            size[k] += np.max(np.abs(part), initial=0.0)


def _gramian_weights(aggregation, kept_parts):
    """Return the weight of each sample, by the inner products of all."""
    aggregation = aggregation.at(aggregation.make_state())
    flat_gradients = [
        np.concatenate([g.ravel() for g in parts if g is not None])
        for parts in kept_parts
    ]
    gradient_rows = len(kept_parts) * np.stack(flat_gradients)
    weights, _ = aggregation.mean_weights(
        tf.constant(gradient_rows @ gradient_rows.T)
    )
    return weights.numpy()


def _sample_weights(aggregation, variables, squares, *, n):
    """Return the weight of one sample for each variable."""
    aggregation = aggregation.at(aggregation.make_state())
    groups = aggregation.groups(variables)
    if groups is None:
        norms = [np.sqrt(sum(squares))]
    else:
        norms = np.sqrt(np.bincount(groups, squares))[None]
    norms = tf.constant(n * np.asarray(norms), tf.float64)
    weights = aggregation.weights(norms)
    indices = range(len(squares))
    return [float(variable_weights(weights, groups, k)[0]) for k in indices]


def _finish_total(total, aggregation, penalties, *, n):
    if aggregation is not None:
        tensors = [None if t is None else tf.constant(t) for t in total]
        state = aggregation.make_state()
        total = aggregation.at(state).finish(tensors, n, state)
        total = [None if t is None else np.asarray(t) for t in total]
    return [
        t if p is None else np.asarray(p, float) + (0.0 if t is None else t)
        for t, p in zip(total, penalties)
    ]


def _added_loss_factors(tape, values, x, *, full_outputs, n):
    """Return for each added loss 1 if it sums over the samples, else 1/n."""
    added_losses = [tf.reduce_sum(a) for a in full_outputs[3]]
    if not added_losses:
        return []
    totals = [0.0] * len(added_losses)
    for row in range(n):
        sample_losses = tape.added(values, x, tf.constant(row))
        totals = [t + float(s) for t, s in zip(totals, sample_losses)]
    factors = []
    for loss, sample_sum in zip(added_losses, totals):
        gap_to_sum = abs(float(loss) - sample_sum)
        gap_to_mean = abs(float(loss) - sample_sum / n)
        if min(gap_to_sum, gap_to_mean) > 1e-3 * (abs(float(loss)) + 1e-6):
            raise _Coupled(
                "a loss given to add_loss is neither a sum nor a mean over "
                "the samples"
            )
        factor = 1.0 if gap_to_sum < gap_to_mean else 1.0 / n
        factors.append(tf.constant(factor, loss.dtype))
    return factors


def _batch_as_one(tape, values, x):
    gradients = _arrays(tape.batch(values, x))
    sizes = [
        0.0 if g is None else np.max(np.abs(g), initial=0) for g in gradients
    ]
    if not np.isfinite(sizes).all():
        raise Uncheckable(_NOT_FINITE.format(what="the batch"))
    return [(gradients, np.asarray(sizes))]


def _arrays(gradients):
    return [None if g is None else np.asarray(g, float) for g in gradients]
