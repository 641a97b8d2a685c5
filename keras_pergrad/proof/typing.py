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
from keras_pergrad.proof import (
    calls,
    divisors,
    op_facts,
    sample_loops,
    static_numbers,
)
from keras_pergrad.proof.calls import set_computed_shape, stages
from keras_pergrad.proof.every_number import EveryNumber, checked_types
from keras_pergrad.proof.intervals import is_constant
from keras_pergrad.proof.list_rules import ListShapes
from keras_pergrad.proof.numbers import OpenLengths, all_lengths
from keras_pergrad.proof.op_facts import FACTS
from keras_pergrad.proof.state import (
    State,
    forward_handles,
    has_unknown_state,
    refuse_state_of_samples,
    type_assignment,
    type_read,
    with_held_types,
)
from keras_pergrad.proof.static_numbers import (
    RULE_FAILURES,
    Sizes,
    StaticNumbers,
    without_size_flags,
)
from keras_pergrad.proof.tensor_types import (
    BY_SIZE,
    DIVIDED,
    VALUES,
    At,
    Divisor,
    Free,
    Mixed,
    Mixes,
    Total,
    TypedOp,
    Untyped,
    flags_of,
    refuse_other_inputs,
    rule_of,
    settle_factor,
)
from keras_pergrad.proof.values import Values


