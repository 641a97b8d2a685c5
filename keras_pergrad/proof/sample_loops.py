"""Loops that go through the samples one by one, as `tf.map_fn` does.

A loop goes through them if it is known to take as many turns as there are
samples, and counts them from zero. In turn i it reads place i of lists of the
samples, and writes there. The loop of its gradient takes from the end of lists
to which each turn has added one tensor: it goes back through the samples.
"""

import dataclasses

import tensorflow as tf

from keras_pergrad.keras_internals.graphs.nodes import tensor_name
from keras_pergrad.proof.tensor_types import (
    BY_SIZE,
    OF_LIST,
    At,
    Free,
    Mixed,
    Mixes,
    Total,
    flags_of,
    joined,
    joined_or_mixed,
)

BY_SAMPLE = (
    "goes through the samples in a loop in another way than map_fn (take "
    "vectorized_map)"
)


@dataclasses.dataclass(frozen=True)
class Turn(Free):
    """The number of the sample of this turn.

    Attributes:
        level: how many such loops are around the loop.
        back: whether the loop goes from the last sample to the first.
    """

    level: int = 0
    back: bool = False


@dataclasses.dataclass(frozen=True)
class Numbers(Free):
    """A list of the numbers of the samples, in order."""


@dataclasses.dataclass(frozen=True)
class Single:
    """A tensor or list of the sample of this turn.

    Attributes:
        level, back: as of the `Turn`.
        flags: what else it depends on.
    """

    level: int
    back: bool
    flags: int

    def flagged(self, flags):
        """Return the type with these flags, too."""
        return dataclasses.replace(self, flags=self.flags | flags)


@dataclasses.dataclass(frozen=True)
class Adding:
    """A list to which each turn adds one tensor; `kind`: of those so far."""

    kind: object
    flags = 0


@dataclasses.dataclass(frozen=True)
class Taking:
    """A list of the samples of which each turn takes the last."""

    kind: object
    level: int
    flags = 0


def is_list(kind):
    """Whether it is the type of a list with one tensor for each sample."""
    return isinstance(kind, At) and kind.axis == OF_LIST


#: The types that only these loops have, beside `is_list`.
IN_LOOPS = (Turn, Numbers, Single, Adding, Taking)


def typed(op, types):
    """Return the type of an op's outputs; None: as of any other op."""
    rule = _RULES.get(op.type)
    kind = None if rule is None else rule(op, types)
    if kind is not None:
        return kind
    if all(isinstance(t, Free) for t in types):
        return None
    if any(isinstance(t, (Adding, Taking)) or is_list(t) for t in types):
        raise Mixes(BY_SAMPLE)
    singles = {(t.level, t.back) for t in types if isinstance(t, Single)}
    others = [t for t in types if not isinstance(t, (Free, Single))]
    if len(singles) > 1 or any(isinstance(t, At) for t in others):
        raise Mixes("brings one sample together with others")
    if not others:
        ((level, back),) = singles
        return Single(level, back, flags_of(types))
    if op.type in ("Add", "AddV2", "Sub", "AddN"):
        return Total(flags_of(types))
    raise Mixes("brings a sample together with a sum over several")


def of_choice(choice, kinds):
    """Return the types of what one sample chooses, or goes on with, alone."""
    chosen = []
    for kind in kinds:
        if not isinstance(kind, Free) and not (
            isinstance(kind, Single)
            and (kind.level, kind.back) == (choice.level, choice.back)
        ):
            raise Mixes("lets one sample choose for others")
        chosen.append(choice.flagged(kind.flags))
    return chosen


def _same(op, types):
    return types[0]


def _get(op, types):
    kind, place = types[0], types[1]
    if is_list(kind) and isinstance(place, Turn):
        return Single(place.level, place.back, kind.flags)
    return None


