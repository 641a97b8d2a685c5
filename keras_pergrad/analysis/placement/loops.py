"""The number of times that each node of a step runs.

Loops arrive as rings of Enter, Merge, Switch, NextIteration and Exit nodes,
one frame a loop. A node in a frame runs once per iteration. The number of
iterations is read from the loop's own condition if this counts up to a
constant, as in every RNN of fixed length. Otherwise the answer is "unknown",
never a guess. The loop that `steps_per_execution` makes is the exception: it
counts as one turn, so that figures are for one step.
"""

import tensorflow as tf

from keras_pergrad.analysis.placement.graph import RECEIVES, through_plumbing

_LIMITS = {"Less": 0, "LessEqual": 1}
# How the loop over steps differs from a loop inside a step: it takes batches,
# and it asks whether there is one more.
_BATCH_OPS = {"IteratorGetNext", "OptionalGetValue"}
_STEP_TESTS = {"Less", "LogicalAnd", "OptionalHasValue"}


class Runs:
    """Counts executions. Call it with a node; `None` means unknown.

    Args:
        nodes: the list of linked nodes that `graph.read` returns.
    """

    def __init__(self, nodes):
        self._parent = {}  # frame → the frame around it
        self._frame = {}
        self._branches = {}  # node → {(test, outcome)} it depends on
        self._bodies = {}  # node → the loops whose body it is in
        self._conditions = {}
        self._trips = {}
        self._solving = set()
        order = self._in_order(nodes)
        for node in order:
            self._settle_frame(node)
        self._steps = {
            self._frame[node] for node in nodes if node.op in _BATCH_OPS
        } - {None}
        self._trips |= dict.fromkeys(self._steps, 1)
        for node in order:
            self._settle_branches(node)
        for node in nodes:
            if node.op == "LoopCond":
                frame = self._frame[node]
                self._conditions.setdefault(frame, []).append(node)

    def __call__(self, node):
        if self._branches.get(node):
            return None
        frame, product = self._frame.get(node), 1
        while frame is not None:
            trips = self.trips(frame)
            if trips is None:
                return None
            # The test at the head of a loop runs once more, and fails.
            in_body = frame in self._bodies[node] or frame in self._steps
            product *= trips if in_body else trips + 1
            frame = self._parent.get(frame)
        return product

    @property
    def over_steps(self):
        """Whether the graph is a loop over several steps."""
        return bool(self._steps)

    def trips(self, frame):
        """Return the iterations of one loop, `None` if they cannot be read."""
        if frame not in self._trips:
            if frame in self._solving:
                return None
            self._solving.add(frame)
            self._trips[frame] = self._solve(frame)
            self._solving.discard(frame)
        return self._trips[frame]

    def _in_order(self, nodes):
        """Put feeders first; a NextIteration closes a ring and may be late."""
        done, order = set(), []
        for root in nodes:
            stack = [(root, False)]
            while stack:
                node, expanded = stack.pop()
                if expanded:
                    order.append(node)
                    continue
                if node in done:
                    continue
                done.add(node)
                stack.append((node, True))
                feeders = [feeder for feeder, _ in node.inputs]
                feeders += node.controls
                if node.op == "Merge":
                    feeders = [f for f in feeders if f.op != "NextIteration"]
                if node.op in RECEIVES and node.partner is not None:
                    feeders.append(node.partner)
                stack += [(f, False) for f in feeders if f not in done]
        return order

    def _settle_frame(self, node):
        feeders = [feeder for feeder, _ in node.inputs] + node.controls
        frames = [self._after(feeder) for feeder in feeders]
        frame = max(frames, key=self._depth, default=None)
        if node.op == "Enter":
            inner = node.attr["frame_name"].s
            self._parent.setdefault(inner, frame)
            frame = inner
        self._frame[node] = frame

    def _settle_branches(self, node):
        sources = [*node.inputs, *((f, None) for f in node.controls)]
        if node.op in RECEIVES and node.partner is not None:
            # If the sender does not run, what follows here does not run
            # either.
            sources.append((node.partner, None))
        if node.op == "Merge":  # after an "if", or at the head of a loop
            sources = [s for s in node.inputs if s[0] in self._branches]
        edges = [self._along(*source) for source in sources]
        bodies = [self._bodies_along(*source) for source in sources]
        if node.op == "Merge" and edges:
            self._branches[node] = frozenset.intersection(*edges)
            self._bodies[node] = frozenset.intersection(*bodies)
        else:
            self._branches[node] = frozenset().union(*edges)
            self._bodies[node] = frozenset().union(*bodies)

    def _bodies_along(self, feeder, slot):
        bodies = self._bodies.get(feeder, frozenset())
        if feeder.op == "Switch" and slot == 1:
            test, _ = through_plumbing(*feeder.inputs[1])
            if test.op == "LoopCond":
                return bodies | {self._frame[feeder]}
        return bodies

    def _along(self, feeder, slot):
        """Return what a consumer of this output depends on."""
        branches = self._branches.get(feeder, frozenset())
        if feeder.op != "Switch" or slot is None:
            return branches
        test, _ = through_plumbing(*feeder.inputs[1])
        own_loop = test.op == "LoopCond"
        step_loop = (
            self._frame[feeder] in self._steps and test.op in _STEP_TESTS
        )
        if own_loop or step_loop:
            return branches
        return branches | {(test, slot)}

    def _after(self, node):
        frame = self._frame.get(node)
        return self._parent.get(frame) if node.op == "Exit" else frame

    def _depth(self, frame):
        depth = 0
        while frame is not None:
            frame, depth = self._parent.get(frame), depth + 1
        return depth

    def _solve(self, frame):
        limits = []
        for condition in self._conditions.get(frame, ()):
            node, _ = through_plumbing(*condition.inputs[0])
            if node.op == "LoopCond":  # the same loop on another device
                continue
            tests = [node]
            while tests:
                test = tests.pop()
                if test.op == "LogicalAnd":
                    tests += [through_plumbing(*i)[0] for i in test.inputs]
                elif test.op in _LIMITS:
                    limits.append(self._limit(test))
                else:
                    return None
        if not limits or None in limits:
            return None
        return max(0, min(limits))

    def _limit(self, test):
        """Return iterations until `counter < bound` fails."""
        counter = self._counter(*through_plumbing(*test.inputs[0]))
        bound = self._value(*test.inputs[1])
        if counter is None or bound is None:
            return None
        start, step = counter
        return -(-(bound + _LIMITS[test.op] - start) // step)

    def _counter(self, node, _slot=0):
        """Return `(start, step)` of a variable that grows by a constant."""
        if node.op != "Merge":
            return None
        start = step = None
        for feeder, slot in node.inputs:
            if feeder.op == "Enter":
                start = self._value(feeder, slot)
            elif feeder.op == "NextIteration":
                add, _ = through_plumbing(*feeder.inputs[0])
                if add.op in ("AddV2", "Add"):
                    step = self._step(add, node)
        if start is None or not step or step < 0:
            return None
        return start, step

    def _step(self, add, merge):
        amount = None
        turns = False
        for feeder, slot in add.inputs:
            source, at = through_plumbing(feeder, slot)
            if source.op == "Switch" and self._head(source) is merge:
                turns = True
            else:
                amount = self._value(source, at)
        return amount if turns else None

    @staticmethod
    def _head(switch):
        return through_plumbing(*switch.inputs[0])[0]

    def _value(self, node, slot=0):
        """Return the whole number a scalar tensor holds, if it can be told."""
        node, slot = through_plumbing(node, slot)
        if node.op == "Const":
            value = tf.make_ndarray(node.attr["value"].tensor)
            whole = value.ndim == 0 and value.dtype.kind in "iu"
            return int(value) if whole else None
        if node.op == "Enter":
            return self._value(*node.inputs[0])
        if node.op in ("Maximum", "Minimum"):
            values = [self._value(*i) for i in node.inputs]
            pick = max if node.op == "Maximum" else min
            return None if None in values else pick(values)
        if node.op == "Switch" or node.op == "Exit":
            head = self._head(node)
            if node.op == "Exit" and head.op == "Switch":
                head = self._head(head)
            if head.op != "Merge":
                return None
            if node.op == "Exit":
                return self._exit_value(head)
            return self._unchanging(head)
        if node.op == "Merge":
            return self._unchanging(node)
        return None

    def _exit_value(self, merge):
        counter = self._counter(merge)
        if counter is None:
            return self._unchanging(merge)
        trips = self.trips(self._frame[merge])
        return None if trips is None else counter[0] + counter[1] * trips

    def _unchanging(self, merge):
        """Return the value of a variable that the loop does not change."""
        start = None
        for feeder, slot in merge.inputs:
            if feeder.op == "Enter":
                start = self._value(feeder, slot)
            elif feeder.op == "NextIteration":
                source, _ = through_plumbing(*feeder.inputs[0])
                if source.op != "Switch" or self._head(source) is not merge:
                    return None
        return start
