"""The types of tensors, and the rules that give them.

| type | the tensor |
|---|---|
| `Free` | does not depend on the batch's values: weights, constants, draws |
| `At` | has the samples on an axis; what is at sample i depends on i alone |
| `Total` | is a sum over the samples, linear in what each one adds |
| `Divisor` | is a number made of sums of masks and sample weights |
| `Mixed` | is none of these: samples are mixed, or an op has no rule |
"""

import collections
import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from keras_pergrad.common.arguments import function as require_function
from keras_pergrad.common.arguments import named_arguments
from keras_pergrad.proof.messages import UNEQUAL

#: What entries depend on in addition to their own sample, and how.
TRAINED = 1  # on trainable weights
VALUES = 2  # on values of the batch, not only on masks and sample weights
DIVIDED = 4  # on sums of the masks or weights of all samples, as factors
BY_SIZE = 8  # on the number of samples, or on the sample's place
#: The axis of a list with one tensor for each sample.
OF_LIST = -1


@dataclasses.dataclass(frozen=True)
class Free:
    """A tensor that does not depend on the batch's values.

    Attributes:
        flags: `TRAINED` and `BY_SIZE`, where they hold.

    Example:

    >>> import keras_pergrad as kpg
    >>> kpg.extending.Free()  # a constant of the program
    Free(flags=0)
    """

    flags: int = 0

    def flagged(self, flags: int) -> "Free":
        """Return the type with these flags, too."""
        return Free(self.flags | flags)


@dataclasses.dataclass(frozen=True)
class At:
    """A tensor with the samples on an axis, each entry of one sample.

    The axis may be merged with positions: it has `lead` blocks, each with all
    samples in order, each sample as `rows` entries one after the other.

    Attributes:
        axis: the axis.
        rows: how many entries a sample has in a row.
        lead: how many times all samples come, one after the other.
        flags: what else the entries depend on.
        factor: the sums by which the forward pass has multiplied all entries,
            see `divisors`; None: that of a whole loss, which goes with any.

    Example:

    >>> import keras_pergrad as kpg
    >>> kpg.extending.At(0)  # (n, ...): the samples on the first axis
    At(axis=0, rows=1, lead=1, flags=2)
    >>> five = kpg.extending.At(0, rows=5)  # (n · 5, ...): five a sample
    >>> five.rows
    5
    """

    axis: int
    rows: int = 1
    lead: int = 1
    flags: int = VALUES
    factor: tuple[Any, ...] | None = dataclasses.field(default=(), repr=False)

    @classmethod
    def placed(cls, place: tuple[int, int, int], flags: int) -> "At":
        """Return the type of a `place`."""
        axis, rows, lead = place
        return cls(axis, rows, lead, flags=flags)

    def on(self, axis: int) -> "At":
        """Return the type with the samples on another axis."""
        return dataclasses.replace(self, axis=axis)

    def flagged(self, flags: int) -> "At":
        """Return the type with these flags, too."""
        return dataclasses.replace(self, flags=self.flags | flags)

    @property
    def place(self) -> tuple[int, int, int]:
        """Where the samples are, as a tuple to compare."""
        return self.axis, self.rows, self.lead


@dataclasses.dataclass(frozen=True)
class Total:
    """A sum over the samples, linear in each sample's term.

    The loss is one.

    Attributes:
        flags: what else its entries depend on.
        factor: as of `At`.

    Example:

    >>> import keras_pergrad as kpg
    >>> isinstance(kpg.extending.Total(), kpg.extending.Free)
    False
    """

    flags: int = VALUES
    factor: tuple[Any, ...] | None = dataclasses.field(default=(), repr=False)

    def flagged(self, flags: int) -> "Total":
        """Return the type with these flags, too."""
        return dataclasses.replace(self, flags=self.flags | flags)


@dataclasses.dataclass(frozen=True)
class Divisor:
    """A number that depends on sums of masks and sample weights.

    A loss may be divided by it.

    Attributes:
        flags: what else it depends on.

    Example:

    >>> import keras_pergrad as kpg
    >>> isinstance(kpg.extending.Divisor(), kpg.extending.At)
    False
    """

    flags: int = DIVIDED

    def flagged(self, flags: int) -> "Divisor":
        """Return the type with these flags, too."""
        return Divisor(self.flags | flags)


