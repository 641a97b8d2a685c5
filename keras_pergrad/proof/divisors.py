"""Sums of masks and sample weights by which a loss is multiplied or divided.

Such a sum follows all samples. A loss may have it as a factor, one and the
same for all its terms: then it scales all samples alike. The forward pass and
the loss are looked at, and custom gradients. All other gradients follow from
the forward pass, and have the loss's factors: these count no more.
"""

import dataclasses
from typing import Any

from keras_pergrad.proof.elementwise_rules import selects_or_zeros
from keras_pergrad.proof.messages import UNEQUAL
from keras_pergrad.proof.op_facts import (
    ARRANGES,
    CONTRACTS,
    DIVIDES,
    JOINS,
    LINEAR,
    ON_LISTS,
    READS_LISTS,
    REPEATS,
    SCALES,
    SELECTS,
    SUMS,
    has,
    source_of,
)
from keras_pergrad.proof.static_numbers import is_zero
from keras_pergrad.proof.tensor_types import (
    DIVIDED,
    TRAINED,
    VALUES,
    At,
    Divisor,
    Free,
    Mixed,
    Mixes,
    Total,
)

_OWN_GRADIENT_USE = (
    "uses, in a custom gradient, a sum over the samples for each of them"
)
_PER_SAMPLE_USE = "uses a sum over the samples for each of them"
#: How many ops in a row are compared to tell whether two numbers are equal.
_MAX_DEPTH = 50


@dataclasses.dataclass
class Divisors:
    """Finds the factors of tensors, in one `Typing`.

    A factor is a sorted tuple of (operation, value number of a tensor), such
    as `(("RealDiv", 3),)` for all that is divided by one sum.
    """

    _values: Any
    _value_numbers: dict = dataclasses.field(default_factory=dict)

    def apply_factors(self, op, types, output_types):
        """Return the types of an op's outputs with their factors.

        Raises:
            Mixes: the op does more with sums than scale all samples alike.
        """
        if op.type == "IdentityN":
            return output_types
        if all(isinstance(t, (Divisor, Free)) for t in output_types):
            return output_types
        if not all(map(_has_sample_parts, output_types)):
            # A sum of masks alone, or a turn of a loop.
            if all(isinstance(t, Total) for t in output_types):
                return output_types
            raise Mixes(_PER_SAMPLE_USE)
        factor = self._output_factor(op, types)
        return [_with_factor(t, factor) for t in output_types]

    def _output_factor(self, op, types):
        if has(op, LINEAR):
            source = source_of(op)
            others = (t for k, t in enumerate(types) if k != source)
            if not any(t.flags & DIVIDED for t in others):
                return types[source].factor
        if has(op, SUMS | JOINS):
            return self._factor_of_terms(op, types, 0)
        if has(op, SELECTS):
            return self._factor_of_choice(op, types)
        if has(op, SCALES | CONTRACTS | DIVIDES):
            return self._factor_of_product(op, types)
        raise Mixes(_PER_SAMPLE_USE)

    def _factor_of_terms(self, op, types, first):
        """Return the one factor of all terms, from input `first` on."""
        factors, are_zeros = set(), True
        for k, input_type in list(enumerate(types))[first:]:
            if isinstance(input_type, Divisor):
                factors.add((self._operand("*", op, k),))
            elif _has_sample_parts(input_type):
                factors.add(input_type.factor)
            elif isinstance(input_type, Free):
                are_zeros = are_zeros and is_zero(op.inputs[k])
        # None is the factor of a settled loss, which goes with any other.
        factors.discard(None)
        if len(factors) > 1:
            raise Mixes(UNEQUAL)
        if not are_zeros and any(isinstance(t, At) for t in types[first:]):
            raise Mixes(UNEQUAL)
        return factors.pop() if factors else None

    def _factor_of_choice(self, op, types):
        condition_type = types[0]
        if isinstance(condition_type, At) and condition_type.flags & DIVIDED:
            raise Mixes(_PER_SAMPLE_USE)
        factor = self._factor_of_terms(op, types, 1)
        if not isinstance(condition_type, Divisor):
            return factor
        if not selects_or_zeros(op, types):
            raise Mixes(UNEQUAL)
        return tuple(sorted([*(factor or ()), self._operand("?", op, 0)]))

    def _factor_of_product(self, op, types):
        factor = []
        for k, input_type in enumerate(types):
            is_divisor = k == 1 and has(op, DIVIDES)
            if _has_sample_parts(input_type):
                if is_divisor and input_type.flags & DIVIDED:
                    raise Mixes(_PER_SAMPLE_USE)
                factor += input_type.factor or ()
            elif not isinstance(input_type, Free):
                operation = op.type if is_divisor else "*"
                factor.append(self._operand(operation, op, k))
        is_settled = any(getattr(t, "factor", ()) is None for t in types)
        return None if is_settled and not factor else tuple(sorted(factor))

    def _operand(self, operation, op, k):
        """Return what an input adds to a factor; it must be one number."""
        tensor = self._values.original(op.inputs[k])
        while has(tensor.op, ARRANGES | REPEATS):
            source = tensor.op.inputs[source_of(tensor.op)]
            tensor = self._values.original(source)
        if tensor.shape.num_elements() != 1:
            raise Mixes(_PER_SAMPLE_USE)
        return operation, self._value_number(tensor, _MAX_DEPTH)

    def _value_number(self, tensor, depth):
        """Return a number that is the same for tensors of equal values.

        This is value numbering: equal ops on inputs of equal numbers get one
        number. A draw, or an op that is too deep, has a number of its own.
        """
        tensor = self._values.original(tensor)
        value = self._values[tensor]
        if value.value_number is not None:
            return value.value_number
        op: Any = tensor.op
        expression: Any = value
        is_repeatable = op.type != "Placeholder" and not op.op_def.is_stateful
        if is_repeatable and depth:
            node = op.node_def
            attributes = tuple(
                (name, node.attr[name].SerializeToString(deterministic=True))
                for name in sorted(node.attr)
                if not name.startswith("_")
            )
            inputs = [self._value_number(t, depth - 1) for t in op.inputs]
            expression = op.type, attributes, tuple(inputs), tensor.value_index
        value.value_number = self._value_numbers.setdefault(
            expression, len(self._value_numbers)
        )
        return value.value_number