def _put(op, types):
    kind, place, item = types
    if is_list(kind) and isinstance(item, Free):
        # A constant in place of a sample's tensor.
        flags = item.flags if isinstance(place, Turn) else BY_SIZE
        return kind.flagged(flags) if isinstance(place, Free) else None
    if not isinstance(place, Turn) or not isinstance(item, Single):
        return None
    if (item.level, item.back) != (place.level, place.back):
        return None
    if is_list(kind):
        return kind.flagged(item.flags)
    if isinstance(kind, Free) and op.length(0) == op.n:
        return At(OF_LIST, flags=kind.flags | item.flags)
    return None


def _push(op, types):
    kind, item = types
    if not isinstance(kind, Adding):
        return None
    if isinstance(item, (Single, Turn)):
        expected = is_list(kind.kind) or isinstance(kind.kind, Free)
        return item if expected and not item.back else None
    return joined(kind.kind, item)


def _pop(op, types):
    kind = types[0]
    if not isinstance(kind, Taking):
        return None
    if isinstance(kind.kind, Numbers):
        return [kind, Turn(BY_SIZE, kind.level, True)]
    return [kind, Single(kind.level, True, kind.kind.flags)]


def _stack(op, types):
    kind = types[0]
    return At(0, flags=kind.flags) if is_list(kind) else None


def _added(op, types):
    if any(map(is_list, types)) and all(
        is_list(t) or type(t) is Free for t in types
    ):
        return At(OF_LIST, flags=flags_of(types))
    return None


def _zeros(op, types):
    return Free() if is_list(types[0]) else None


_RULES = {
    "Identity": _same,
    "TensorListGetItem": _get,
    "TensorListSetItem": _put,
    "TensorListPushBack": _push,
    "TensorListPopBack": _pop,
    "TensorListStack": _stack,
    "AddN": _added,
    "ZerosLike": _zeros,
}


class SampleLoop:
    """A loop through the samples: what its variables are in each turn.

    Args:
        call: the `Call`.
        typing: the `Typing` that it is part of.
        counters, added, taken: the places of variables that count the turns,
            of lists to which each turn adds one tensor, or from which it
            takes one.
    """

    def __init__(self, call, typing, counters, added, taken):
        self._call, self._typing = call, typing
        self._counters, self._added = counters, added
        self._taken, self._level = taken, typing.level

    @classmethod
    def of(cls, call, types, typing):
        """Return the loop; None if it does not go through the samples."""
        if not any(is_list(t) or isinstance(t, Numbers) for t in types):
            return None
        body = _Body(typing.definitions.nodes(call.function("body")))
        counters = {
            k
            for k, tensor in enumerate(call.inputs)
            if body.counts(k) and typing.number_of(tensor) == 0
        }
        condition = _Body(typing.definitions.nodes(call.function("cond")))
        numbers = [
            typing.number_of(t) if k in body.handed_on else None
            for k, t in enumerate(call.inputs)
        ]
        turns = condition.turns(condition.outputs[0], counters, numbers)
        if turns is None or turns != typing.n:
            return None
        added = {
            k
            for k, tensor in enumerate(call.inputs)
            if body.is_of(k, "TensorListPushBack")
            and typing.lists.is_empty(tensor)
        }
        taken = {
            k
            for k, kind in enumerate(types)
            if body.is_of(k, "TensorListPopBack")
            and (is_list(kind) or isinstance(kind, Numbers))
        }
        return cls(call, typing, counters, added, taken)

    def begin(self, types):
        """Return the types of the variables in a turn."""
        kinds = []
        for k, kind in enumerate(types):
            if k in self._counters:
                kind = Turn(BY_SIZE, self._level)
            elif k in self._added:
                kind = Adding(kind)
            elif k in self._taken:
                kind = Taking(kind, self._level)
            kinds.append(kind)
        return kinds

    def after(self, types):
        """Return the types of the variables behind a turn."""
        return [self._after(k, kind) for k, kind in enumerate(types)]

    def _after(self, k, kind):
        mine = getattr(kind, "level", None) == self._level
        if k in self._counters:
            return Turn(BY_SIZE, self._level)
        if k in self._added:
            if mine and isinstance(kind, Single):
                kind = At(OF_LIST, flags=kind.flags)
            elif mine and isinstance(kind, Turn):
                kind = Numbers(kind.flags)
            return Adding(kind)
        return self.left(kind)

    def left(self, kind):
        """Return the type of what a turn leaves to the next one."""
        if getattr(kind, "level", None) != self._level:
            return kind
        if isinstance(kind, Single):
            # The last sample's, or a sum to which each turn adds.
            return Total(kind.flags | BY_SIZE)
        return Free(kind.flags) if isinstance(kind, Turn) else kind

    def joined(self, before, after):
        """Return what the variables are at the begin of any turn, so far."""
        return [self._joined(a, b) for a, b in zip(before, after)]

    def _joined(self, a, b):
        if isinstance(a, Adding) and isinstance(b, Adding):
            if type(a.kind) is Free and isinstance(b.kind, Numbers):
                return b
            return Adding(joined_or_mixed(self._call, a.kind, b.kind))
        return joined_or_mixed(self._call, a, b)

    def end(self, types):
        """Return the types of the variables behind the loop."""
        kinds = []
        for kind in types:
            if isinstance(kind, Turn) and kind.level == self._level:
                kind = Free(BY_SIZE)
            elif isinstance(kind, Adding):
                kind = kind.kind
            elif isinstance(kind, Taking):
                kind = Mixed(self._call.type, self._call.name, BY_SAMPLE)
            kinds.append(kind)
        return kinds

    def counted(self):
        """Return the values of its counters behind it, by place."""
        return dict.fromkeys(self._counters, self._typing.n)


