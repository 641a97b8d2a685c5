"""The memory of ops that call functions: conditions, loops and calls.

A loop's lists grow in each turn: what the backward pass needs of a turn is
kept until it has had that turn.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_pergrad.keras_internals.graph_nodes import placeholder

_CALLS = frozenset(
    ["PartitionedCall", "StatefulPartitionedCall", "SymbolicGradient"]
)
_BRANCHES = frozenset(["If", "StatelessIf", "Case", "StatelessCase"])
_LOOPS = frozenset(["While", "StatelessWhile"])
_APPENDS = {"TensorListPushBack": 1, "TensorListSetItem": 2}
_TAKES = frozenset(("TensorListPopBack",))
_SMALLER = frozenset(("Less", "LessEqual"))


@dataclasses.dataclass
class Inside:
    """What an op holds while it runs, and what its outputs are.

    Attributes:
        most: bytes besides its inputs and outputs.
        handed_on: place of an output → the input that it is.
        lists: place of an output → bytes of the list that it is.
        body: the `Body` that runs inside, where no list is in it.
        turns: how often it runs.
    """

    most: int = 0
    handed_on: dict = dataclasses.field(default_factory=dict)
    lists: dict = dataclasses.field(default_factory=dict)
    body: Any = None
    turns: int = 1


class Bodies:
    """The functions that ops of an optimised graph call.

    `walk(operations, outputs, bodies, sizes)` gives the `Peak` of a body.

    Attributes:
        unknown: the names of loops whose number of turns is not known.
    """

    def __init__(self, optimised, walk, sizes):
        self._optimised, self._walk, self._sizes = optimised, walk, sizes
        self._known, self.unknown = {}, []
        # Counters of loops that have ended: id of a tensor → its value.
        self._counted = {}

    def of(self, op, size_of_list):
        """Return the `Inside` of an op."""
        if op.type in _CALLS:
            return self._call(op)
        if op.type in _BRANCHES:
            return self._branches(op)
        if op.type in _LOOPS:
            return self._loop(op, size_of_list)
        if op.type == "TensorListFromTensor":
            # Its items are the tensor's rows, which are not copied.
            return Inside(handed_on={0: op.inputs[0]})
        return Inside()

    def _call(self, op):
        body = self._body(op.get_attr("f").name, list(op.inputs))
        return _once(body)

    def _branches(self, op):
        """Return the branch that copies least: that of ordinary numbers."""
        if op.type.endswith("If"):
            names = [
                op.get_attr(name).name
                for name in ("then_branch", "else_branch")
            ]
        else:
            names = [each.name for each in op.get_attr("branches")]
        found = []
        for name in names:
            body = self._body(name, list(op.inputs)[1:])
            found.append(_once(body))
        if any(each.handed_on for each in found):
            return max(found, key=lambda each: len(each.handed_on))
        return max(found, key=lambda each: each.most)

    def _loop(self, op, size_of_list):
        turns = self._turns(op)
        if turns is None:
            self.unknown.append(op.name)
            turns = 1
        given = list(op.inputs)
        body = self._body(op.get_attr("body").name, given)
        peak, lists, taken = body.walk(), {}, 0
        for place, size in body.appended().items():
            lists[place] = turns * size + size_of_list(given[place])
        for place in body.taken():
            taken += size_of_list(given[place])
        handed_on = {
            place: tensor
            for place, tensor in body.handed_on().items()
            if tensor is given[place]
        }
        if not lists and not taken:
            return Inside(peak.bytes, handed_on, body=body, turns=turns)
        # What the lists give up makes room for what the loop makes.
        made = sum(lists.values())
        return Inside(peak.bytes - min(taken, made), handed_on, lists)

    def _turns(self, op):
        """Return how often a loop runs, or None."""
        given = list(op.inputs)
        condition = self._body(op.get_attr("cond").name, given)
        body = self._body(op.get_attr("body").name, given)
        found = []
        for test in condition.operations:
            if test.type in _SMALLER:
                found.append(_bound(test, condition, body))
        found = [turns for turns in found if turns is not None]
        if not found:
            return None
        turns = min(found)
        for place, tensor in enumerate(op.outputs):
            step, first = _step(body, place), body.value_of(body.inputs[place])
            if step and first is not None and not tensor.shape.rank:
                self._counted[id(tensor)] = int(first) + turns * step
        return turns

    def _body(self, name, given):
        key = name, tuple(map(id, given))
        if key not in self._known:
            nodes = self._optimised.body(name)
            self._known[key] = Body(
                nodes,
                given,
                lambda body: self._walk(body, self, self._sizes),
                self._counted,
            )
        return self._known[key]


class Body:
    """A function's body, put into a graph with the shapes of its inputs."""

    def __init__(self, nodes, given, walk, counted):
        self._counted = counted
        self._nodes, self.given, self._walk = nodes, given, walk
        self.graph, known = tf.Graph(), {}
        with self.graph.as_default():
            for name, tensor in zip(nodes.inputs, given):
                known[name] = placeholder(tensor.dtype, tensor.shape, tensor)
        self.inputs = list(known.values())
        nodes.put(self.graph, list(nodes.by_name), known)
        self.operations = self.graph.get_operations()
        self.outputs = [known[name] for name in nodes.outputs]
        self._peak = None

    def walk(self):
        """Return the `Peak` of one run."""
        if self._peak is None:
            self._peak = self._walk(self)
        return self._peak

    def place_of(self, tensor):
        """Return the place of an input that a tensor is, or None."""
        while tensor.op.type == "Identity":
            tensor = tensor.op.inputs[0]
        places = [k for k, t in enumerate(self.inputs) if t is tensor]
        return places[0] if places else None

    def handed_on(self):
        """Return place of an output → what was given, where they are one."""
        places = map(self.place_of, self.outputs)
        return {
            k: self.given[place]
            for k, place in enumerate(places)
            if place is not None
        }

    def value_of(self, tensor):
        """Return a number that is known before the run, or None."""
        place = self.place_of(tensor)
        if place is None:
            return tf.get_static_value(tensor)
        tensor = self.given[place]
        return self._counted.get(id(tensor), tf.get_static_value(tensor))

    def appended(self):
        """Return place of a list among the outputs → bytes of a turn."""
        sizes, counted = {}, set()
        for place, tensor in enumerate(self.outputs):
            op = tensor.op
            while op.type in ("Identity", *_APPENDS):
                if op.type in _APPENDS:
                    item = op.inputs[_APPENDS[op.type]]
                    source = _unreshaped(item)
                    size = 0
                    if id(source) not in counted and item.shape.rank:
                        entries = item.shape.num_elements() or 0
                        size = item.dtype.size * entries
                    counted.add(id(source))
                    sizes[place] = sizes.get(place, 0) + size
                op = op.inputs[0].op
        return sizes

    def taken(self):
        """Return the places of lists from which a turn takes an item."""
        places = {
            self.place_of(op.inputs[0])
            for op in self.operations
            if op.type in _TAKES
        }
        return places - {None}


def _once(body):
    return Inside(body.walk().bytes, body.handed_on(), body=body)


def _unreshaped(tensor):
    while tensor.op.type in ("Identity", "Reshape"):
        tensor = tensor.op.inputs[0]
    return tensor


def _bound(test, condition, body):
    """Return the turns that a test `i < bound` allows, or None."""
    counter, bound = test.inputs
    place = condition.place_of(counter)
    if place is None:
        return None
    first, last = body.value_of(body.inputs[place]), condition.value_of(bound)
    step = _step(body, place)
    if first is None or last is None or not step:
        return None
    span = int(last) - int(first) + (test.type == "LessEqual")
    return max(0, -(-span // step))


def _step(body, place):
    """Return by how much a turn raises a counter, or None."""
    tensor = body.outputs[place]
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    if tensor.op.type not in ("Add", "AddV2"):
        return None
    for one, other in (tensor.op.inputs, reversed(tensor.op.inputs)):
        if body.place_of(one) == place:
            step = body.value_of(other)
            return None if step is None else int(step)
    return None