@dataclasses.dataclass(frozen=True)
class Mixed:
    """A tensor in which samples are mixed, and the op where that began.

    Attributes:
        op_type, op_name: of that op.
        why: the reason, to follow "the op …".
        untyped: whether the op has no rule, so that nothing is known.
    """

    op_type: str
    op_name: str
    why: str
    untyped: bool = False

    # No field: what is mixed follows the values of the batch.
    flags = VALUES

    def flagged(self, flags: int) -> "Mixed":
        """Return itself: nothing else matters."""
        del flags
        return self


@dataclasses.dataclass(frozen=True)
class OfBranches:
    """What one of several branches keeps for its gradient.

    Branches share the places where they keep tensors. Which branch a tensor
    is of shows when it is taken out, by its data type and shape: taking out
    another one is an error.

    Attributes:
        kinds: pairs of a `tf.TensorSpec` and the type of such a tensor.
        free_flags: the flags of a tensor of no such kind, which is `Free`.
    """

    kinds: frozenset
    free_flags: int = 0

    @property
    def flags(self):
        """The flags of all that may be kept."""
        return self.free_flags | flags_of(t for _, t in self.kinds)

    def flagged(self, flags):
        """Return the type with these flags, too."""
        kinds = {(spec, t.flagged(flags)) for spec, t in self.kinds}
        return OfBranches(frozenset(kinds), self.free_flags | flags)

    def taken_as(self, spec=None):
        """Return the type of a tensor that is taken out; None: of any kind."""
        tensor_type = Free(self.free_flags)
        for kind, kept_type in self.kinds:
            if spec is None or spec.is_compatible_with(kind):
                tensor_type = join_types(tensor_type, kept_type)
        return tensor_type

    @classmethod
    def joined(cls, *types):
        """Return the type of what has either of these types, or is `Free`."""
        kinds, free_flags = {}, 0
        for tensor_type in types:
            if not isinstance(tensor_type, cls):
                free_flags |= tensor_type.flags
                continue
            free_flags |= tensor_type.free_flags
            for spec, kept_type in tensor_type.kinds:
                kinds[spec] = join_types(kinds.get(spec, kept_type), kept_type)
        return cls(frozenset(kinds.items()), free_flags)


class Mixes(Exception):
    """Raised by a type rule: the op mixes the samples.

    Its text follows "the op ... which".

    Example:

    >>> import keras_pergrad as kpg
    >>> def rule(op, kinds):
    ...     raise kpg.extending.Mixes("sorts the samples")
    """


class Untyped(Exception):
    """Raised by a type rule: it does not know what the op does here.

    Example:

    >>> import keras_pergrad as kpg
    >>> def rule(op, kinds):
    ...     if not isinstance(kinds[0], kpg.extending.At):
    ...         raise kpg.extending.Untyped("is not given the samples")
    ...     return kinds[0]
    """


FREE = Free()


def flags_of(types):
    """Return the flags of several types together."""
    flags = 0
    for tensor_type in types:
        flags |= tensor_type.flags
    return flags


def settle_factor(tensor_type):
    """Return the type of a whole loss, whose factor goes with any other."""
    if not isinstance(tensor_type, (At, Total)):
        return tensor_type
    return dataclasses.replace(tensor_type, factor=None)


def join_types(a, b):
    """Return the type of a tensor that has either type, as of two branches.

    Raises:
        Mixes: the samples are on different axes, or multiplied by different
            sums over all of them.
    """
    if a == b:
        return a
    if isinstance(a, Mixed) or isinstance(b, Mixed):
        return a if isinstance(a, Mixed) else b
    if isinstance(a, OfBranches) or isinstance(b, OfBranches):
        if all(isinstance(t, (Free, OfBranches)) for t in (a, b)):
            return OfBranches.joined(a, b)
        return join_types(any_kind(a), any_kind(b))
    flags = a.flags | b.flags
    if isinstance(a, Free) and isinstance(b, Free):
        return Free(flags)
    if isinstance(a, Free):
        return b.flagged(flags)
    if isinstance(b, Free):
        return a.flagged(flags)
    if type(a) is type(b):
        if getattr(a, "factor", ()) != getattr(b, "factor", ()):
            raise Mixes(UNEQUAL)
        if not isinstance(a, At) or a.place == b.place:
            return a.flagged(flags)
    raise Mixes("gives samples on one axis or on another")


