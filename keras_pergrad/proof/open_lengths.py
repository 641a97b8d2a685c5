"""Lengths of axes that are not known while tracing.

A step is typed with one length for each such axis. They are primes that divide
no other size, so that what holds for them holds for all; a model that takes no
primes, since it halves or joins its axes, is typed with multiples of them.
"""

import dataclasses
import itertools
import math

import numpy as np

from keras_pergrad.proof.op_facts import op_types

#: Ops on sizes that do the same for every length.
_REGULAR = op_types(
    "Add AddV2 Cast ConcatV2 Const ExpandDims GatherV2 Identity Mul Neg Pack "
    "Placeholder Prod Rank Reshape Shape ShapeN Size Slice Split Squeeze "
    "StridedSlice Sub Unpack"
)
_SUMS = op_types("Add AddV2 Neg Placeholder Sub")


@dataclasses.dataclass(frozen=True)
class OpenLengths:
    """The length of each axis that has none while tracing.

    Attributes:
        primes: for axis 1, 2, ... in turn.
        times: how many times the prime the length is; 0: of no primes.
        alone: whether no two inputs of the model have such axes.
    """

    primes: tuple = ()
    times: int = 1
    alone: bool = True

    def sizes(self, shape):
        """Return the shape of an input with all its lengths."""
        return [
            self.primes[k % len(self.primes)] * max(self.times, 1)
            if size is None
            else size
            for k, size in enumerate(shape)
        ]

    @property
    def distinct(self):
        """Whether nothing else is as long as an axis, by chance."""
        return self.alone and self.times == 1 and len(set(self.primes)) > 1

    def has(self, size):
        """Whether a size follows a length."""
        return size is None or any(size % p == 0 for p in self.primes)

    def divides(self, given, taken, same=False):
        """Whether the product of sizes is a multiple of that of others.

        For all lengths: what is known must divide what is known. `same`: those
        taken are products of the very sizes that are given.
        """
        if not self.primes:
            return True
        if not self.times:
            return False
        (known, left), (divisor, others) = map(self._apart, (given, taken))
        apart = self.distinct or (same and len(set(self.primes)) > 1)
        if others != 1 and not apart:
            return False
        return known % divisor == 0 and left % others == 0

    def _apart(self, sizes):
        """Return the product of what is known of sizes, and of the rest."""
        known, rest = list(sizes), 1
        for prime in dict.fromkeys(self.primes):
            length = prime * max(self.times, 1)
            for k in range(len(known)):
                while known[k] and known[k] % prime == 0:
                    part = length if known[k] % length == 0 else known[k]
                    known[k], rest = known[k] // part, rest * part
        return math.prod(known), rest

    def is_regular(self, tensor, value_of, of=None):
        """Whether a tensor of sizes is the same function of all lengths.

        `of`: a tensor, if it must be made of products of that one's sizes.
        """
        allowed = _REGULAR if of is None else _REGULAR - _SUMS
        waiting, seen = [tensor], set()
        while waiting:
            op = waiting.pop().op
            if op in seen:
                continue
            seen.add(op)
            if op.type in ("Shape", "ShapeN", "Size", "Rank"):
                if of is not None and of not in [t.ref() for t in op.inputs]:
                    return False
                continue
            if op.type == "FloorDiv" and of is None:
                x, y = map(value_of, op.inputs)
                if x is None or y is None or not np.all(y) or (x % y).any():
                    return False
            elif op.type not in allowed:
                return False
            waiting += op.inputs
        return True


def _tries():
    for times, primes in itertools.product((1, 16, 64), [(61, 67, 71)]):
        yield OpenLengths(primes, times)
    for times, primes in itertools.product((1, 4), [(13, 17, 19), (5, 7, 11)]):
        yield OpenLengths(primes, times)
    for times in (1, 16, 64):
        yield OpenLengths((61,), times)
    for length in (96, 48, 32, 16, 12, 8, 7, 6, 5, 4, 3, 2, 1):
        yield OpenLengths((length,), 0)


#: What is tried until it fits the model.
TRIES = tuple(_tries())
