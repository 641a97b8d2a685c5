"""Sums and means over the samples among losses, by the types of a step.

A loss is linear in what its samples add (`Total`). Its ops are followed back
to the entries of samples, and what divides it by the number n of samples is
counted: it is a sum over n ** k, with k = 0 of a sum and k = 1 of a mean.
"""

import dataclasses
from typing import Any

from keras_pergrad.proof.op_facts import (
    ADDS_UP,
    ARRANGES,
    CONVERTS,
    DIVIDES,
    SCALES,
    SUMS,
    has,
)
from keras_pergrad.proof.static_numbers import is_zero
from keras_pergrad.proof.tensor_types import (
    BY_SIZE,
    DIVIDED,
    TRAINED,
    At,
    Free,
    Total,
)

_PRODUCTS = SCALES | DIVIDES


@dataclasses.dataclass
class Reductions:
    """Tells how the losses of a step follow the number of samples.

    Attributes:
        types: the `StepTypes` of the step.
        of_gradients: whether numbers that are added to a loss, and have no
            gradient, do not count.
    """

    types: Any
    of_gradients: bool = False

    def power(self, loss):
        """Return k of a loss that is over n ** k; None: it is not known."""
        if self.types.number is not None:
            return None  # One number does not show what follows it.
        return self._power_of_term(loss)

    def _power_of_term(self, term):
        power = self._power(term)
        if power is None or not isinstance(self.types.of(term), Free):
            return power
        # It is the same for any number of samples, and each has a part in it.
        return power + 1

    def _power(self, tensor):
        tensor_type, op = self.types.of(tensor), tensor.op
        is_total = isinstance(tensor_type, Total)
        follows_size = tensor_type.flags & BY_SIZE
        if not isinstance(tensor_type, (Free, At, Total)):
            return None
        if tensor_type.flags & DIVIDED or (
            follows_size and self.types.has_other_axis(tensor)
        ):
            return None
        if not is_total and not follows_size:
            return 0
        powers: list[Any] = []
        if isinstance(tensor_type, Free):
            if self._counts_samples(tensor):
                return -1
            if has(op, ARRANGES | CONVERTS):
                powers = [self._power(op.inputs[0])]
        elif _joins_terms(op):
            power_of = self._power_of_term if is_total else self._power
            terms = [t for t in op.inputs if not self._is_nothing(t)]
            powers = [*set(map(power_of, terms))]
            return powers[0] if len(powers) == 1 else None
        elif _keeps_entries(op):
            powers = [self._power(op.inputs[0])]
            if op.type == "Mean" and is_total:
                powers.append(isinstance(self.types.of(op.inputs[0]), At))
        if has(op, _PRODUCTS):
            powers = list(map(self._power, op.inputs))
            if has(op, DIVIDES) and powers[1] is not None:
                powers[1] = -powers[1]
        if powers:
            return None if None in powers else sum(powers)
        return None if follows_size else 0

    def _counts_samples(self, tensor):
        """Whether it is n, times a number that does not follow n."""
        n, value = self.types.typing.n, self.types.number_of(tensor)
        if value is None or value.size != 1:
            return False
        count, rest = divmod(int(value.item()), n)
        return not rest and count > 0 and count % n > 0

    def _is_nothing(self, term):
        """Whether a term counts neither in the loss nor in its gradient."""
        tensor_type = self.types.of(term)
        if not isinstance(tensor_type, Free):
            return False
        if is_zero(term):
            return True
        if not self.of_gradients:
            return False
        if term.op.type == "StopGradient" or not tensor_type.flags & TRAINED:
            return True
        is_linear = _keeps_entries(term.op) or has(term.op, _PRODUCTS)
        is_linear = is_linear or _joins_terms(term.op)
        return is_linear and all(map(self._is_nothing, term.op.inputs))


def _joins_terms(op):
    """Whether an op adds its inputs up, or puts them beside each other."""
    return has(op, SUMS) or op.type == "Pack"


def _keeps_entries(op):
    """Whether an op keeps each entry of its source, or adds some up."""
    return has(op, ARRANGES | ADDS_UP)
