"""Loops that go through the samples one by one, as `tf.map_fn` does.

A loop goes through them if it is known to take as many turns as there are
samples, and counts them from zero. In turn i it reads place i of lists of the
samples, and writes there. The loop of its gradient takes from the end of lists
to which each turn has added one tensor: it goes back through the samples.
"""

import dataclasses

import tensorflow as tf

from keras_pergrad.keras_internals.graphs.nodes import tensor_name
from keras_pergrad.proof.op_facts import SUMS, has
from keras_pergrad.proof.tensor_types import (
    BY_SIZE,
    OF_LIST,
    At,
    Free,
    Mixed,
    Mixes,
    OfBranches,
    Total,
    Untyped,
    any_kind,
    flags_of,
    join_or_mixed,
    join_types,
    rule_of,
)

OTHER_ORDER = (
    "goes through the samples in a loop in another way than tf.map_fn does "
    "(use that, or ops on the whole batch)"
)


@dataclasses.dataclass(frozen=True)
class LoopCounter(Free):
    """The type of the loop's counter: the number of the turn's sample.

    Attributes:
        level: how many such loops are around the loop.
        is_reversed: whether the loop goes from the last sample to the first.
    """

    level: int = 0
    is_reversed: bool = False


@dataclasses.dataclass(frozen=True)
class CounterList(Free):
    """A list of the numbers of the samples, in order."""


@dataclasses.dataclass(frozen=True)
class CurrentSample:
    """A tensor or list of the sample of this turn.

    Attributes:
        level, is_reversed: as of the `LoopCounter`.
        flags: what else it depends on.
    """

    level: int
    is_reversed: bool
    flags: int

    def flagged(self, flags):
        """Return the type with these flags, too."""
        return dataclasses.replace(self, flags=self.flags | flags)


@dataclasses.dataclass(frozen=True)
class GrowingList:
    """A list to which each turn adds one tensor.

    Attributes:
        item_type: the type of the tensors that it has so far, as of a list.
    """

    item_type: object
    flags = 0


@dataclasses.dataclass(frozen=True)
class ShrinkingList:
    """A list of the samples of which each turn takes the last."""

    item_type: object
    level: int
    flags = 0


def is_list(tensor_type):
    """Whether it is the type of a list with one tensor for each sample."""
    return isinstance(tensor_type, At) and tensor_type.axis == OF_LIST


#: The types that only these loops and branches have, beside `is_list`.
LOOP_TYPES = (
    LoopCounter,
    CounterList,
    CurrentSample,
    GrowingList,
    OfBranches,
    ShrinkingList,
)
#: Ops that keep what branches have kept, or give it back.
_KEEPS = (
    "Identity",
    "OptionalFromValue",
    "OptionalGetValue",
    "TensorListPopBack",
    "TensorListPushBack",
)


def type_in_loop(op, types):
    """Return the type of an op's outputs; None: as of any other op."""
    rule = _RULES.get(op.type)
    tensor_type = None if rule is None else rule(op, types)
    if tensor_type is not None:
        return tensor_type
    if all(isinstance(t, Free) for t in types):
        return None
    if any(isinstance(t, OfBranches) for t in types):
        return _type_of_branches(op, types)
    if any(
        isinstance(t, (GrowingList, ShrinkingList)) or is_list(t) for t in types
    ):
        raise Mixes(OTHER_ORDER)
    loop_positions = {
        (t.level, t.is_reversed) for t in types if isinstance(t, CurrentSample)
    }
    other_types = [t for t in types if not isinstance(t, (Free, CurrentSample))]
    if len(loop_positions) > 1 or any(isinstance(t, At) for t in other_types):
        raise Mixes("brings one sample together with others")
    if not other_types:
        ((level, is_reversed),) = loop_positions
        return CurrentSample(level, is_reversed, flags_of(types))
    are_sums = all(isinstance(t, Total) for t in other_types)
    if are_sums and has(op, SUMS):
        return Total(flags_of(types))
    raise Mixes("brings a sample together with a sum over several")


def _type_of_branches(op, types):
    """Return the type of what an op makes of what branches have kept."""
    rule = rule_of(op.type)
    if rule is None:
        raise Untyped("has no type rule")
    if op.type not in _KEEPS:
        types = list(map(any_kind, types))
    if any(
        isinstance(t, (CurrentSample, GrowingList, ShrinkingList)) or is_list(t)
        for t in types
    ):
        raise Mixes(OTHER_ORDER)
    return rule(op, types)


def types_of_choice(choice, tensor_types):
    """Return the types of what one sample chooses, or goes on with, alone."""
    chosen_types = []
    for tensor_type in tensor_types:
        if not isinstance(tensor_type, Free) and not (
            isinstance(tensor_type, CurrentSample)
            and (tensor_type.level, tensor_type.is_reversed)
            == (choice.level, choice.is_reversed)
        ):
            raise Mixes("lets one sample choose for others")
        chosen_types.append(choice.flagged(tensor_type.flags))
    return chosen_types


