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

from keras_pergrad.keras_internals import op_marks
from keras_pergrad.keras_internals.graph_nodes import placeholder
from keras_pergrad.samples.types import assumed, call_rules, sample_loops
from keras_pergrad.samples.types.divisors import Divisors, settled
from keras_pergrad.samples.types.every_number import EveryNumber
from keras_pergrad.samples.types.list_shapes import ListShapes
from keras_pergrad.samples.types.node_stages import PADS, stages
from keras_pergrad.samples.types.open_lengths import OpenLengths
from keras_pergrad.samples.types.size_rules import FAILURES, Sizes
from keras_pergrad.samples.types.static_numbers import StaticNumbers
from keras_pergrad.samples.types.tensor_types import (
    BY_SIZE,
    FREE,
    VALUES,
    At,
    Free,
    Mixed,
    Mixes,
    Total,
    Untyped,
    flags_of,
)
from keras_pergrad.samples.types.type_rules import op_types, rule_of
from keras_pergrad.samples.types.typed_op import TypedOp
from keras_pergrad.samples.types.variable_types import (
    ASSIGN,
    HAND_ON,
    READS,
    State,
    has_state,
    keeps_unknown,
)

_SIZES = op_types(
    "Shape ShapeN Size Rank VariableShape TensorListLength "
    "TensorListElementShape"
)
#: What Python computes may follow from anything, also without inputs.
_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_SILENT = {"Placeholder", "Const", "NoOp"}


