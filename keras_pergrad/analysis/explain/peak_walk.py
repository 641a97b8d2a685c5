"""The peak memory of a graph, by a walk in the order in which its ops run.

A tensor lives from the op that makes it to the last op that takes it.
"""

import collections
import dataclasses
import random
from typing import Any

from keras_pergrad.analysis.explain import loop_memory
from keras_pergrad.analysis.explain.op_buffers import (
    Sizes,
    may_overwrite,
    source_of,
    standing,
)
from keras_pergrad.analysis.explain.pool_memory import Pool

#: The orders of the steps that are walked through; 2 and 3 are any.
_ORDERS = (2, 3, 0, 1)
#: Of a loop; what more turns take is little.
_TURNS = 8
_ASSIGN = frozenset(("AssignVariableOp", "ResourceScatterUpdate"))


@dataclasses.dataclass
class Buffer:
    """Memory that one or several tensors share; `name`: the op it is from."""

    size: int
    name: str
    kept: bool = False
    users: int = 0
    piece: Any = None


@dataclasses.dataclass
class Peak:
    """What a walk found.

    Attributes:
        bytes: the most that was held at a time.
        op: the op at which it was.
        held: (bytes, op) of each buffer that was held then, largest first.
    """

    bytes: int = 0
    op: str = ""
    held: tuple = ()


class Walk:
    """A walk through the ops of one graph or function body."""

    def __init__(self, operations, outputs, bodies, sizes, pool):
        self._pool = pool
        self._operations = operations
        self._sizes, self._bodies = sizes, bodies
        self._returned = {id(t) for t in outputs}
        self._left = collections.Counter(
            id(t) for op in operations for t in op.inputs
        )
        self._buffers, self._kept = {}, []
        self._live, self.peak = 0, Peak()

    def run(self, order=0):
        """Walk; return the `Peak`."""
        # Two ops run at a time, unless one needs the other: what an op no
        # longer needs is freed after the next one has begun.
        before = None
        for op in _in_order(self._operations, order):
            follows = before is not None and _needs(op, before)
            if follows:
                self._release(before)
            self._run(op, order)
            if before is not None and not follows:
                self._release(before)
            before = op
        if before is not None:
            self._release(before)
        return self.peak

    def _run(self, op, order):
        self._sizes.bound(op)
        self._sizes.note(op)
        inside = self._bodies.of(op, self._size_of_list)
        for place, tensor in enumerate(op.outputs):
            buffer = self._buffer(op, place, tensor, inside)
            buffer.users += 1
            self._buffers[id(tensor)] = buffer
        if inside.body is not None:
            self._walk_inside(inside, order)
        elif inside.most:
            self._pool.free(self._pool.allocate(inside.most))
        self._look(op, inside.most)
        if op.type in _ASSIGN:
            self._becomes_variable(op.inputs[1])

    def _walk_inside(self, inside, order):
        """Walk a body in the same pool: its gaps are used again."""
        for turn in range(min(inside.turns, _TURNS)):
            _walk(
                inside.body, self._bodies, self._sizes, self._pool, order + turn
            )

    def _release(self, op):
        for tensor in op.inputs:
            self._left[id(tensor)] -= 1
            self._drop_if_last(tensor)
        for tensor in op.outputs:
            self._drop_if_last(tensor)

    def _buffer(self, op, place, tensor, inside):
        """Return the buffer of an output."""
        if standing(op):
            return Buffer(0, op.name, kept=True)
        source = inside.handed_on.get(place)
        if source is None:
            source = source_of(op, place)
        if source is not None and id(source) in self._buffers:
            return self._buffers[id(source)]
        size = inside.lists.get(place, self._sizes.bytes_of(tensor))
        if may_overwrite(op):
            for given in op.inputs:
                buffer = self._buffers.get(id(given))
                if buffer is not None and self._is_free_for(
                    buffer, given, tensor, size
                ):
                    return buffer
        self._live += size
        return Buffer(size, op.name, piece=self._pool.allocate(size))

    def _is_free_for(self, buffer, given, tensor, size):
        return (
            not buffer.kept
            and buffer.users == 1
            and buffer.size == size
            and self._left[id(given)] == 1
            and id(given) not in self._returned
            and given.dtype.size == tensor.dtype.size
        )

    def _size_of_list(self, tensor):
        """Return the bytes of a list that nothing else needs, and if so."""
        buffer = self._buffers.get(id(tensor))
        if buffer is None or buffer.kept:
            return 0
        return buffer.size if self._left[id(tensor)] == 1 else 0

    def _look(self, op, more):
        if self._live + more <= self.peak.bytes:
            return
        held = {id(b): b for b in self._buffers.values() if b.users}
        self.peak.bytes, self.peak.op = self._live + more, op.name
        self.peak.held = tuple(
            (b.size, b.name) for b in held.values() if not b.kept
        )

    def _becomes_variable(self, tensor):
        """Let the variable take the buffer, and free its own."""
        buffer = self._buffers.get(id(tensor))
        if buffer is not None and not buffer.kept:
            buffer.kept = True
            self._live -= buffer.size
            self._pool.free(buffer.piece)

    def _drop_if_last(self, tensor):
        name = id(tensor)
        if self._left[name] or name in self._returned:
            return
        buffer = self._buffers.pop(name, None)
        if buffer is None:
            return
        buffer.users -= 1
        if not buffer.users and not buffer.kept:
            self._live -= buffer.size
            self._pool.free(buffer.piece)

    def end(self):
        """Free what the step returned."""
        for buffer in {id(b): b for b in self._buffers.values()}.values():
            if not buffer.kept:
                self._pool.free(buffer.piece)