def _identity(op, types):
    return types[0]


def _get_item(op, types):
    list_type, index_type = types[0], types[1]
    if is_list(list_type) and isinstance(index_type, LoopCounter):
        return CurrentSample(
            index_type.level, index_type.is_reversed, list_type.flags
        )
    return None


def _set_item(op, types):
    list_type, index_type, item_type = types
    if is_list(list_type) and isinstance(item_type, Free):
        # A constant in place of a sample's tensor.
        flags = (
            item_type.flags if isinstance(index_type, LoopCounter) else BY_SIZE
        )
        return (
            list_type.flagged(flags) if isinstance(index_type, Free) else None
        )
    if not isinstance(index_type, LoopCounter) or not isinstance(
        item_type, CurrentSample
    ):
        return None
    if (item_type.level, item_type.is_reversed) != (
        index_type.level,
        index_type.is_reversed,
    ):
        return None
    if is_list(list_type):
        return list_type.flagged(item_type.flags)
    if isinstance(list_type, Free) and op.length(0) == op.n:
        return At(OF_LIST, flags=list_type.flags | item_type.flags)
    return None


def _push_back(op, types):
    list_type, item_type = types
    if not isinstance(list_type, GrowingList):
        return None
    if isinstance(item_type, (CurrentSample, LoopCounter)):
        is_expected = is_list(list_type.item_type) or isinstance(
            list_type.item_type, Free
        )
        return item_type if is_expected and not item_type.is_reversed else None
    return join_types(list_type.item_type, item_type)


def _pop_back(op, types):
    list_type = types[0]
    if not isinstance(list_type, ShrinkingList):
        return None
    if isinstance(list_type.item_type, CounterList):
        return [list_type, LoopCounter(BY_SIZE, list_type.level, True)]
    return [
        list_type,
        CurrentSample(list_type.level, True, list_type.item_type.flags),
    ]


def _stack(op, types):
    list_type = types[0]
    return At(0, flags=list_type.flags) if is_list(list_type) else None


def _add_lists(op, types):
    # Counters and lists of them are subclasses of `Free`, and no zeros.
    if any(map(is_list, types)) and all(
        is_list(t) or type(t) is Free for t in types
    ):
        return At(OF_LIST, flags=flags_of(types))
    return None


def _zeros(op, types):
    return Free() if is_list(types[0]) else None


_RULES = {
    "Identity": _identity,
    "TensorListGetItem": _get_item,
    "TensorListSetItem": _set_item,
    "TensorListPushBack": _push_back,
    "TensorListPopBack": _pop_back,
    "TensorListStack": _stack,
    "AddN": _add_lists,
    "ZerosLike": _zeros,
}