def gradient_types(op, results, is_own):
    """Return the types of outputs of the backward pass.

    `is_own`: whether the op is of a custom gradient. Only there sums count.
    """
    if has(op, ON_LISTS | READS_LISTS):
        # What it gives may be of the forward pass.
        return results
    if is_own:
        raise Mixes(_OWN_GRADIENT_USE)
    return list(map(_as_gradient, results))


def _as_gradient(tensor_type):
    """Return the type of a gradient, without the factors of its loss."""
    if isinstance(tensor_type, Mixed) or not tensor_type.flags & DIVIDED:
        return tensor_type
    flags = tensor_type.flags & ~DIVIDED
    tensor_type = dataclasses.replace(tensor_type, flags=flags)
    return _with_factor(tensor_type, ())


def without_loss(tensor_type):
    """Return the type that a number by which a loss is divided has for it.

    It is the same for all its gradients, and not looked at again.
    """
    is_settled = (
        isinstance(tensor_type, Divisor) and not tensor_type.flags & DIVIDED
    )
    return Free(tensor_type.flags) if is_settled else tensor_type


def _with_factor(tensor_type, factor):
    if not isinstance(tensor_type, (At, Total)) or tensor_type.factor == factor:
        return tensor_type
    return dataclasses.replace(tensor_type, factor=factor)


def _has_sample_parts(tensor_type):
    """Whether a tensor has parts of samples, and is no sum of masks alone."""
    return isinstance(tensor_type, At) or (
        isinstance(tensor_type, Total)
        and bool(tensor_type.flags & (TRAINED | VALUES))
    )
