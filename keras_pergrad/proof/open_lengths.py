"""Lengths of axes that are not known while tracing.

A step is typed with one length for each such axis. The lengths are primes that
divide no other size, so that what holds for them holds for all lengths. Some
models fail with primes, since they halve or join their axes. These are typed
with multiples of primes.
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
_SUM_OPS = op_types("Add AddV2 Neg Placeholder Sub")


@dataclasses.dataclass(frozen=True)
class OpenLengths:
    """The length of each axis that has none while tracing.

    Attributes:
        primes: for axis 1, 2, ... in turn.
        times: how many times the prime the length is; 0: of no primes.
        is_single_input: whether no two inputs of the model have such axes.
    """

    primes: tuple = ()
    times: int = 1
    is_single_input: bool = True

    def sizes(self, shape):
        """Return the shape of an input with all its lengths."""
        return [
            self.primes[k % len(self.primes)] * max(self.times, 1)
            if size is None
            else size
            for k, size in enumerate(shape)
        ]

    @property
    def is_distinct(self):
        """Whether nothing else is as long as an axis, by chance."""
        return (
            self.is_single_input
            and self.times == 1
            and len(set(self.primes)) > 1
        )

    def has(self, size):
        """Whether a size follows a length."""
        return size is None or any(size % p == 0 for p in self.primes)

    def divides(self, dividends, divisors, are_same=False):
        """Whether the product of sizes is a multiple of that of others.

        This must hold for all lengths, so the known parts of the products and
        the open ones are compared apart. `are_same`: the divisors are products
        of the very sizes among the dividends.
        """
        if not self.primes:
            return True
        if not self.times:
            # Found for one length. And a length of 1 divides for ever.
            return False
        (known_product, open_product), (divisor, open_divisor) = map(
            self._split_product, (dividends, divisors)
        )
        is_apart = self.is_distinct or (are_same and len(set(self.primes)) > 1)
        if open_divisor != 1 and not is_apart:
            return False
        return known_product % divisor == 0 and open_product % open_divisor == 0

    def _split_product(self, sizes):
        """Return the product of what is known of sizes, and of the rest.

        A size may be a known one times lengths. Lengths are divided out, one
        prime after the other.
        """
        known_sizes, open_product = list(sizes), 1
        for prime in dict.fromkeys(self.primes):
            length = prime * max(self.times, 1)
            for k in range(len(known_sizes)):
                while known_sizes[k] and known_sizes[k] % prime == 0:
                    part = (
                        length
                        if known_sizes[k] % length == 0
                        else known_sizes[k]
                    )
                    known_sizes[k], open_product = (
                        known_sizes[k] // part,
                        open_product * part,
                    )
        return math.prod(known_sizes), open_product

    def is_regular(self, tensor, value_of, source=None):
        """Whether a tensor of sizes is the same function of all lengths.

        `source`: a tensor, by reference; the sizes must be products of its
        own then, and sums are not allowed.
        """
        allowed = _REGULAR if source is None else _REGULAR - _SUM_OPS
        pending, visited = [tensor], set()
        while pending:
            op = pending.pop().op
            if op in visited:
                continue
            visited.add(op)
            if op.type in ("Shape", "ShapeN", "Size", "Rank"):
                if source is not None and source not in [
                    t.ref() for t in op.inputs
                ]:
                    return False
                continue
            if op.type == "FloorDiv" and source is None:
                x, y = map(value_of, op.inputs)
                if x is None or y is None or not np.all(y) or (x % y).any():
                    return False
            elif op.type not in allowed:
                return False
            pending += op.inputs
        return True


# First the axes differ in length, then they are equal. The last lengths have
# no primes: with them divisibility proves nothing.
def _length_candidates():
    for times, primes in itertools.product((1, 16, 64), [(61, 67, 71)]):
        yield OpenLengths(primes, times)
    for times, primes in itertools.product((1, 4), [(13, 17, 19), (5, 7, 11)]):
        yield OpenLengths(primes, times)
    for times in (1, 16, 64):
        yield OpenLengths((61,), times)
    for length in (96, 48, 32, 16, 12, 8, 7, 6, 5, 4, 3, 2, 1):
        yield OpenLengths((length,), 0)


#: The lengths that are tried, in order, until one fits the model.
LENGTH_CANDIDATES = tuple(_length_candidates())