class SampleLoop:
    """A loop through the samples: what its variables are in each turn.

    Args:
        call: the `Call`.
        typing: the `Typing` that it is part of.
        counters: the places of variables that count the turns.
        growing: the places of lists to which each turn adds one tensor.
        shrinking: the places of lists from which each turn takes one.
    """

    def __init__(self, call, typing, counters, *, growing, shrinking):
        self._call, self._typing = call, typing
        self._counters, self._growing = counters, growing
        self._shrinking, self._level = shrinking, typing.level

    @classmethod
    def of(cls, call, types, typing):
        """Return the loop; None if it does not go through the samples."""
        if not any(is_list(t) or isinstance(t, CounterList) for t in types):
            return None
        body = _Body(typing.definitions.nodes(call.function("body")))
        counters = {
            k
            for k, tensor in enumerate(call.inputs)
            if body.is_counter(k) and typing.numbers.of(tensor) == 0
        }
        condition = _Body(typing.definitions.nodes(call.function("cond")))
        invariant_values = [
            typing.numbers.of(t) if k in body.invariants else None
            for k, t in enumerate(call.inputs)
        ]
        iterations = condition.iteration_count(
            condition.outputs[0], counters, invariant_values
        )
        if iterations is None or iterations != typing.n:
            return None
        growing = {
            k
            for k, tensor in enumerate(call.inputs)
            if body.is_updated_by(k, "TensorListPushBack")
            and typing.lists.is_empty(tensor)
        }
        shrinking = {
            k
            for k, tensor_type in enumerate(types)
            if body.is_updated_by(k, "TensorListPopBack")
            and (is_list(tensor_type) or isinstance(tensor_type, CounterList))
        }
        return cls(call, typing, counters, growing=growing, shrinking=shrinking)

    def types_at_begin(self, types):
        """Return the types of the variables in a turn."""
        tensor_types = []
        for k, tensor_type in enumerate(types):
            if k in self._counters:
                tensor_type = LoopCounter(BY_SIZE, self._level)
            elif k in self._growing:
                tensor_type = GrowingList(tensor_type)
            elif k in self._shrinking:
                tensor_type = ShrinkingList(tensor_type, self._level)
            tensor_types.append(tensor_type)
        return tensor_types

    def types_after(self, types):
        """Return the types of the variables behind a turn."""
        return [
            self._type_after(k, tensor_type)
            for k, tensor_type in enumerate(types)
        ]

    def _type_after(self, k, tensor_type):
        is_current = getattr(tensor_type, "level", None) == self._level
        if k in self._counters:
            return LoopCounter(BY_SIZE, self._level)
        if k in self._growing:
            if is_current and isinstance(tensor_type, CurrentSample):
                tensor_type = At(OF_LIST, flags=tensor_type.flags)
            elif is_current and isinstance(tensor_type, LoopCounter):
                tensor_type = CounterList(tensor_type.flags)
            return GrowingList(tensor_type)
        return self.carried_type(tensor_type)

    def carried_type(self, tensor_type):
        """Return the type of what a turn leaves to the next one."""
        if getattr(tensor_type, "level", None) != self._level:
            return tensor_type
        if isinstance(tensor_type, CurrentSample):
            # It is the last sample's, or a sum to which each turn adds: the
            # type of a sum holds for both.
            return Total(tensor_type.flags | BY_SIZE)
        return (
            Free(tensor_type.flags)
            if isinstance(tensor_type, LoopCounter)
            else tensor_type
        )

    def join(self, before, after):
        """Return the types that variables have at the begin of either turn."""
        return [self._join(a, b) for a, b in zip(before, after)]

    def _join(self, a, b):
        if isinstance(a, GrowingList) and isinstance(b, GrowingList):
            if type(a.item_type) is Free and isinstance(
                b.item_type, CounterList
            ):
                return b
            return GrowingList(
                join_or_mixed(self._call, a.item_type, b.item_type)
            )
        return join_or_mixed(self._call, a, b)

    def types_at_end(self, types):
        """Return the types of the variables behind the loop."""
        tensor_types = []
        for tensor_type in types:
            if (
                isinstance(tensor_type, LoopCounter)
                and tensor_type.level == self._level
            ):
                tensor_type = Free(BY_SIZE)
            elif isinstance(tensor_type, GrowingList):
                tensor_type = tensor_type.item_type
            elif isinstance(tensor_type, ShrinkingList):
                # Which samples are left in the list is not known.
                tensor_type = Mixed(
                    self._call.type, self._call.name, OTHER_ORDER
                )
            tensor_types.append(tensor_type)
        return tensor_types

    def counter_values(self):
        """Return the values of its counters behind it, by place."""
        return dict.fromkeys(self._counters, self._typing.n)


class _Body:
    """What the nodes of a loop's function do with its variables."""

    def __init__(self, nodes):
        self._nodes, self.outputs = nodes, nodes.outputs
        self.invariants = nodes.passthrough_indices()
        self._places = {name: k for k, name in enumerate(nodes.inputs)}

    def _producer(self, name):
        """Return (node, tensor) behind any `Identity`."""
        node = self._nodes.by_name.get(tensor_name(name)[0])
        while node is not None and node.op == "Identity":
            name = tensor_name(node.input[0])[1]
            node = self._nodes.by_name.get(tensor_name(name)[0])
        return node, name

    def _inputs(self, node):
        names = [tensor_name(text)[1] for text in node.input]
        return [self._producer(name)[1] for name in names if name is not None]

    def is_counter(self, k):
        """Whether each turn adds one to a variable."""
        node, _ = self._producer(self.outputs[k])
        if node is None or node.op not in ("Add", "AddV2"):
            return False
        first, second = self._inputs(node)
        return (
            first == self._nodes.inputs[k] and self._constant_value(second) == 1
        )

    def _constant_value(self, name):
        node, _ = self._producer(name)
        if node is None or node.op != "Const":
            return None
        array = tf.make_ndarray(node.attr["value"].tensor)
        return array.item() if array.ndim == 0 else None

    def is_updated_by(self, k, op_type):
        """Whether each turn sets a variable to the output of an op on it."""
        node, name = self._producer(self.outputs[k])
        if node is None or node.op != op_type or not name.endswith(":0"):
            return False
        return self._inputs(node)[0] == self._nodes.inputs[k]

    def iteration_count(self, name, counters, invariant_values):
        """Return how often a condition lets a loop go round, or None.

        Args:
            name: the name of the condition's output.
            counters: the places of variables that count the turns.
            invariant_values: the values of variables that stay, by place.
        """
        node, _ = self._producer(name)
        if node is None:
            return None
        if node.op == "LogicalAnd":
            part_limits = [
                self.iteration_count(part, counters, invariant_values)
                for part in self._inputs(node)
            ]
            # Which limit is the smaller one may hold for this number of
            # samples alone.
            return part_limits[0] if len(set(part_limits)) == 1 else None
        if node.op != "Less":
            return None
        first, second = self._inputs(node)
        if self._places.get(first) not in counters:
            return None
        k = self._places.get(second)
        limit = (
            self._constant_value(second) if k is None else invariant_values[k]
        )
        return None if limit is None else int(limit)