class _Body:
    """What the nodes of a loop's function do with its variables."""

    def __init__(self, nodes):
        self._nodes, self.outputs = nodes, nodes.outputs
        self.handed_on = nodes.handed_on()
        self._places = {name: k for k, name in enumerate(nodes.inputs)}

    def _node(self, name):
        """Return (node, tensor) behind any `Identity`."""
        node = self._nodes.by_name.get(tensor_name(name)[0])
        while node is not None and node.op == "Identity":
            name = tensor_name(node.input[0])[1]
            node = self._nodes.by_name.get(tensor_name(name)[0])
        return node, name

    def _inputs(self, node):
        names = [tensor_name(text)[1] for text in node.input]
        return [self._node(name)[1] for name in names if name is not None]

    def counts(self, k):
        """Whether each turn adds one to a variable."""
        node, _ = self._node(self.outputs[k])
        if node is None or node.op not in ("Add", "AddV2"):
            return False
        first, second = self._inputs(node)
        return first == self._nodes.inputs[k] and self._constant(second) == 1

    def _constant(self, name):
        node, _ = self._node(name)
        if node is None or node.op != "Const":
            return None
        array = tf.make_ndarray(node.attr["value"].tensor)
        return array.item() if array.ndim == 0 else None

    def is_of(self, k, op_type):
        """Whether a variable is what an op has made of it, by its first."""
        node, name = self._node(self.outputs[k])
        if node is None or node.op != op_type or not name.endswith(":0"):
            return False
        return self._inputs(node)[0] == self._nodes.inputs[k]

    def turns(self, name, counters, numbers):
        """Return how often a condition lets a loop go round, or None.

        `counters` are the places of variables that count the turns, `numbers`
        the values of variables that stay.
        """
        node, _ = self._node(name)
        if node is None:
            return None
        if node.op == "LogicalAnd":
            limits = [
                self.turns(part, counters, numbers)
                for part in self._inputs(node)
            ]
            # The least is, for one number of samples alone.
            return limits[0] if len(set(limits)) == 1 else None
        if node.op != "Less":
            return None
        first, second = self._inputs(node)
        if self._places.get(first) not in counters:
            return None
        k = self._places.get(second)
        limit = self._constant(second) if k is None else numbers[k]
        return None if limit is None else int(limit)