class Typing:
    """The types of the tensors of a graph and of the functions it calls.

    `any_number`: nothing else has the size n, so that what follows the number
    of samples shows. `vouched(op, name)`: the user vouches for it;
    `shaped(name)`: the graph knows the shapes of an op better than TensorFlow
    infers them; `backward`: the names of the ops of the backward pass;
    `lengths`: the `OpenLengths` of the batch.

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
        self._vouched = vouched or (lambda op, name: False)
        self._shaped = shaped or (lambda name: False)
        self._backward, self._in_backward = backward, False
        self._divisors = Divisors()
        self.state = State()
        self.failures, self.effects, self.vouched_ops = [], [], []
        self.without_place, self.count = [], 0
        self._types, self._numbers = {}, StaticNumbers()
        self._sizes = Sizes(n, any_number, self._numbers)
        self._every = EveryNumber(n, self._numbers, self.lengths)
        self.lists = ListShapes()
        self._kept, self._names, self._path = [], {}, ""
        self.level, self.told = 0, False

    def another(self):
        """Return a `Typing` of the same graph in which nothing is typed."""
        return type(self)(
            self.definitions,
            self.n,
            self.any_number,
            self._vouched,
            self._shaped,
            self._backward,
            self.lengths,
        )

    def of(self, tensor):
        """Return the type of a tensor."""
        return self._types.get(id(tensor), FREE)

    def number_of(self, tensor):
        """Return a tensor's value where shapes alone determine it, or None."""
        return self._numbers.of(tensor)

    def give_input(self, tensor, kind):
        """Set the type of a tensor of the batch, of which no value is known."""
        self.give(tensor, kind)
        self._numbers.forget(tensor)

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
                if call_rules.is_call(nodes.by_name[name].op):
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
        call = call_rules.Call.of(nodes.by_name[name], known)
        types = [self.of(t) for t in call.inputs]
        self.count += 1
        within = self._in_backward
        self._in_backward = self._is_backward(name)
        path, self._path = self._path, f"{self._path}{name}/"
        outputs: Any
        kinds: Any
        try:
            outputs, kinds = call_rules.called(call, types, self)
        except (Mixes, Untyped) as error:
            self._path, self._in_backward = path, within
            mixed = self.failed(call, str(error), isinstance(error, Untyped))
            outputs = call_rules.unknown_outputs(call)
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
            self._set_padded_shape(op)
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

    def _set_padded_shape(self, op):
        """Set the shape of a padded tensor, if it follows from shapes."""
        widths, sizes = self._numbers.of(op.inputs[1]), op.inputs[0].shape
        if widths is not None and sizes.is_fully_defined():
            op.outputs[0].set_shape(widths.sum(1) + sizes.as_list())

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
        if op.type in _SILENT:
            return
        types = [self.of(t) for t in op.inputs]
        self.lists.note(op, self._numbers)
        if op.type in READS and self._read(op):
            return
        if op.type in ASSIGN:
            self.state.assign(op, types)
        elif (mark := op_marks.mark_of(op)) == op_marks.SAME_FOR_ALL:
            self.told = True
        elif mark == op_marks.WHOLE_LOSS:
            self.give(op.outputs[0], settled(types[0]))
        elif op.type in _SIZES:
            self._set(op, self._size(op, types))
            self._sizes.note(op.outputs)
            self._every.note_sizes(op)
        elif self._keeps_unknown(op, types):
            self._set(op, self.effects[-1])
        elif op.outputs:
            self.state.advance(op)
            if op.type in HAND_ON:
                for given, made in zip(op.inputs, op.outputs):
                    self.state.same(made, given)
            self.count += 1
            self._compute(op, types)

    def _compute(self, op, types):
        if _is_true(op):
            return
        mixed = next((t for t in types if isinstance(t, Mixed)), None)
        if mixed is None:
            mixed = self.state.unknown(op) if has_state(op.type) else None
        if mixed is not None:
            # It matters where it arrives.
            self._set(op, mixed)
            return
        types = self._sizes.as_shapes(op, types)
        free = all(type(t) is Free for t in types)
        if free and op.type not in _PYTHON:
            flags = self._sizes.flags(op, types, lambda t: self._rule(op, t))
            self._every.note(op, types)
            if any(flags):
                self._set(op, list(map(Free, flags)))
            return
        self._set(op, self._by_rule(op, types))

    def _rule(self, op, types):
        """Return what an op's rule says of these types of its inputs."""
        rule = rule_of(op.type)
        if rule is None:
            raise Untyped("has no type rule")
        return rule(TypedOp(op, self, self._numbers), types)

    def _by_rule(self, op, types):
        """Return what the rule of an op gives, or a `Mixed` with its reason."""
        try:
            self._every.check(op)
            if sample_loops.concerns(types) and op.type not in _PYTHON:
                seen = TypedOp(op, self, self._numbers)
                kinds = sample_loops.typed(seen, types)
                kinds = Free(flags_of(types)) if kinds is None else kinds
            else:
                kinds = self._rule(op, types)
            backward = self._is_backward(self._names.get(op, op.name))
            return self._divisors.typed(op, types, kinds, backward)
        except Mixes as error:
            why, untyped = str(error), False
        except Untyped as error:
            why, untyped = str(error), True
        except FAILURES as error:
            why = f"its rule failed ({type(error).__name__}: {error})"
            untyped = True
        if self.n <= 1:
            return assumed.of_one_sample(op, types, self.n)
        return self._unproved(op, types, why, untyped)

    def _unproved(self, op, types, why, untyped):
        """Return what the user vouches for, else a `Mixed`."""
        name = self._name(op)
        if not self._vouched(op, name):
            return self.failed(op, why, untyped)
        self.vouched_ops.append((op.type, name))
        kinds = assumed.as_vouched(op, types, self.n)
        if not assumed.are_placed(op, kinds, self.n):
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

    def _keeps_unknown(self, op, types):
        """Whether an op keeps state, and neither a rule nor the user knows it.

        Queues, stages, files and the like, also without outputs.
        """
        if self.n <= 1 or not keeps_unknown(op, types):
            return False
        if self._vouched(op, self._name(op)):
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
            self._set(op, held.flagged(flags))
            return True
        if not isinstance(held, Free):
            why = "looks up what the step has assigned from its samples"
            self._set(op, self.failed(op, why, False))
            return True
        if flags:
            self.give(handle, Free(flags))
        return False


def _is_true(op):
    """Whether an op compares what can be no NaN with itself.

    `tf.recompute_grad` and `keras.remat` do, to wait for a gradient.
    """
    if op.type != "Equal" or op.inputs[0] is not op.inputs[1]:
        return False
    return not (op.inputs[0].dtype.is_floating or op.inputs[0].dtype.is_complex)