def any_kind(tensor_type):
    """Return the type of whatever may be kept, where branches keep it."""
    if isinstance(tensor_type, OfBranches):
        return tensor_type.taken_as()
    return tensor_type


def join_or_mixed(op, a, b):
    """Return the joined type, or a `Mixed` that says why there is none."""
    try:
        return join_types(a, b)
    except Mixes as error:
        return Mixed(op.type, op.name, str(error))


RULES = {}
#: Rules of the user, by type of op; they go before those of the package.
USER_RULES = {}
#: Both as one table.
ALL_RULES = collections.ChainMap(USER_RULES, RULES)
#: The inputs that these look at, by type of op.
INPUTS, USER_INPUTS = {}, {}
ALL = "all"


def type_rule(*names, inputs):
    """Decorate a function as the rule of ops, which gives outputs their types.

    A rule is `rule(op, types)`: it takes a `TypedOp` and the types of its
    inputs, of which at least one is not `Free`, and returns one type for all
    outputs or a list of them. It raises `Mixes` with a reason, or `Untyped`.
    It is called only if all inputs that it does not examine are `Free`.

    Args:
        *names: the types of ops, each of one or several.
        inputs: the inputs that it examines: the index of an argument in
            TensorFlow's definition of the op, a tuple of indices, "all", or a
            dict of these by type of op. An op is refused if any other input
            depends on the samples.
    """

    def register(function):
        for op_type in sorted(" ".join(names).split()):
            if op_type in RULES:
                raise ValueError(
                    f"op {op_type} has a type rule already: "
                    f"{RULES[op_type].__name__} in "
                    f"{RULES[op_type].__module__}. "
                    f"Received: {function.__name__}"
                )
            RULES[op_type] = function
            INPUTS[op_type] = _places(
                inputs[op_type] if isinstance(inputs, dict) else inputs
            )
        return function

    return register


def _places(inputs):
    if inputs == ALL:
        return ALL
    places = inputs if isinstance(inputs, tuple) else (inputs,)
    if not all(isinstance(k, int) for k in places):
        raise TypeError(
            "`inputs` expected the place of an argument, a tuple of places, or "
            f"'all'. Received: {inputs!r}"
        )
    return frozenset(places)


def rule_of(op_type):
    """Return the rule of a type of op, or None."""
    return ALL_RULES.get(op_type)


def refuse_other_inputs(op, types, places):
    """Refuse samples in an input of which the place is not among these."""
    for argument, input_type in zip(op.facts.arguments_of(op.op), types):
        if argument.place not in places and not isinstance(input_type, Free):
            raise Mixes(f"takes its input `{argument.name}` from the samples")


UNKNOWN_RANK = "the rank of a tensor is not known"