def _walk(graph, bodies, sizes, pool, order):
    """Return the `Peak` of a graph or body, after which the pool is free."""
    walk = Walk(graph.operations, graph.outputs, bodies, sizes, pool)
    peak = walk.run(order)
    walk.end()
    return peak


def _needs(op, before):
    return before in op.control_inputs or any(t.op is before for t in op.inputs)


def _in_order(operations, order):
    """Yield ops in an order in which TensorFlow may run them.

    0: first ready, first run. 1: an op that takes time has the op that it made
    ready run next, and the others last. More: any that is ready.
    """
    inside = {id(op) for op in operations}
    waiting, next_ones = {}, collections.defaultdict(list)
    for op in operations:
        needs = [*(t.op for t in op.inputs), *op.control_inputs]
        needs = [each for each in needs if id(each) in inside]
        waiting[id(op)] = len(needs)
        for each in needs:
            next_ones[id(each)].append(op)
    ready = collections.deque(op for op in operations if not waiting[id(op)])
    later, draws = [], random.Random(order)
    while ready or later:
        if ready:
            op = ready.popleft()
        else:
            op = later.pop(-1 if order == 1 else draws.randrange(len(later)))
        yield op
        freed = []
        for each in next_ones[id(op)]:
            waiting[id(each)] -= 1
            if not waiting[id(each)]:
                at_once = standing(each) or source_of(each, 0) is not None
                (freed if order and not at_once else ready).append(each)
        if freed and order == 1 and not ready:
            ready.append(freed.pop())
        later += freed


def steps_of(optimised, samples, weights=(), batch=()):
    """Return the bytes that some steps take from the system, and the `Peak`.

    Several: which ops run first differs from step to step, and what a step has
    taken stays in the pool.

    Args:
        optimised: an `OptimisedGraph`.
        samples: the number of samples in the batch.
        weights: the bytes of each weight that exists before.
        batch: the bytes of each array of a batch.
    """
    pool = Pool()
    for size in weights:
        # What a weight's first value was computed from was freed.
        first = pool.allocate(size)
        pool.allocate(size)
        pool.free(first)
    before, most, bodies = pool.taken, Peak(), None
    for order in _ORDERS:
        # One is in use, the next is being made.
        given = [pool.allocate(size) for size in (*batch, *batch)]
        sizes = Sizes(samples)
        bodies = loop_memory.Bodies(optimised, walk_body, sizes)
        peak = _walk(optimised, bodies, sizes, pool, order)
        for piece in given:
            pool.free(piece)
        most = max(most, peak, key=lambda each: each.bytes)
    taken = pool.taken - before + sizes.packed + sizes.constants
    return taken, most, tuple(bodies.unknown)


def walk_body(body, bodies, sizes):
    """Return the `Peak` of a function's body."""
    pool, most = Pool(), Peak()
    for order in _ORDERS:
        peak = _walk(body, bodies, sizes, pool, order)
        most = max(most, peak, key=lambda each: each.bytes)
    return most
