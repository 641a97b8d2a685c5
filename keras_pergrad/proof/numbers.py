"""The numbers that stand for sizes which are not known while tracing.

A step is typed with a number of samples and with a length for each open axis
of the batch. They are primes that divide no size and no constant of the graph,
and differ from each other, so that what holds for them holds for all numbers
and lengths. Where shapes do not fit, the two lengths that meet are made equal
and the step is typed again. Some models fail with primes, since they halve or
join their axes: these are typed with multiples of primes.
"""

import collections
import dataclasses
import functools
import itertools
import math
import re

import numpy as np
import tensorflow as tf

from keras_pergrad.proof.op_facts import (
    FACTS,
    MEASURES,
    SIZE_PRODUCTS,
    SUMS,
    has,
)

#: The least length that is tried first, and the least number of samples.
_LEAST_LENGTH, _LEAST_NUMBER = 61, 211
_PRIMES = tuple(
    k for k in range(5, 2000) if all(k % d for d in range(2, math.isqrt(k) + 1))
)
#: Sizes and places of a tensor have fewer entries; what has more is data.
_MAX_ENTRIES = 16
_ARITHMETIC = {
    "Add": np.add,
    "AddV2": np.add,
    "FloorDiv": np.floor_divide,
    "Mul": np.multiply,
    "Sub": np.subtract,
}
#: How TensorFlow says that two sizes, or two numbers of entries, differ.
_DIFFER = re.compile(
    r"but are (\d+) and (\d+)"
    r"|with (\d+) elements to shape \S+ \((\d+) elements\)"
)
_MATRIX_PRODUCT = re.compile(r"= MatMul\[")
#: So often lengths are made equal; each time the step is typed again.
_MAX_TIES = 8


class ShapesUnknown(ValueError):
    """An error: no sizes were found with which all shapes fit.

    Attributes:
        reason: the error of the last try, or a text.
        axes: the open axes, a text.
        number: the number of samples there, if it alone is not known.
    """

    def __init__(self, reason, axes="", number=None):
        super().__init__(str(reason))
        self.reason, self.axes, self.number = reason, axes, number


