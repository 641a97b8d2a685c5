"""The type of every tensor of a graph, without running it.

The graph's nodes are put into another one, in which the batch has a number of
samples that nothing else has, so that all shapes are known there. What follows
a call (of a function, a condition, a loop) is put there after its body, which
gives the shapes of its outputs. Without such nodes, and where all sizes are
known, the ops are typed where they are.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_pergrad.keras_internals.graphs import gradients
from keras_pergrad.keras_internals.graphs.nodes import placeholder
from keras_pergrad.proof import calls, sample_loops, static_numbers
from keras_pergrad.proof.calls import (
    State,
    keeps_unknown,
    set_padded_shape,
    stages,
)
from keras_pergrad.proof.divisors import Divisors
from keras_pergrad.proof.elementwise_rules import is_true
from keras_pergrad.proof.every_number import EveryNumber
from keras_pergrad.proof.list_rules import ListShapes
from keras_pergrad.proof.op_facts import CALLS, FACTS, PADS
from keras_pergrad.proof.open_lengths import OpenLengths
from keras_pergrad.proof.static_numbers import (
    FAILURES,
    Sizes,
    StaticNumbers,
    as_shapes,
)
from keras_pergrad.proof.tensor_types import (
    BY_SIZE,
    DIVIDED,
    FREE,
    OF_LIST,
    OWN,
    RULES,
    VALUES,
    At,
    Free,
    Mixed,
    Mixes,
    Total,
    TypedOp,
    Untyped,
    flags_of,
    settled,
)


class Typing:
    """The types of the tensors of a graph and of the functions it calls.

    `any_number`: nothing else has the size n, so that what follows the number
    of samples shows. `vouched(op, name)`: the user vouches for it;
    `shaped(name)`: the graph knows the shapes of an op better than TensorFlow
    infers them (either may be None: never); `backward`: the names of the ops of
    the backward pass; `lengths`: the `OpenLengths` of the batch.

    Attributes:
        state: what variables hold, a `State`.
        lists: what is known of lists, a `ListShapes`.
        level: how many loops through the samples are being typed.
        failures: the `Mixed` that arose, in order.
        effects: those of ops that keep state in a way that is not known.
        count: how many ops were typed.
        vouched_ops: the ops that the user vouches for.
        without_place: those that leave no axis as long as the batch.
        told: whether what all samples tell is taken to be known before.
    """

    def __init__(
        self,
        definitions,
        n,
        any_number,
        vouched=None,
        shaped=None,
        backward=(),
        lengths=None,
    ):
        self.definitions, self.n = definitions, n
        self.lengths = lengths or OpenLengths()
        self.any_number = any_number
        self._vouched, self._shaped = vouched, shaped
        given = vouched, shaped, backward, self.lengths
        self._given = definitions, n, any_number, *given
        self._backward, self._in_backward = backward, False
        self._divisors = Divisors()
        self.state = State()
        self.failures, self.effects, self.vouched_ops = [], [], []
        self.without_place, self.count = [], 0
        self._types, self._numbers = {}, StaticNumbers()
        self._sizes = Sizes(n, any_number, self._numbers)
        self._every = EveryNumber(n, self._numbers, self.lengths)
        self.lists = ListShapes()
        self._common = n, any_number, self.lengths, self._numbers, self.lists
        self._kept, self._names, self._path = [], {}, ""
        self.level, self.told = 0, False

    def another(self):
        """Return a `Typing` of the same graph in which nothing is typed."""
        return type(self)(*self._given)

    def of(self, tensor):
        """Return the type of a tensor."""
        return self._types.get(id(tensor), FREE)

    def all_of(self, tensors):
        """Return the types of a dict of tensors."""
        return {key: self.of(tensor) for key, tensor in tensors.items()}

    def number_of(self, tensor):
        """Return a tensor's value where shapes alone determine it, or None."""
        return self._numbers.of(tensor)

    def give_inputs(self, tensors, types):
        """Set the types of tensors of the batch, of which no value is known."""
        for tensor, kind in zip(tensors, types):
            self.give(tensor, kind)
        self._numbers.forget(tensors)

    def give(self, tensor, kind):
        """Set the type of a tensor."""
        self._kept.append(tensor)
        self._types[id(tensor)] = kind

    def _stands_for(self, made, tensor, kind):
        """Let a tensor be another one, in another graph."""
        self.give(made, kind)
        self._sizes.same(made, tensor)
        self._every.same(made, tensor)

    def run(self, nodes, known, graph):
        """Put nodes into a graph and type them; extend name → tensor."""
        for first, names in stages(nodes, self._shaped):
            for name in first:
                if nodes.by_name[name].op in CALLS:
                    self._call(nodes, name, known, graph)
                else:
                    self._put_with_shape(nodes, name, known, graph)
            operations = nodes.put(graph, names, known)
            self._names.update(operations)
            for op in operations:
                self._look(op)

    def run_in_place(self, operations):
        """Type ops where they are, each after those that it needs."""
        for op in operations:
            self._look(op)

    def function(self, name, given, types, repeated=False):
        """Return (inputs, outputs) of a function, typed, in a new graph.

        `repeated`: it is given its own outputs again.
        """
        nodes = self.definitions.nodes(name)
        if nodes is None:
            raise Untyped(f"calls a function that is not known: {name}")
        graph, known = tf.Graph(), {}
        with graph.as_default():
            inputs = [placeholder(t.dtype, t.shape, t) for t in given]
        known.update(zip(nodes.inputs, inputs))
        kept = nodes.handed_on() if repeated else range(len(inputs))
        for k, (inner, outer, kind) in enumerate(zip(inputs, given, types)):
            self._stands_for(inner, outer, kind)
            if not repeated:
                self._divisors.same(inner, outer)
            self.lists.same(inner, outer)
            value = self._numbers.of(outer)
            if k in kept and value is not None:
                with graph.as_default():
                    inner = tf.constant(value, outer.dtype)
                self._stands_for(inner, outer, kind)
                known[nodes.inputs[k]] = inner
            self.state.same(inner, outer)
        try:
            self.run(nodes, known, graph)
        except (ValueError, tf.errors.OpError) as error:
            raise Untyped(f"shapes do not fit in {name}: {error}") from None
        return inputs, [known[n] for n in nodes.outputs]

    def _call(self, nodes, name, known, graph):
        """Type a call; placeholders stand for its outputs."""
        call = calls.Call.of(nodes.by_name[name], known)
        types = [self.of(t) for t in call.inputs]
        self.count += 1
        within = self._in_backward
        self._in_backward = self._is_backward(name)
        path, self._path = self._path, f"{self._path}{name}/"
        outputs: Any
        kinds: Any
        try:
            outputs, kinds = calls.called(call, types, self)
        except (Mixes, Untyped) as error:
            self._path, self._in_backward = path, within
            mixed = self.failed(call, str(error), isinstance(error, Untyped))
            outputs = calls.unknown_outputs(call)
            kinds = [mixed] * len(outputs)
        self._path, self._in_backward = path, within
        # Not inside of the graph: there nothing can be evaluated.
        values: Any = [
            call.values.get(k) if call.repeats else self._numbers.of(t)
            for k, t in enumerate(outputs)
        ]
        with graph.as_default():
            for k, (tensor, kind) in enumerate(zip(outputs, kinds)):
                made = placeholder(tensor.dtype, tensor.shape, tensor)
                known[f"{name}:{k}"] = made
                self._stands_for(made, tensor, kind)
                if not call.repeats:
                    self._divisors.same(made, tensor)
                self.lists.same(made, tensor)
                if values[k] is not None:
                    made = tf.constant(values[k], tensor.dtype)
                    self._stands_for(made, tensor, kind)
                    known[f"{name}:{k}"] = made
                self.state.same(made, tensor)

    def _put_with_shape(self, nodes, name, known, graph):
        """Put an op whose shapes its type, or a list, knows better."""
        operations = nodes.put(graph, [name], known)
        self._names.update(operations)
        (op,) = operations
        if op.type in PADS:
            set_padded_shape(op, self._numbers)
        self._look(op)
        value = self.lists.value_of(op)
        if value is not None:
            # A constant, so that shapes that follow from it are known.
            with graph.as_default():
                known[f"{name}:1"] = tf.constant(value, op.outputs[1].dtype)
            self.give(known[f"{name}:1"], self.of(op.outputs[1]))
        for k, tensor in enumerate(op.outputs):
            shape = self.lists.shape_of(op, k)
            shape = nodes.shape_of(f"{name}:{k}", shape)
            kind = self.of(tensor)
            if shape.rank is not None and isinstance(kind, At):
                size = self.n * kind.rows * kind.lead
                sizes = shape.as_list()
                if 0 <= kind.axis < len(sizes):
                    sizes[kind.axis] = size
                shape = tf.TensorShape(sizes)
            if tensor.shape.is_compatible_with(shape):
                tensor.set_shape(shape)

    def failed(self, op, why, untyped=False):
        """Note that an op, or a call, mixes the samples; return the `Mixed`."""
        mixed = Mixed(op.type, self._name(op), why, untyped)
        self.failures.append(mixed)
        return mixed

    def _name(self, op):
        """Return the name of an op where it is called."""
        known = op.name
        if isinstance(op, tf.Operation):
            known = self._names.get(op, known)
        return f"{self._path}{known}"

    def _is_backward(self, name):
        """Whether a node is of the backward pass, or called from there."""
        known = not self._path and name in self._backward
        return self._in_backward or known

    def _look(self, op):
        facts = FACTS[op.type]
        if facts.silent:
            return
        types = [self.of(t) for t in op.inputs]
        if facts.lists:
            self.lists.note(op, self._numbers)
        if facts.reads and self._read(op):
            return
        if facts.assigns:
            self.state.assign(op, types)
        elif op.type == "Identity" and self._is_marked(op, types):
            return
        elif facts.gives_sizes:
            self._set(op, self._size(op, types))
            self._sizes.note(op.outputs)
            self._every.note_sizes(op)
        elif self._keeps_unknown(op, facts, types):
            self._set(op, self.effects[-1])
        elif op.outputs:
            if facts.advances:
                self.state.advance(op)
            if facts.hands_on:
                self._hand_on(op)
            self.count += 1
            self._compute(op, facts, types)

    def _is_marked(self, op, types):
        """Whether the package has marked an op; then note what it says."""
        mark = gradients.mark_of(op)
        if mark == gradients.SAME_FOR_ALL:
            self.told = True
        elif mark == gradients.WHOLE_LOSS:
            self.give(op.outputs[0], settled(types[0]))
        return mark in (gradients.SAME_FOR_ALL, gradients.WHOLE_LOSS)

    def _hand_on(self, op):
        """Let handles and lists that an op gives be those that it takes."""
        for given, made in zip(op.inputs, op.outputs):
            if given.dtype in (tf.resource, tf.variant):
                self.state.same(made, given)
                if op.type == "Identity":
                    self.lists.same(made, given)

    def _compute(self, op, facts, types):
        if op.type == "Equal" and is_true(op):
            return
        mixed = next((t for t in types if isinstance(t, Mixed)), None)
        if mixed is None and facts.has_state:
            mixed = self.state.unknown(op)
        if mixed is not None:
            # It matters where it arrives.
            self._set(op, mixed)
            return
        if facts.sizes and _have(BY_SIZE, types):
            types = as_shapes(op, types)
        if facts.python or not all(type(t) is Free for t in types):
            self._set(op, self._by_rule(op, facts, types))
            return
        flags = 0
        for kind in types:
            flags |= kind.flags
        if self.any_number or self._every.finds or flags & BY_SIZE:
            self._set_free(op, types, flags)
        elif flags:
            self._set(op, Free(flags))

    def _set_free(self, op, types, flags):
        """Set the types of what an op makes of no samples, but maybe sizes."""
        made = self._sizes.flags(op, types, flags, lambda t: self._rule(op, t))
        if self._every.finds or flags & BY_SIZE:
            self._every.note(op, types, flags)
        if any(made):
            self._set(op, list(map(Free, made)))

    def _rule(self, op, types):
        """Return what an op's rule says of these types of its inputs."""
        rule = OWN.get(op.type, RULES.get(op.type))
        if rule is None:
            raise Untyped("has no type rule")
        return rule(self._typed_op(op), types)

    def _typed_op(self, op):
        given = op, op.type, op.inputs, op.outputs, self.of
        return TypedOp(*given, *self._common)

    def _by_rule(self, op, facts, types):
        """Return what the rule of an op gives, or a `Mixed` with its reason."""
        try:
            if self._every.finds:
                self._every.check(op)
            if _in_loops(types) and not facts.python:
                kinds = sample_loops.typed(self._typed_op(op), types)
                kinds = Free(flags_of(types)) if kinds is None else kinds
            else:
                kinds = self._rule(op, types)
            made = kinds if isinstance(kinds, list) else [kinds]
            if _have(DIVIDED, made):
                backward = self._is_backward(self._names.get(op, op.name))
                kinds = self._divisors.typed(op, types, kinds, backward)
            return kinds
        except Mixes as error:
            why, untyped = str(error), False
        except Untyped as error:
            why, untyped = str(error), True
        except FAILURES as error:
            why = f"its rule failed ({type(error).__name__}: {error})"
            untyped = True
        if self.n <= 1:
            return static_numbers.of_one_sample(op, types, self.n)
        return self._unproved(op, types, why, untyped)

    def _is_vouched(self, op):
        return self._vouched is not None and self._vouched(op, self._name(op))

    def _unproved(self, op, types, why, untyped):
        """Return what the user vouches for, else a `Mixed`."""
        name = self._name(op)
        if not self._is_vouched(op):
            return self.failed(op, why, untyped)
        self.vouched_ops.append((op.type, name))
        kinds = static_numbers.as_vouched(op, types, self.n)
        if not static_numbers.are_placed(op, kinds, self.n):
            self.without_place.append((op.type, name))
        return kinds

    def _set(self, op, kinds):
        if not isinstance(kinds, (list, tuple)):
            kinds = [kinds] * len(op.outputs)
        for tensor, kind in zip(op.outputs, kinds):
            flag = tensor.dtype == tf.bool and kind.flags & VALUES
            if flag and not isinstance(kind, Mixed):
                # A mask: how many there are may divide a loss.
                kind = dataclasses.replace(kind, flags=kind.flags & ~VALUES)
            if kind != FREE:
                self.give(tensor, kind)

    def _size(self, op, types):
        """Return the type of sizes: free, unless they follow values."""
        for tensor, kind in zip(op.inputs, types):
            if isinstance(kind, Mixed):
                return kind
            known = tensor.shape.is_fully_defined()
            if isinstance(kind, Total) and not known:
                why = "gives a size that may follow the values of samples"
                return self._unproved(op, types, why, True)
        return list(map(Free, self._sizes.left(op, BY_SIZE)))

    def _keeps_unknown(self, op, facts, types):
        """Whether an op keeps state, and neither a rule nor the user knows it.

        Queues, stages, files and the like, also without outputs.
        """
        has_rule = op.type in RULES or op.type in OWN or facts.hands_on
        if self.n <= 1 or (has_rule and not facts.may_keep):
            return False
        if not keeps_unknown(op, types) or self._is_vouched(op):
            return False
        why = "has no type rule, and may keep state or read what is kept"
        self.effects.append(self.failed(op, why, True))
        return True

    def _read(self, op):
        """Type what a variable holds; whether nothing is left to do."""
        handle = op.inputs[0]
        if isinstance(self.of(handle), Mixed):
            # It is not known what is behind it.
            self._set(op, self.of(handle))
            return True
        held, flags = self.state.held(handle), self.state.flags(handle)
        if op.type == "ReadVariableOp":
            self._set(op, held.flagged(flags) if flags else held)
            return True
        if not isinstance(held, Free):
            why = "looks up what the step has assigned from its samples"
            self._set(op, self.failed(op, why, False))
            return True
        if flags:
            self.give(handle, Free(flags))
        return False


def _have(flag, types):
    """Whether one of several types has a flag."""
    return any(kind.flags & flag for kind in types)


def _in_loops(types):
    """Whether types are those of loops through the samples, or of lists."""
    return any(
        isinstance(t, sample_loops.IN_LOOPS)
        or (isinstance(t, At) and t.axis == OF_LIST)
        for t in types
    )
