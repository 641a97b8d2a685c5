"""The number of times that each node of a step runs.

Loops arrive as rings of Enter, Merge, Switch, NextIteration and Exit nodes,
one frame a loop. A node in a frame runs once per iteration. A loop's condition
is followed from turn to turn if it depends on whole numbers that are known, as
in every RNN of fixed length. Otherwise the answer is "unknown", never a guess.
The loop that `steps_per_execution` makes is the exception: it counts as one
turn, so that figures are for one step.
"""

import operator

import tensorflow as tf

from keras_pergrad.analysis.placement.graph import RECEIVES, through_plumbing

_MOST = 100_000  # turns of a loop that are followed
_COMPUTED = {
    "Add": operator.add,
    "AddV2": operator.add,
    "Less": operator.lt,
    "LessEqual": operator.le,
    "LogicalAnd": operator.and_,
    "Maximum": max,
    "Minimum": min,
}
_PASSING = ("Enter", "LoopCond", "NextIteration", "Switch")
# How the loop over steps differs from a loop inside a step: it takes batches,
# and it asks whether there is one more.
_BATCH_OPS = {"IteratorGetNext", "OptionalGetValue"}
_STEP_TESTS = {"Less", "LogicalAnd", "OptionalHasValue"}


class Executions:
    """Counts executions. Call it with a linked node; `None` means unknown."""

    def __init__(self, nodes):
        self._parent = {}  # frame → the frame around it
        self._frame = {}
        self._branches = {}  # node → {(test, outcome)} it depends on
        self._conditions = {}
        self._variables = {}  # frame → Merge → op → what feeds it
        self._ends = {}
        order = _feeders_first(nodes)
        for node in order:
            self._settle_frame(node)
        self._steps = {
            self._frame[node] for node in nodes if node.op in _BATCH_OPS
        } - {None}
        for node in order:
            self._settle_branches(node)
            frame = self._frame[node]
            if node.op == "LoopCond":
                self._conditions.setdefault(frame, []).append(node)
            ends = {feeder.op: feeder for feeder, _ in node.inputs}
            if node.op == "Merge" and {"Enter", "NextIteration"} <= set(ends):
                self._variables.setdefault(frame, {})[node] = ends

    def __call__(self, node):
        tests = {test for test, _ in self._branches.get(node, ())}
        bodies = {self._frame[t] for t in tests if t.op == "LoopCond"}
        if any(test.op != "LoopCond" for test in tests):
            return None
        product = 1
        for frame in self._around(self._frame.get(node)):
            trips = 1 if frame in self._steps else self._end(frame)[0]
            if trips is None:
                return None
            # The test at the head of a loop runs once more, and fails.
            in_body = frame in bodies or frame in self._steps
            product *= trips if in_body else trips + 1
        return product

    @property
    def over_steps(self):
        """Whether the graph is a loop over several steps."""
        return bool(self._steps)

    def _settle_frame(self, node):
        feeders = [feeder for feeder, _ in node.inputs] + node.controls
        frames = [self._after(feeder) for feeder in feeders]
        depths = [len(list(self._around(frame))) for frame in frames]
        frame = frames[depths.index(max(depths))] if frames else None
        if node.op == "Enter":
            inner = node.attr["frame_name"].s
            self._parent.setdefault(inner, frame)
            frame = inner
        self._frame[node] = frame

    def _settle_branches(self, node):
        sources = [*node.inputs, *((f, None) for f in node.controls)]
        if node.op in RECEIVES and node.partner is not None:
            # If the sender does not run, what follows here does not either.
            sources.append((node.partner, None))
        join = frozenset().union
        if node.op == "Merge":  # after an "if", or at the head of a loop
            sources = [s for s in node.inputs if s[0] in self._branches]
            if sources:
                join = frozenset.intersection
        self._branches[node] = join(*(self._along(*s) for s in sources))

    def _along(self, feeder, slot):
        """Return what a consumer of this output depends on."""
        branches = self._branches.get(feeder, frozenset())
        if feeder.op != "Switch" or slot is None:
            return branches
        test, _ = through_plumbing(*feeder.inputs[1])
        leaves = test.op == "LoopCond" and slot == 0
        of_steps = self._frame[feeder] in self._steps
        if leaves or (of_steps and test.op in _STEP_TESTS):
            return branches
        return branches | {(test, slot)}

    def _after(self, node):
        frame = self._frame.get(node)
        return self._parent.get(frame) if node.op == "Exit" else frame

    def _around(self, frame):
        """Yield a frame and those around it."""
        while frame is not None:
            yield frame
            frame = self._parent.get(frame)

    def _end(self, frame):
        """Return a loop's turns (or None) and its variables after them."""
        if frame not in self._ends:
            self._ends[frame] = None, {}  # where the loop needs its own end
            self._ends[frame] = self._follow(frame)
        return self._ends[frame]

    def _follow(self, frame):
        variables = self._variables.get(frame, {})
        now = _known(
            {m: self._value(ends["Enter"]) for m, ends in variables.items()}
        )
        tests = self._conditions.get(frame, [])
        for turns in range(_MOST if tests else 0):
            goes_on = [self._value(test, now) for test in tests]
            if None in goes_on:
                break
            if not all(goes_on):
                return turns, now
            turned = {m: variables[m]["NextIteration"] for m in now}
            now = _known({m: self._value(n, now) for m, n in turned.items()})
        return None, {}

    def _value(self, node, now=None):
        """Return a scalar's value, with a loop's variables as they are now."""
        now = now or {}
        node, _ = through_plumbing(node)
        if node in now:
            return now[node]
        if node.op == "Const":
            value = node.attr["value"].tensor
            whole = tf.dtypes.as_dtype(value.dtype).is_integer
            scalar = whole and not value.tensor_shape.dim
            return int(tf.make_ndarray(value)) if scalar else None
        if node.op in _PASSING:
            return self._value(node.inputs[0][0], now)
        if node.op in _COMPUTED:
            values = [self._value(feeder, now) for feeder, _ in node.inputs]
            return None if None in values else _COMPUTED[node.op](*values)
        if node.op == "Exit":
            merge = _head(node)
            return self._end(self._frame[merge])[1].get(merge)
        ends = self._variables.get(self._frame[node], {}).get(node)
        if ends and _head(ends["NextIteration"]) is node:  # it never changes
            return self._value(ends["Enter"])
        return None


def _known(values):
    return {k: value for k, value in values.items() if value is not None}


def _head(node):
    """Return the Merge behind an Exit or NextIteration, past its Switch."""
    node, _ = through_plumbing(*node.inputs[0])
    if node.op == "Switch":
        node, _ = through_plumbing(*node.inputs[0])
    return node


def _feeders_first(nodes):
    """Put feeders first; a NextIteration closes a ring and may be late."""
    done, order = set(), []
    for root in nodes:
        stack = [(root, False)]
        while stack:
            node, expanded = stack.pop()
            if expanded:
                order.append(node)
            if expanded or node in done:
                continue
            done.add(node)
            stack.append((node, True))
            feeders = [feeder for feeder, _ in node.inputs] + node.controls
            if node.op == "Merge":
                feeders = [f for f in feeders if f.op != "NextIteration"]
            if node.op in RECEIVES and node.partner is not None:
                feeders.append(node.partner)
            stack += [(f, False) for f in feeders if f not in done]
    return order