@dataclasses.dataclass(frozen=True)
class OpenLengths:
    """The length of each axis that has none while tracing.

    Attributes:
        axes: (the name of an input, the axis) → its length.
        times: how many times a prime a length is; 0: of no primes.
        given: the axes that are as long as a size which they meet in an op.
        may_tie: whether lengths that meet in an op may be made equal.
    """

    axes: dict = dataclasses.field(default_factory=dict)
    times: int = 1
    given: frozenset = frozenset()
    may_tie: bool = False

    def sizes(self, name, shape):
        """Return the shape of an input with all its lengths."""
        return [
            self.axes.get((name, k)) if size is None else size
            for k, size in enumerate(shape)
        ]

    def of_inputs(self, names):
        """Return those of some inputs, on which an op depends."""
        axes = {key: k for key, k in self.axes.items() if key[0] in names}
        return dataclasses.replace(self, axes=axes)

    def of_sizes(self, sizes):
        """Return those without given lengths of which no size is a multiple.

        `sizes`: all of an op that the graph does not know.
        """
        given = {
            key
            for key in self.given
            if key in self.axes
            and not any(
                size is None or size % self.axes[key] == 0 for size in sizes
            )
        }
        axes = {key: k for key, k in self.axes.items() if key not in given}
        return dataclasses.replace(self, axes=axes, given=self.given - given)

    def tied(self, error):
        """Return lengths with those made equal that differ in an error.

        None: it is another error, or they must differ.
        """
        match = _DIFFER.search(str(error)) if self.may_tie else None
        if match is None:
            return None
        numbers = [int(k) for k in match.groups() if k is not None]
        common = math.gcd(*numbers)
        first, second = (k // common for k in numbers)
        lengths = self.axes.values()
        for length, other in ((first, second), (second, first)):
            if length not in lengths:
                continue
            if other in lengths:
                return self._with_equal(length, other)
            # A length of the model's inputs may be clipped to a known size.
            is_target = all(
                not name.startswith("x")
                for (name, _), k in self.axes.items()
                if k == length
            )
            if is_target or _MATRIX_PRODUCT.search(str(error)):
                return self._with_equal(length, other, given=True)
        return None

    def _with_equal(self, length, other, given=False):
        """Return lengths in which axes of one length have another one."""
        tied = [key for key, k in self.axes.items() if k == length]
        return dataclasses.replace(
            self,
            axes={**self.axes, **dict.fromkeys(tied, other)},
            given=self.given.union(tied) if given else self.given,
        )

    @functools.cached_property
    def units(self):
        """What the size of an open axis is a multiple of, in each case."""
        lengths = dict.fromkeys(self.axes.values())
        return tuple(k // max(self.times, 1) for k in lengths)

    @functools.cached_property
    def is_distinct(self):
        """Whether nothing else is as long as an axis, by chance."""
        return len(self._distinct_units) == len(self.axes)

    @functools.cached_property
    def _distinct_units(self):
        """The lengths that a single axis has, and nothing else."""
        counts = collections.Counter(self.axes.values())
        given = {self.axes[key] for key in self.given if key in self.axes}
        return {
            length
            for length, count in counts.items()
            if count == 1 and self.times == 1 and length not in given
        }

    def has(self, size):
        """Whether a size follows a length."""
        return size is None or any(size % unit == 0 for unit in self.units)

    def divides(self, dividends, divisors, are_same=False):
        """Whether the product of sizes is a multiple of that of others.

        This must hold for all lengths, so the known parts of the products and
        the open ones are compared separately. `are_same`: the divisors are
        products of the very sizes among the dividends.
        """
        if not self.units:
            return True
        if not self.times:
            # Found for one length. And a length of 1 divides for ever.
            return False
        (known_product, open_product), (divisor, open_divisor) = map(
            self._split_product, (dividends, divisors)
        )
        for unit in self.units:
            is_apart = unit in self._distinct_units or (
                are_same and open_product % unit**2
            )
            if open_divisor % unit == 0 and not is_apart:
                return False
        return known_product % divisor == 0 and open_product % open_divisor == 0

    def _split_product(self, sizes):
        """Return the product of what is known of sizes, and of the rest.

        A size may be a known one times lengths. Lengths are divided out, one
        unit after the other.
        """
        known_sizes, open_product = list(sizes), 1
        for unit in self.units:
            if unit == 1:
                continue
            length = unit * max(self.times, 1)
            for k in range(len(known_sizes)):
                while known_sizes[k] and known_sizes[k] % unit == 0:
                    part = known_sizes[k]
                    if part % length == 0:
                        part = length
                    known_sizes[k] //= part
                    open_product *= part
        return math.prod(known_sizes), open_product

    def is_regular(self, tensor, value_of, source=None):
        """Whether a tensor of sizes is the same function of all lengths.

        `source`: a tensor, by reference; the sizes must be products of its
        own then, and sums are not allowed.
        """
        allowed = SIZE_PRODUCTS | (SUMS if source is None else 0)
        pending, visited = [tensor], set()
        while pending:
            op = pending.pop().op
            if op in visited:
                continue
            visited.add(op)
            if has(op, MEASURES):
                if source is not None and source not in [
                    t.ref() for t in op.inputs
                ]:
                    return False
                continue
            if op.type == "FloorDiv" and source is None:
                x, y = map(value_of, op.inputs)
                if x is None or y is None or not np.all(y) or (x % y).any():
                    return False
            elif not has(op, allowed) and not (
                op.type == "Const"
                # A negative size, or one that is given, is no product.
                or (source is None and op.type in ("Neg", "Placeholder"))
            ):
                return False
            pending += op.inputs
        return True

    @staticmethod
    def text(axes):
        """Name axes, as in an error."""
        return " and ".join(f"axis {k} of {name}" for name, k in axes)


def all_lengths(lengths, name, op):
    """Return all lengths: what an op depends on is not known."""
    del name, op
    return lengths


def free_primes(taken):
    """Return a number of samples, and the lengths for open axes.

    Args:
        taken: the known sizes and constants, of which no number may be a part.

    Raises:
        ShapesUnknown: every prime divides one of them.
    """
    primes = [p for p in _PRIMES if not any(k % p == 0 for k in taken)]
    number = next((p for p in primes if p >= _LEAST_NUMBER), None)
    if number is None:
        raise ShapesUnknown(
            "its constants leave no number that could stand for that of the "
            "samples"
        )
    return number, [p for p in primes if p != number]


def known_numbers(graph, nodes, definitions):
    """Return the sizes of a graph, and constants that may become sizes.

    Those of the functions that it calls are among them.
    """
    numbers = set()
    for op in graph.get_operations():
        for tensor in op.outputs:
            if tensor.shape.rank:
                numbers.update(tensor.shape.as_list())
    pending, visited = [nodes.by_name.values()], set()
    while pending:
        constants = {}
        for node in pending.pop():
            value = _constant(node, constants)
            if value is not None:
                constants[node.name] = value
                numbers.update(np.ravel(value).tolist())
            if not FACTS[node.op].has_functions:
                continue
            for attribute in node.attr.values():
                for function in (attribute.func, *attribute.list.func):
                    definition = definitions.definition(function.name)
                    if definition is None or function.name in visited:
                        continue
                    visited.add(function.name)
                    pending.append(definition.node_def)
                    numbers.update(_sizes_of_nodes(definition.node_def))
    return {abs(k) for k in numbers if k}


def _sizes_of_nodes(nodes):
    """Yield the sizes that nodes of a function have among their attributes."""
    for node in nodes:
        for attribute in node.attr.values():
            for shape in (attribute.shape, *attribute.list.shape):
                yield from (d.size for d in shape.dim)


def _constant(node, constants):
    """Return the value of a small integer constant, or of a sum of some."""
    if node.op == "Const":
        tensor = node.attr["value"].tensor
        count = math.prod(d.size for d in tensor.tensor_shape.dim)
        if count > _MAX_ENTRIES or not tf.as_dtype(tensor.dtype).is_integer:
            return None
        return tf.make_ndarray(tensor).astype(object)
    if node.op not in _ARITHMETIC:
        return None
    values = [constants.get(name.split(":")[0]) for name in node.input[:2]]
    if any(v is None for v in values):
        return None
    with np.errstate(all="ignore"):
        return _ARITHMETIC[node.op](*values)


def lengths_that_may_fit(axes, primes):
    """Yield `OpenLengths`; each time, send the error that they led to.

    Args:
        axes: the open axes, as in `OpenLengths.axes`.
        primes: numbers that divide no size of the graph.
    """
    if not axes:
        yield OpenLengths()
        return
    long_primes = [p for p in primes if p >= _LEAST_LENGTH]
    if len(long_primes) < len(axes):
        raise ShapesUnknown(
            "its constants leave no numbers that could be tried"
        )
    lengths = OpenLengths(dict(zip(axes, long_primes)), may_tie=True)
    for _ in range(_MAX_TIES):
        error = yield lengths
        lengths = lengths.tied(error)
        if lengths is None:
            break
    for numbers, times in _alternatives(axes, primes, long_primes):
        yield OpenLengths(
            {
                (name, k): numbers[(k - 1) % len(numbers)] * max(times, 1)
                for name, k in axes
            },
            times,
        )


def _alternatives(axes, primes, long_primes):
    """Yield (lengths of axis 1, 2, ... of all inputs, how many times).

    First the axes of an input differ in length, then they are equal. The last
    lengths have no primes: with them divisibility proves nothing.
    """
    rank = max(axis for _, axis in axes)
    # Of a single input, they were tried first.
    first = (16, 64) if len({name for name, _ in axes}) == 1 else (1, 16, 64)
    for times in first:
        yield long_primes[:rank], times
    for times, least in itertools.product((1, 4), (13, 5)):
        numbers = [p for p in primes if least <= p < _LEAST_LENGTH][:rank]
        if len(numbers) == rank:
            yield numbers, times
    for times in (1, 16, 64):
        yield long_primes[:1], times
    for length in (96, 48, 32, 16, 12, 8, 7, 6, 5, 4, 3, 2, 1):
        yield [length], 0
