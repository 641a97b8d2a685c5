"""The gradient to judge by: one sample after the other, on the CPU."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import weight_of
from keras_pergrad.checking.numerics import unit
from keras_pergrad.checking.plain_tape import PlainTape, Uncheckable, cast
from keras_pergrad.common.text import reason

# The largest difference that rounding explains between a sample's outputs
# alone and in its batch.
_GAP = {"float64": 1e-6, "float32": 1e-3}
# Raised by an op without a float64 kernel, or one that mixes formats.
_NOT_THERE = (tf.errors.OpError, TypeError, ValueError)
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
    how: str
    notes: list
    gradients: list
    magnitudes: list
    sensitivities: list


def find(model, batch, aggregations, dtype, drawn=()):
    """Compute the reference; an aggregation None stands for the mean."""
    batch = tf.nest.map_structure(
        lambda t: None if t is None else tf.convert_to_tensor(t), batch
    )
    with tf.device("/device:CPU:0"):
        try:
            return _find(model, batch, aggregations, dtype, "float64", drawn)
        except _NOT_THERE as error:
            if dtype == "float64" or isinstance(error, Uncheckable):
                raise
            own = _find(model, batch, aggregations, dtype, None, drawn)
            own.notes.append(
                f"the reference is in {own.dtype}, since the model does not "
                f"run in float64: {reason(error)[:200]}"
            )
            return own


def _find(model, batch, aggregations, dtype, wide, drawn):
    x, y, sample_weight = batch
    # Draws are handed out in order, which a loop in a graph does only once.
    eager = bool(drawn) or model.run_eagerly
    plain = PlainTape(model, y, sample_weight, wide, drawn, eager)
    values, x = plain.values(), cast(x, wide)
    whole = plain.forward(values, x)
    _require_repeatable(model, whole, plain.forward(values, x))
    whole_format = dtype in ("float32", "float64")
    own = dtype if whole_format else keras.config.floatx()
    right = Reference(wide or own, "loop", [], [], [], [])
    compute, rest = _by_loop, (aggregations, right)
    try:
        _require_samples(model, plain)
        base = compute(plain, values, x, *rest)
    except _Coupled as why:
        right.how, compute, rest = "batch", _as_one, ()
        right.notes.append(
            f"no sample has a gradient of its own ({why}): the reference "
            f"is the batch's gradient in {right.dtype}"
        )
        base = compute(plain, values, x)
    right.gradients, right.magnitudes = map(list, zip(*base))
    right.sensitivities = [np.zeros(len(plain.trainable)) for _ in base]
    # Off by a few roundings of the model's format; and of the wide one, which
    # shows in small the noise of a gradient that is zero by cancellation. The
    # number of terms tells neither that nor how much the model amplifies (a
    # ReLU may sit at its kink).
    tries = [(unit(dtype), True)]
    tries += [(unit(right.dtype), False)] if right.dtype != dtype else []
    for size, inputs in tries:
        shift = _perturbation(size)
        shifted = list(map(shift, values))
        shifted_x = tf.nest.map_structure(shift, x) if inputs else x
        moved = compute(plain, shifted, shifted_x, *rest)
        for change, (old, _), (new, _) in zip(right.sensitivities, base, moved):
            for k, (a, b) in enumerate(zip(old, new)):
                if a is not None and b is not None:
                    gap = np.max(np.abs(a - b), initial=0.0)
                    change[k] = max(change[k], gap * unit(dtype) / size)
    return right


def _perturbation(size):
    """Return a function that moves tensors by a few units in the last place."""
    random = np.random.default_rng(0)

    def shifted(tensor):
        if not tensor.dtype.is_floating:
            return tensor
        steps = random.choice([-4.0 * size, 4.0 * size], tensor.shape)
        return tensor * tf.constant(1.0 + steps, tensor.dtype)

    return shifted


class _Coupled(Exception):
    """The batch is not the sum of its samples."""


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


def _require_samples(model, plain):
    if plain.coupled:
        raise _Coupled(plain.coupled[0].split(", so that")[0])
    if type(model).compute_loss is not keras.Model.compute_loss:
        raise _Coupled(f"{type(model).__name__} overrides compute_loss")


def _check_gap(gap, reference):
    """Take note of samples whose outputs depend on their batch."""
    if gap <= _GAP[reference.dtype]:
        return
    what = "a sample alone gives other outputs than in its batch"
    if reference.dtype == "float64":
        raise _Coupled(f"{what}: a layer mixes the samples")
    note = f"{what}: a layer mixes the samples, or an op is wrong on batches"
    if note not in reference.notes:
        reference.notes.append(note)


def _by_loop(plain, values, x, aggregations, reference):
    """Return (gradients, sizes of the summed terms) for each aggregation."""
    whole = plain.forward(values, x)
    rows = len(tf.nest.flatten(x)[0])
    factors = _factors(plain, values, x, whole, rows)
    together = [a is not None and a.needs == "gramian" for a in aggregations]
    held = []
    totals: list = [[None] * len(plain.trainable) for _ in aggregations]
    sizes = [np.zeros(len(plain.trainable)) for _ in aggregations]
    for row in range(rows):
        parts, gap = plain.sample(values, x, tf.constant(row), whole, factors)
        _check_gap(float(gap), reference)
        parts = _arrays(parts)
        squares = [0.0 if g is None else np.sum(np.square(g)) for g in parts]
        norm = rows * np.sqrt(sum(squares))
        if not np.isfinite(norm):
            raise Uncheckable(_NOT_FINITE.format(what=f"sample {row}"))
        if any(together):
            held.append(parts)
        for k, aggregation in enumerate(aggregations):
            if together[k]:
                continue
            weights = np.ones(len(parts))
            if aggregation is not None:
                weights = _weights(aggregation, plain.trainable, squares, rows)
            _add(totals[k], sizes[k], weights, parts)
    for k, aggregation in enumerate(aggregations):
        if together[k]:
            for weight, parts in zip(_weights_of_all(aggregation, held), held):
                _add(totals[k], sizes[k], [weight] * len(parts), parts)
    penalties = plain.penalties(values)
    return [
        (_finished(total, aggregation, penalties, rows), size)
        for total, size, aggregation in zip(totals, sizes, aggregations)
    ]


def _add(total, size, weights, parts):
    """Add a sample's weighted gradients, and how large they are."""
    for k, gradient in enumerate(parts):
        if gradient is not None:
            part = weights[k] * gradient
            total[k] = part if total[k] is None else total[k] + part
            size[k] += np.max(np.abs(part), initial=0.0)


