"""Faults to plant, for the hunt to find: into the engine and the type rules.

Each function is called instead of one of the package, which is its first
argument, and is wrong in a special case.
"""

import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad import factors
from keras_pergrad.factors.written_out import squares_by_sample
from keras_pergrad.modes import microbatches
from keras_pergrad.modes.fractions import ROWS
from keras_pergrad.proof import (
    calls,
    elementwise_rules,
    intervals,
    layer_methods,
    typing,
)
from keras_pergrad.proof.divisors import Divisors
from keras_pergrad.proof.every_number import EveryNumber
from keras_pergrad.proof.static_numbers import Sizes
from keras_pergrad.proof.tensor_types import (
    BY_SIZE,
    FREE,
    RULES,
    At,
    Mixes,
    Total,
)
from keras_pergrad.proof.values import State
from keras_pergrad.uses import weight_paths
from tests.hunt.planting import Fault, instead

FAULTS = []


def _planted(name, owner, attribute, is_pure=False):
    def listed(wrong):
        FAULTS.append(Fault(name, owner, attribute, instead(wrong), is_pure))
        return wrong

    return listed


def _rule(name, ops):
    return _planted(name, RULES, ops, is_pure=True)


@_planted(
    "kernel norms without the cross terms of positions",
    factors.Outer,
    "squared_norms",
)
def _no_cross_terms(right, self):
    if self.positions == 1:
        return right(self)
    each = tf.reduce_sum(self.x**2, -1) * tf.reduce_sum(self.dz**2, -1)
    return tf.reduce_sum(each, 1)


@_planted(
    "narrow kernels summed without the clipping weights",
    factors.Outer,
    "weighted_sum",
)
def _unweighted_when_narrow(right, self, weights):
    narrow = self.x.shape[-1] < self.dz.shape[-1]
    return right(self, None if narrow else weights)


@_planted("table norms with repeated ids apart", factors.Rows, "squared_norms")
def _repeated_ids(right, self):
    return squares_by_sample(self.dz)


@_planted(
    "bias norms squared before the sum over positions",
    factors.Sum,
    "squared_norms",
)
def _squares_of_positions(right, self):
    return tf.cast(squares_by_sample(self.dz), self.gradients.dtype)


@_planted(
    "first sample of a materialised gradient unweighted",
    factors.Full,
    "weighted_sum",
)
def _first_sample_unweighted(right, self, weights):
    if weights is not None:
        weights = tf.concat([tf.ones_like(weights[:1]), weights[1:]], 0)
    return right(self, weights)


@_planted(
    "norms of a shared weight's uses added", factors.Joined, "squared_norms"
)
def _norms_of_uses_added(right, self):
    return tf.add_n([part.squared_norms() for part in self.parts])


@_planted(
    "weights behind weights given the gradients of other samples",
    weight_paths.PulledBack,
    "materialize",
)
def _of_others(right, self):
    return tf.reverse(right(self), [0])


@_planted(
    "norms a little above the limit not clipped", kpg.ClippedMean, "weights"
)
def _lenient(right, self, norms):
    found = right(self, norms)
    return tf.where(found < 0.7, found, tf.ones_like(found))


@_planted(
    "every add_loss taken for a mean when accumulating",
    microbatches,
    "find_added_kinds",
)
def _all_means(right, *args, **kwargs):
    find = right(*args, **kwargs)
    return lambda: [ROWS for _ in find()]


@_planted(
    "norms of strided convolutions too small", factors.Patches, "squared_norms"
)
def _strides_forgotten(right, self):
    strided = any(s > 1 for s in self.windows.strides)
    return right(self) * (0.8 if strided else 1.0)


# Faults of the type rules: each lets some mixing of samples pass for none.


@_rule("an order or sum along the samples accepted", "Cumsum Cumprod")
@_rule("rows of other samples accepted", "GatherV2")
@_rule("samples beside others accepted", "ConcatV2 StridedSlice Slice")
@_rule("a softmax over the samples accepted", "Softmax")
def _where_they_were(right, op, types):
    """Where a rule finds that samples meet, the first ones are as before."""
    try:
        return right(op, types)
    except Mixes:
        return next((t for t in types if isinstance(t, At)), types[0])


@_rule("a reshape that takes the samples apart accepted", "Reshape")
def _on_the_first_axis(right, op, types):
    try:
        return right(op, types)
    except Mixes:
        return At(0, flags=types[0].flags)


@_rule("a transposition forgotten", "Transpose")
def _unmoved(right, op, types):
    return types[0]


@_rule("products of all pairs accepted", "MatMul BatchMatMulV2 Einsum")
def _pairs_accepted(right, op, types):
    try:
        return right(op, types)
    except Mixes as error:
        if "all pairs" not in str(error):
            raise
        return next(t for t in types if isinstance(t, At))


@_rule("means over the samples taken for free", "Mean")
def _free_of_samples(right, op, types):
    found = right(op, types)
    is_sum = isinstance(found, Total) and isinstance(types[0], At)
    return FREE if is_sum else found


@_planted("a condition not looked at", calls, "_condition")
def _any_choice(right, call, types, typing):
    return right(call, [FREE, *types[1:]], typing)


class _Blind:
    """A typing that takes all flags for free of samples."""

    def __init__(self, typing):
        self.typing = typing

    def __getattr__(self, name):
        return getattr(self.typing, name)

    def of(self, tensor):
        is_flag = tensor.dtype.is_bool and tensor.shape.rank == 0
        return FREE if is_flag else self.typing.of(tensor)


@_planted("the end of a loop not looked at", calls, "_loop")
def _any_count(right, call, types, typing):
    return right(call, types, _Blind(typing))


@_planted("sizes of the batch not noted", Sizes, "left")
def _no_size(right, self, op, flags):
    return right(self, op, flags) & ~BY_SIZE


@_planted(
    "values in sums over the samples not noted", elementwise_rules, "as_divisor"
)
def _values_forgotten(right, op, k, kind):
    return right(op, k, Total(0) if isinstance(kind, Total) else kind)


@_planted("assignments forgotten", State, "assign")
@_planted("a subclass taken for the class", layer_methods, "own_method", True)
def _none(right, *args):
    return None


@_planted(
    "numbers known for one size accepted", EveryNumber, "_is_regular", True
)
@_planted("places taken to be within a block", intervals, "_are_below", True)
def _true(right, *args):
    return True


@_planted(
    "state kept in their own way accepted", typing, "has_unknown_state", True
)
def _false(right, *args):
    return False


@_planted("factors of a loss's terms not compared", Divisors, "_operand")
def _no_factor(right, *args):
    return "*", 0
