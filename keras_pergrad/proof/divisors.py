"""Sums of masks and sample weights by which a loss is multiplied or divided.

Such a sum follows all samples. A loss may have it as a factor, one and the
same for all its terms: then it scales all samples alike. The forward pass and
the loss are looked at; their gradients follow from them.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from keras_pergrad.proof.messages import UNEQUAL
from keras_pergrad.proof.op_facts import op_types
from keras_pergrad.proof.tensor_types import (
    DIVIDED,
    TRAINED,
    VALUES,
    At,
    Divisor,
    Free,
    Mixes,
    Total,
)

#: Linear in their first input: they move, copy or add up its entries.
_LINEAR = op_types(
    "Identity Cast Neg Real Imag Conj StopGradient PreventGradient "
    "CheckNumerics CheckNumericsV2 EnsureShape Snapshot PlaceholderWithDefault "
    "Sum Mean Cumsum Reshape ExpandDims Squeeze Transpose BroadcastTo Tile "
    "Slice StridedSlice Split SplitV Unpack Pad ReverseV2 GatherV2 GatherNd "
    "DebugIdentityV2 DebugIdentityV3 XlaDynamicSlice"
)
_SUMS = op_types("Add AddN AddV2 Sub AccumulateNV2 Pack ConcatV2")
_SELECTS = op_types("Select SelectV2")
_PRODUCTS = op_types(
    "Mul MulNoNan MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum"
)
_QUOTIENTS = op_types("RealDiv Div DivNoNan")
#: What gives all entries of a number of one entry the same value.
_SPREAD = op_types(
    "Identity StopGradient Reshape ExpandDims Squeeze BroadcastTo Tile Fill"
)
_FOR_EACH = "uses a sum over the samples for each of them"
#: So many ops before a number are compared with those before another one.
_DEPTH = 50


@dataclasses.dataclass
class Divisors:
    """Finds the factors of tensors, in one `Typing`.

    A factor is a sorted tuple of (how it is applied, number of a tensor).
    """

    _stand_for: dict = dataclasses.field(default_factory=dict)
    _known: dict = dataclasses.field(default_factory=dict)
    _numbers: dict = dataclasses.field(default_factory=dict)

    def same(self, made, tensor):
        """Note that a tensor is another one, in another graph."""
        self._stand_for[id(made)] = made, tensor

    def typed(self, op, types, kinds, backward):
        """Return the types of an op's outputs with their factors.

        Raises:
            Mixes: it does more with sums than scale all samples alike.
        """
        several = kinds if isinstance(kinds, list) else [kinds]
        if not any(kind.flags & DIVIDED for kind in several):
            return kinds
        if op.type == "IdentityN" and not backward:
            return kinds
        factor = ()
        if not backward:
            if all(isinstance(kind, (Divisor, Free)) for kind in several):
                return kinds
            if not all(map(_is_part, several)):
                # A sum of masks alone, or a turn of a loop.
                if all(isinstance(kind, Total) for kind in several):
                    return kinds
                raise Mixes(_FOR_EACH)
            factor = self._factor(op, types)
        several = [_with(kind, factor) for kind in several]
        return several if isinstance(kinds, list) else several[0]

    def _factor(self, op, types):
        if op.type in _LINEAR and not any(t.flags & DIVIDED for t in types[1:]):
            return types[0].factor
        if op.type in _SUMS:
            return self._of_terms(op, types, 0)
        if op.type in _SELECTS:
            return self._of_choice(op, types)
        if op.type in _PRODUCTS or op.type in _QUOTIENTS:
            return self._of_product(op, types)
        raise Mixes(_FOR_EACH)

    def _of_terms(self, op, types, first):
        """Return the one factor of all terms, from input `first` on."""
        found, zero = set(), True
        for k, kind in list(enumerate(types))[first:]:
            if isinstance(kind, Divisor):
                found.add((self._applied("*", op, k),))
            elif _is_part(kind):
                found.add(kind.factor)
            elif isinstance(kind, Free):
                zero = zero and _is_zero(op.inputs[k])
        found.discard(None)
        if len(found) > 1:
            raise Mixes(UNEQUAL)
        if not zero and any(isinstance(t, At) for t in types[first:]):
            raise Mixes(UNEQUAL)
        return found.pop() if found else None

    def _of_choice(self, op, types):
        chosen = types[0]
        if isinstance(chosen, At) and chosen.flags & DIVIDED:
            raise Mixes(_FOR_EACH)
        factor = self._of_terms(op, types, 1)
        if not isinstance(chosen, Divisor):
            return factor
        if not any(
            isinstance(t, Free) and _is_zero(op.inputs[k])
            for k, t in enumerate(types)
        ):
            raise Mixes(UNEQUAL)
        return tuple(sorted([*(factor or ()), self._applied("?", op, 0)]))

    def _of_product(self, op, types):
        factor = []
        for k, kind in enumerate(types):
            below = k == 1 and op.type in _QUOTIENTS
            if _is_part(kind):
                if below and kind.flags & DIVIDED:
                    raise Mixes(_FOR_EACH)
                factor += kind.factor or ()
            elif not isinstance(kind, Free):
                how = op.type if below else "*"
                factor.append(self._applied(how, op, k))
        settled = any(getattr(t, "factor", ()) is None for t in types)
        return None if settled and not factor else tuple(sorted(factor))

    def _applied(self, how, op, k):
        """Return what an input adds to a factor; it must be one number."""
        tensor = self._outermost(op.inputs[k])
        while tensor.op.type in _SPREAD:
            place = 1 if tensor.op.type == "Fill" else 0
            tensor = self._outermost(tensor.op.inputs[place])
        if tensor.shape.num_elements() != 1:
            raise Mixes(_FOR_EACH)
        return how, self._number(tensor, _DEPTH)

    def _outermost(self, tensor):
        while id(tensor) in self._stand_for:
            tensor = self._stand_for[id(tensor)][1]
        return tensor

    def _number(self, tensor, depth):
        """Return the same number for tensors that the same ops make."""
        tensor = self._outermost(tensor)
        known = self._known.get(id(tensor))
        if known is not None:
            return known[1]
        op, made = tensor.op, None
        fixed = op.type != "Placeholder" and not op.op_def.is_stateful
        if fixed and depth:
            node = op.node_def
            attributes = tuple(
                (name, node.attr[name].SerializeToString(deterministic=True))
                for name in sorted(node.attr)
                if not name.startswith("_")
            )
            inputs = [self._number(t, depth - 1) for t in op.inputs]
            made = op.type, attributes, tuple(inputs), tensor.value_index
        else:
            made = id(tensor)
        number = self._numbers.setdefault(made, len(self._numbers))
        # The tensor stays, so that no other one gets its id.
        self._known[id(tensor)] = tensor, number
        return number


def _with(kind, factor):
    if not isinstance(kind, (At, Total)) or kind.factor == factor:
        return kind
    return dataclasses.replace(kind, factor=factor)


def _is_part(kind):
    """Whether a tensor has parts of samples, and is no sum of masks alone."""
    return isinstance(kind, At) or (
        isinstance(kind, Total) and bool(kind.flags & (TRAINED | VALUES))
    )


def _is_zero(tensor):
    value = tf.get_static_value(tensor)
    return value is not None and not np.any(value)