def _weights_of_all(aggregation, held):
    """Return the weight of each sample, by the inner products of all."""
    aggregation = aggregation.at(aggregation.make_state())
    flat = [
        np.concatenate([g.ravel() for g in parts if g is not None])
        for parts in held
    ]
    rows = len(held) * np.stack(flat)
    weights, _ = aggregation.mean_weights(tf.constant(rows @ rows.T))
    return weights.numpy()


def _weights(aggregation, variables, squares, rows):
    """Return the weight of one sample for each variable."""
    aggregation = aggregation.at(aggregation.make_state())
    groups = aggregation.groups(variables)
    if groups is None:
        norms = [np.sqrt(sum(squares))]
    else:
        norms = np.sqrt(np.bincount(groups, squares))[None]
    norms = tf.constant(rows * np.asarray(norms), tf.float64)
    weights = aggregation.weights(norms)
    every = range(len(squares))
    return [float(weight_of(weights, groups, k)[0]) for k in every]


def _finished(total, aggregation, penalties, rows):
    if aggregation is not None:
        tensors = [None if t is None else tf.constant(t) for t in total]
        state = aggregation.make_state()
        total = aggregation.at(state).finish(tensors, rows, state)
        total = [None if t is None else np.asarray(t) for t in total]
    return [
        t if p is None else np.asarray(p, float) + (0.0 if t is None else t)
        for t, p in zip(total, penalties)
    ]


def _factors(plain, values, x, whole, rows):
    """Return for each added loss 1 if it sums over the samples, else 1/n."""
    added = [tf.reduce_sum(a) for a in whole[3]]
    if not added:
        return []
    total = [0.0] * len(added)
    for row in range(rows):
        single = plain.added(values, x, tf.constant(row))
        total = [t + float(s) for t, s in zip(total, single)]
    factors = []
    for loss, summed in zip(added, total):
        to_sum = abs(float(loss) - summed)
        to_mean = abs(float(loss) - summed / rows)
        if min(to_sum, to_mean) > 1e-3 * (abs(float(loss)) + 1e-6):
            raise _Coupled(
                "a loss given to add_loss is neither a sum nor a mean over "
                "the samples"
            )
        factor = 1.0 if to_sum < to_mean else 1.0 / rows
        factors.append(tf.constant(factor, loss.dtype))
    return factors


def _as_one(plain, values, x):
    gradients = _arrays(plain.batch(values, x))
    sizes = [
        0.0 if g is None else np.max(np.abs(g), initial=0) for g in gradients
    ]
    if not np.isfinite(sizes).all():
        raise Uncheckable(_NOT_FINITE.format(what="the batch"))
    return [(gradients, np.asarray(sizes))]


def _arrays(gradients):
    return [None if g is None else np.asarray(g, float) for g in gradients]