@dataclasses.dataclass
class TypedOp:
    """One op of the typed graph.

    Attributes:
        op: the op.
        name: the name of its node in the graph that is typed.
        type: its type, a string.
        facts: its `OpFacts`.
        inputs, outputs: the tensors that it takes and gives.
        input_values, output_values: the `Value`s of these.
        n: the number of samples, with which it is typed.
        any_number: whether the step takes any number of samples.
        typing: the `Typing` that knows its tensors.
    """

    op: Any
    name: str
    type: str
    facts: Any
    inputs: Any
    outputs: Any
    input_values: list
    output_values: list
    n: int
    any_number: bool
    typing: Any

    @property
    def lengths(self):
        """The `OpenLengths` of the parts of the batch that it follows."""
        return self.typing.lengths_of(self)

    def type_of(self, tensor):
        """Return the type of a tensor."""
        return self.typing.of(tensor)

    def attribute(self, name):
        """Return an attribute of the op."""
        return self.op.get_attr(name)

    def rank(self, k=0):
        """Return the rank of an input, or raise `Untyped`."""
        return known_rank(self.op.inputs[k])

    def rank_out(self, k=0):
        """Return the rank of an output, as `rank`."""
        return known_rank(self.op.outputs[k])

    def shape(self, k=0):
        """Return the sizes of an input, None where one is not known."""
        self.rank(k)
        return self.op.inputs[k].shape.as_list()

    def shape_out(self, k=0):
        """Return the sizes of an output, None where one is not known."""
        self.rank_out(k)
        return self.op.outputs[k].shape.as_list()

    def number(self, k):
        """Return the array that shapes alone make of an input, or `Untyped`."""
        value = self.typing.numbers.of_value(self.input_values[k])
        if value is None:
            raise Untyped(f"input {k} is not known while tracing")
        return np.asarray(value)

    def number_or_none(self, k):
        """Return the same, or None."""
        return self.typing.numbers.of_value(self.input_values[k])

    def length(self, k):
        """Return how many tensors are in a list, or None."""
        return self.typing.lists.count(self.op.inputs[k])

    def value_of(self, tensor):
        """Return the value of a tensor that shapes alone determine, or None."""
        return self.typing.numbers.of(tensor)

    def partial_number(self, k):
        """Return a vector of which some entries may be None."""
        value = self.typing.numbers.of_value(self.input_values[k])
        if value is None:
            value = tf.get_static_value(self.op.inputs[k], partial=True)
        if value is None:
            return None
        return [None if v is None else int(v) for v in np.ravel(value)]

    def axes(self, k, rank):
        """Return an input of axes as a sorted list of places."""
        return sorted(int(v) % rank for v in np.ravel(self.number(k)))


def known_rank(tensor):
    """Return a tensor's rank, or raise `Untyped`."""
    if tensor.shape.rank is None:
        raise Untyped(UNKNOWN_RANK)
    return tensor.shape.rank


def product(sizes):
    """Return the product of sizes, or raise `Untyped`."""
    if any(s is None for s in sizes):
        raise Untyped("a size is not known while tracing")
    return math.prod(sizes)


_Rule = TypeVar("_Rule", bound=Callable[..., Any])


@named_arguments
def register_type_rule(
    *op_types: str,
    replace: bool = False,
    inputs: int | tuple[int, ...] | str = ALL,
) -> Callable[[_Rule], _Rule]:
    """Register a function as the type rule of ops; a decorator.

    A type says where a tensor has its samples, and that none are mixed: see
    `kpg.extending.At` and its siblings. An op without a rule is refused by
    the per-sample modes. The rule is a promise that nothing checks: if it is
    wrong, so are the gradients.

    Args:
        *op_types: types of ops, as in `tensor.op.type`.
        replace: whether an existing rule may be replaced.
        inputs: the inputs that the rule examines: the index of an argument of
            the op, or a tuple of indices; "all" by default. If any other input
            depends on the samples, the op is refused before the rule is called.

    The function is `rule(op, types)`. `types` has a type for each input, at
    least one of which is not `Free`; `op` has `inputs`, `outputs`, `type`,
    `attribute(name)`, `rank(k)` and `shape(k)` of input k, `n`, the number of
    samples, and `number(k)`, an input's value where shapes alone determine
    it. It returns one type for all outputs or a list of them, or raises
    `kpg.extending.Mixes(reason)`.

    Raises:
        TypeError: a type of op is no string, or an input no index.
        ValueError: it has a rule already and `replace` is false.

    Example:

    >>> import keras_pergrad as kpg
    >>> @kpg.extending.register_type_rule(
    ...     "MyNormalize", replace=True, inputs=0
    ... )
    ... def my_normalize(op, types):
    ...     samples = types[0]
    ...     last = op.rank(0) - 1
    ...     if isinstance(samples, kpg.extending.At) and samples.axis == last:
    ...         raise kpg.extending.Mixes("normalises over the samples")
    ...     return samples
    """
    places = _places(inputs)
    for op_type in op_types or [None]:
        if not isinstance(op_type, str):
            raise TypeError(
                "`op_types` expected the types of ops, strings such as "
                f"'MatMul'. Received: {op_type!r}"
            )
        if op_type in ALL_RULES and not replace:
            raise ValueError(
                f"op {op_type} has a type rule already. Pass replace=True to "
                "replace it."
            )

    def register(function):
        require_function("rule", function, "(op, types)")
        USER_RULES.update(dict.fromkeys(op_types, function))
        USER_INPUTS.update(dict.fromkeys(op_types, places))
        return function

    return register