class Typing:
    """The types of the tensors of a graph and of the functions it calls.

    Args:
        definitions: the `Definitions` of the functions that the graph calls.
        n: the number of samples.
        any_number: whether nothing else has the size n, so that what follows
            the number of samples shows.
        is_vouched: `is_vouched(op, name)` tells whether the user vouches for
            an op; None: for none.
        has_known_shape: `has_known_shape(name)` tells whether the graph knows
            the shapes of an op better than TensorFlow infers them; None: of
            none.
        backward: the names of the ops of the backward pass.
        lengths: the `OpenLengths` of the batch.
        lengths_at: `lengths_at(lengths, name, op)` gives those lengths that
            an op may have in its shapes; `name` is that of the node or, in a
            function, of its call, where `op` is None. None: all of them.

    Attributes:
        values: what is known of each tensor, a `Values`.
        numbers: the values that shapes alone determine, a `StaticNumbers`.
        state: what variables hold, a `State`.
        lists: what is known of lists, a `ListShapes`.
        level: how many loops through the samples are being typed.
        failures: the `Mixed` that arose, in order.
        effects: those of ops that keep state in a way that is not known.
        count: how many ops were typed.
        vouched_ops: the ops that the user vouches for.
        without_axis: those that leave no axis as long as the batch.
        assumes_same_for_all: as of `StepTypes`.
    """

    def __init__(
        self,
        definitions,
        n,
        any_number,
        *,
        is_vouched=None,
        has_known_shape=None,
        backward=(),
        lengths=None,
        lengths_at=None,
    ):
        self.definitions, self.n = definitions, n
        self.lengths = lengths or OpenLengths()
        self.any_number = any_number
        self._vouches_for, self._has_known_shape = is_vouched, has_known_shape
        self._lengths_at, self._top = lengths_at or all_lengths, None
        self._backward, self._in_backward = backward, False
        self._in_own_gradient = False
        self.values = Values()
        self._divisors = divisors.Divisors(self.values)
        self.state = State(self.values)
        self.failures, self.effects, self.vouched_ops = [], [], []
        self.without_axis, self.count = [], 0
        self.numbers = StaticNumbers(self.values)
        self._sizes = Sizes(n, any_number, self.numbers, values=self.values)
        self._every_number = EveryNumber(
            n, self.numbers, self.values, lengths_of=self._lengths_of
        )
        self.lists = ListShapes(self.values, self.numbers)
        self._names, self._path = {}, ""
        self.level, self.assumes_same_for_all = 0, False

    def of(self, tensor):
        """Return the type of a tensor."""
        return self.values.type_of(tensor)

    def set_inputs(self, tensors, types):
        """Set the types of tensors of the batch, of which no value is known."""
        self.values.set_types(tensors, types)
        self.numbers.forget(tensors)

    def run(self, nodes, tensors, graph):
        """Put nodes into a graph and type them; extend name → tensor."""
        for leading, names in stages(nodes, self._has_known_shape):
            for name in leading:
                if FACTS[nodes.by_name[name].op].traits & op_facts.CALLS:
                    self._type_call(nodes, name, tensors, graph=graph)
                else:
                    self._put_with_shape(nodes, name, tensors, graph=graph)
            operations = nodes.put(graph, names, tensors)
            self._names.update(operations)
            for op in operations:
                self._type_op(op)

    def run_in_place(self, operations):
        """Type ops where they are, each after those that it needs."""
        for op in operations:
            self._type_op(op)

    def type_function(self, name, arguments, types, *, is_repeated=False):
        """Return (inputs, outputs) of a function, typed, in a new graph.

        `is_repeated`: it is called again with its own outputs, as a loop's
        body. Then only inputs that it hands on keep known values.
        """
        nodes = self.definitions.nodes(name)
        if nodes is None:
            raise Untyped(f"calls a function that is not known: {name}")
        graph, tensors = tf.Graph(), {}
        with graph.as_default():
            inputs = [placeholder(t.dtype, t.shape, t) for t in arguments]
        tensors.update(zip(nodes.inputs, inputs))
        constants = (
            nodes.passthrough_indices() if is_repeated else range(len(inputs))
        )
        for k, (inner, outer, input_type) in enumerate(
            zip(inputs, arguments, types)
        ):
            self.values.bind(inner, outer, input_type, is_equal=not is_repeated)
            value = self.numbers.of(outer)
            if k in constants and value is not None:
                with graph.as_default():
                    inner = tf.constant(value, outer.dtype)
                self.values.bind(inner, outer, input_type, is_equal=False)
                tensors[nodes.inputs[k]] = inner
        try:
            self.run(nodes, tensors, graph)
        except (ValueError, tf.errors.OpError) as error:
            if self.lengths.tied(error) is not None:
                raise  # The step is typed again.
            raise Untyped(f"shapes do not fit in {name}: {error}") from None
        return inputs, [tensors[n] for n in nodes.outputs]

    def _type_call(self, nodes, name, tensors, *, graph):
        """Type a call; placeholders stand for its outputs."""
        call = calls.Call.of(nodes.by_name[name], tensors)
        types = self.values.types_of(call.inputs)
        self.count += 1
        was_backward = self._in_backward, self._in_own_gradient
        self._in_backward = self._is_backward(name)
        is_own = self._is_own_gradient(name)
        self._in_own_gradient = self._in_backward and is_own
        path, self._path = self._path, f"{self._path}{name}/"
        top, self._top = self._top, self._top or name
        outputs: Any
        results: Any
        try:
            outputs, results = calls.type_call(call, types, self)
        except (Mixes, Untyped) as error:
            # First the path: the failure is named as of the call itself.
            self._path, self._top = path, top
            self._in_backward, self._in_own_gradient = was_backward
            mixed = self.failed(call, str(error), isinstance(error, Untyped))
            outputs = calls.unknown_outputs(call)
            results = [mixed] * len(outputs)
        self._path, self._top = path, top
        self._in_backward, self._in_own_gradient = was_backward
        # Not inside of the graph: there nothing can be evaluated.
        values: Any = [
            call.values.get(k) if call.is_control_flow else self.numbers.of(t)
            for k, t in enumerate(outputs)
        ]
        with graph.as_default():
            for k, (tensor, result) in enumerate(zip(outputs, results)):
                stand_in = placeholder(tensor.dtype, tensor.shape, tensor)
                tensors[f"{name}:{k}"] = stand_in
                is_equal = not call.is_control_flow
                self.values.bind(stand_in, tensor, result, is_equal=is_equal)
                if values[k] is not None:
                    stand_in = tf.constant(values[k], tensor.dtype)
                    self.values.bind(stand_in, tensor, result, is_equal=False)
                    tensors[f"{name}:{k}"] = stand_in

    def _put_with_shape(self, nodes, name, tensors, *, graph):
        """Put an op whose shapes its type, or a list, knows better."""
        operations = nodes.put(graph, [name], tensors)
        self._names.update(operations)
        (op,) = operations
        set_computed_shape(op, self.numbers)
        self._type_op(op)
        value = self.lists.value_of(op)
        if value is not None:
            # A constant, so that shapes that follow from it are known.
            with graph.as_default():
                tensors[f"{name}:1"] = tf.constant(value, op.outputs[1].dtype)
            self.values[tensors[f"{name}:1"]].type = self.of(op.outputs[1])
        for k, tensor in enumerate(op.outputs):
            shape = self.lists.shape_of(op, k)
            shape = nodes.shape_of(f"{name}:{k}", shape)
            result = self.of(tensor)
            if shape.rank is not None and isinstance(result, At):
                size = self.n * result.rows * result.lead
                sizes = shape.as_list()
                if 0 <= result.axis < len(sizes):
                    sizes[result.axis] = size
                shape = tf.TensorShape(sizes)
            if tensor.shape.is_compatible_with(shape):
                tensor.set_shape(shape)

    def failed(self, op, why, untyped=False):
        """Note that an op, or a call, mixes the samples; return the `Mixed`."""
        mixed = Mixed(op.type, self._called_name(op), why, untyped=untyped)
        self.failures.append(mixed)
        return mixed

    def _called_name(self, op):
        """Return the name of an op where it is called."""
        name = op.name
        if isinstance(op, tf.Operation):
            name = self._names.get(op, name)
        return f"{self._path}{name}"

    def _is_backward(self, name):
        """Whether a node is of the backward pass, or called from there."""
        is_added = not self._path and name in self._backward
        return self._in_backward or is_added

    def _without_loss(self, op, types):
        """Return the types of inputs as a custom gradient finds them."""
        name = self._names.get(op, op.name)
        if self._is_backward(name) and self._is_own_gradient(name):
            return list(map(divisors.without_loss, types))
        return types

    def _is_own_gradient(self, name):
        """Whether a node of the backward pass is of a custom gradient."""
        return self._in_own_gradient or not gradients.is_made_gradient(name)

    def _type_op(self, op):
        facts = FACTS[op.type]
        if facts.traits & op_facts.IS_GIVEN:
            return
        types = self.values.types_of(op.inputs)
        if facts.traits & op_facts.ON_LISTS:
            self.lists.note(op)
        if facts.traits & op_facts.READS and type_read(op, self):
            return
        if facts.traits & op_facts.ASSIGNS:
            type_assignment(op, types, self)
        elif op.type == "Identity" and self._is_marked(op, types):
            return
        elif facts.traits & op_facts.GIVES_SIZES:
            self.set_types(op, self._size_types(op, types))
            self._sizes.note(op.outputs)
            self._every_number.note_sizes(op)
        elif self._has_unknown_state(op, facts, types):
            self.set_types(op, self.effects[-1])
        elif op.outputs:
            if facts.traits & op_facts.ADVANCES:
                self.state.advance(op)
            if facts.has_state:
                types = with_held_types(op, types, self)
            if facts.traits & op_facts.FORWARDS:
                forward_handles(op, self)
            self.count += 1
            self._type_computation(op, facts, types)

    def _is_marked(self, op, types):
        """Whether the package has marked an op; then note what it says."""
        mark = gradients.mark_of(op)
        if mark == gradients.SAME_FOR_ALL:
            self.assumes_same_for_all = True
        elif mark == gradients.WHOLE_LOSS:
            self.values[op.outputs[0]].type = settle_factor(types[0])
        return mark in (gradients.SAME_FOR_ALL, gradients.WHOLE_LOSS)

    def _type_computation(self, op, facts, types):
        may_be_constant = facts.traits & op_facts.MAY_BE_CONSTANT
        if may_be_constant and is_constant(op, types, self._typed_op):
            return
        mixed = next((t for t in types if isinstance(t, Mixed)), None)
        if mixed is not None:
            # A mixed tensor is no error by itself: it matters where it
            # arrives.
            self.set_types(op, mixed)
            return
        flags = flags_of(types)
        if facts.size_inputs and flags & BY_SIZE:
            types = without_size_flags(op, types)
            flags = flags_of(types)
        # The types of counters in loops are subclasses of `Free`, with rules.
        if facts.traits & op_facts.IN_PYTHON or not all(
            type(t) is Free for t in types
        ):
            self.set_types(op, self._by_rule(op, facts, types))
            return
        if self.any_number or self._every_number.is_needed or flags & BY_SIZE:
            self._set_free(op, types, flags)
        elif flags:
            self.set_types(op, Free(flags))

    def _set_free(self, op, types, flags):
        """Set the types of what an op makes of no samples, but maybe sizes."""
        output_flags = self._sizes.flags(
            op, types, flags, rule=lambda t: self._apply_rule(op, t)
        )
        if self._every_number.is_needed or flags & BY_SIZE:
            self._every_number.note(op, types, flags)
        if any(output_flags):
            self.set_types(op, list(map(Free, output_flags)))

    def _apply_rule(self, op, types):
        """Return what an op's rule says of these types of its inputs."""
        if FACTS[op.type].has_state:
            refuse_state_of_samples(op, types)
        rule = rule_of(op.type)
        if rule is None:
            raise Untyped("has no type rule")
        refuse_other_inputs(op, types)
        return rule(self._typed_op(op), types)

    def _typed_op(self, op):
        return TypedOp(
            op,
            type=op.type,
            inputs=op.inputs,
            outputs=op.outputs,
            type_of=self.of,
            lengths=self._lengths_of(op),
            n=self.n,
            any_number=self.any_number,
            numbers=self.numbers,
            lists=self.lists,
        )

    def _lengths_of(self, op):
        """Return the lengths that an op may have in its shapes."""
        name = self._top or self._names.get(op, op.name)
        op = None if self._top else op
        return self._lengths_at(self.lengths, name, op=op)

    def _by_rule(self, op, facts, types):
        """Return what the rule of an op gives, or a `Mixed` with its reason."""
        try:
            if self._backward and any(isinstance(t, Divisor) for t in types):
                types = self._without_loss(op, types)
                if all(isinstance(t, Free) for t in types):
                    return Free(flags_of(types))
            self._every_number.check(op)
            is_in_loop = sample_loops.has_loop_types(types)
            if is_in_loop and not facts.traits & op_facts.IN_PYTHON:
                results = sample_loops.type_in_loop(self._typed_op(op), types)
                results = Free(flags_of(types)) if results is None else results
            else:
                results = self._apply_rule(op, types)
            results = checked_types(
                op, results, self.n, any_number=self.any_number
            )
            result_list = results if isinstance(results, list) else [results]
            if flags_of(result_list) & DIVIDED:
                results = self._with_factors(op, types, results)
            return results
        except (Mixes, Untyped) as error:
            why, untyped = str(error), isinstance(error, Untyped)
        except RULE_FAILURES as error:
            why = f"its rule failed ({type(error).__name__}: {error})"
            untyped = True
        if self.n <= 1:
            return static_numbers.types_of_one_sample(op, types, self.n)
        return self._vouched_or_mixed(op, types, why, untyped=untyped)

    def _with_factors(self, op, types, results):
        """Return the types of outputs that sums of masks multiply."""
        name = self._names.get(op, op.name)
        if not self._is_backward(name):
            return self._divisors.apply_factors(op, types, results)
        return divisors.gradient_types(op, results, self._is_own_gradient(name))

    def _is_vouched(self, op):
        asks, name = self._vouches_for, self._called_name(op)
        return asks is not None and asks(op, name)

    def _vouched_or_mixed(self, op, types, why, *, untyped):
        """Return what the user vouches for, else a `Mixed`."""
        name = self._called_name(op)
        if not self._is_vouched(op):
            return self.failed(op, why, untyped)
        self.vouched_ops.append((op.type, name))
        results = static_numbers.vouched_types(op, types, self.n)
        if not static_numbers.have_sample_axes(op, results, self.n):
            self.without_axis.append((op.type, name))
        return results

    def set_types(self, op, types):
        """Set the types of the outputs of an op."""
        if not isinstance(types, (list, tuple)):
            types = [types] * len(op.outputs)
        types = list(types)
        for k, (tensor, tensor_type) in enumerate(zip(op.outputs, types)):
            is_mask = tensor.dtype == tf.bool and tensor_type.flags & VALUES
            if is_mask and not isinstance(tensor_type, Mixed):
                # A mask: how many there are may divide a loss.
                flags = tensor_type.flags & ~VALUES
                types[k] = dataclasses.replace(tensor_type, flags=flags)
        self.values.set_types(op.outputs, types)

    def _size_types(self, op, types):
        """Return the type of sizes: free, unless they follow values."""
        for tensor, input_type in zip(op.inputs, types):
            if isinstance(input_type, Mixed):
                return input_type
            is_known = tensor.shape.is_fully_defined()
            if isinstance(input_type, Total) and not is_known:
                why = "gives a size that may follow the values of samples"
                return self._vouched_or_mixed(op, types, why, untyped=True)
        return list(map(Free, self._sizes.left(op, BY_SIZE)))

    def _has_unknown_state(self, op, facts, types):
        """Whether an op keeps state, and neither a rule nor the user knows it.

        Queues, stages, files and the like, also without outputs.
        """
        if self.n <= 1 or not facts.may_keep_state:
            return False
        if not has_unknown_state(op, types) or self._is_vouched(op):
            return False
        why = "has no type rule, and may keep state or read what is kept"
        self.effects.append(self.failed(op, why, True))
        return True
