"""Faults to plant into the type rules, for the hunt to find.

Each lets some mixing of samples pass for none.
"""

from keras_pergrad.proof import calls, elementwise_rules, intervals, typing
from keras_pergrad.proof.calls import State
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
from keras_pergrad.uses.layer_rules import registry
from tests.hunt.planting import Fault


def _where_they_were(right):
    """Where a rule finds that samples meet, the first ones are as before."""

    def rule(op, types):
        try:
            return right(op, types)
        except Mixes:
            return next((t for t in types if isinstance(t, At)), types[0])

    return rule


def _on_the_first_axis(right):
    def rule(op, types):
        try:
            return right(op, types)
        except Mixes:
            return At(0, flags=types[0].flags)

    return rule


def _unmoved(right):
    return lambda op, types: types[0]


def _pairs_accepted(right):
    def rule(op, types):
        try:
            return right(op, types)
        except Mixes as error:
            if "all pairs" not in str(error):
                raise
            return next(t for t in types if isinstance(t, At))

    return rule


def _free_of_samples(right):
    def rule(op, types):
        found = right(op, types)
        is_sum = isinstance(found, Total) and isinstance(types[0], At)
        return FREE if is_sum else found

    return rule


def _any_choice(right):
    def condition(call, types, typing):
        return right(call, [FREE, *types[1:]], typing)

    return condition


def _any_count(right):
    class Blind:
        def __init__(self, typing):
            self.typing = typing

        def __getattr__(self, name):
            return getattr(self.typing, name)

        def of(self, tensor):
            is_flag = tensor.dtype.is_bool and tensor.shape.rank == 0
            return FREE if is_flag else self.typing.of(tensor)

    return lambda call, types, typing: right(call, types, Blind(typing))


def _no_size(right):
    return lambda self, op, flags: right(self, op, flags) & ~BY_SIZE


def _values_forgotten(right):
    def as_divisor(op, k, kind):
        if isinstance(kind, Total):
            kind = Total(0)
        return right(op, k, kind)

    return as_divisor


def _forgotten(right):
    return lambda self, op, types: None


def _always(answer):
    return lambda right: lambda *args: answer


def _rule(name, ops, make):
    return Fault(name, RULES, ops, make, is_pure=True)


def _answer(name, owner, attribute, answer):
    return Fault(name, owner, attribute, _always(answer), is_pure=True)


def _other(name, owner, attribute, make):
    return Fault(name, owner, attribute, make, by_refusals=True)


TYPE_FAULTS = [
    _rule(
        "a reshape that takes the samples apart accepted",
        "Reshape",
        _on_the_first_axis,
    ),
    _rule("a transposition forgotten", "Transpose", _unmoved),
    _rule(
        "products of all pairs of samples accepted",
        "MatMul BatchMatMulV2 Einsum",
        _pairs_accepted,
    ),
    _rule("means over the samples taken for free", "Mean", _free_of_samples),
    _rule(
        "an order or accumulation along the samples accepted",
        "Cumsum Cumprod",
        _where_they_were,
    ),
    _rule("rows of other samples accepted", "GatherV2", _where_they_were),
    _rule(
        "samples beside others on their axis accepted",
        "ConcatV2 StridedSlice Slice",
        _where_they_were,
    ),
    _rule("a softmax over the samples accepted", "Softmax", _where_they_were),
    _other("a condition not looked at", calls, "_condition", _any_choice),
    _other("the end of a loop not looked at", calls, "_loop", _any_count),
    _other("sizes of the batch not noted", Sizes, "left", _no_size),
    _other(
        "values in sums over the samples not noted",
        elementwise_rules,
        "as_divisor",
        _values_forgotten,
    ),
    _other("assignments forgotten", State, "assign", _forgotten),
    _answer(
        "ops that may keep state in their own way accepted",
        typing,
        "keeps_unknown",
        False,
    ),
    _answer(
        "numbers known for one number of samples accepted",
        EveryNumber,
        "_is_regular",
        True,
    ),
    _answer(
        "places taken to be within a sample's block",
        intervals,
        "_are_below",
        True,
    ),
    _answer(
        "a subclass taken for the class",
        registry,
        "own_method",
        None,
    ),
    _other(
        "factors of a loss's terms not compared",
        Divisors,
        "_applied",
        _always(("*", 0)),
    ),
]
