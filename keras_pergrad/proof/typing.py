"""The type of every tensor of a graph, without running it."""

import contextlib
import dataclasses
import functools

import tensorflow as tf

from keras_pergrad.keras_internals.graphs import gradients
from keras_pergrad.proof import (
    divisors,
    op_facts,
    sample_loops,
    static_numbers,
)
from keras_pergrad.proof.every_number import EveryNumber, with_other_axes
from keras_pergrad.proof.intervals import is_constant
from keras_pergrad.proof.list_rules import ListShapes
from keras_pergrad.proof.numbers import OpenLengths, all_lengths
from keras_pergrad.proof.op_facts import FACTS
from keras_pergrad.proof.static_numbers import (
    RULE_FAILURES,
    Sizes,
    StaticNumbers,
    without_size_flags,
)
from keras_pergrad.proof.tensor_types import (
    ALL,
    ALL_RULES,
    BY_SIZE,
    DIVIDED,
    INPUTS,
    OF_LIST,
    USER_INPUTS,
    USER_RULES,
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
    settle_factor,
)
from keras_pergrad.proof.values import (
    State,
    Values,
    forward_handles,
    has_unknown_state,
    refuse_state_of_samples,
    type_assignment,
    type_read,
    with_held_types,
)


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
        level: how many loops through the samples are being typed.
        failures: the `Mixed` that arose, in order.
        effects: those of ops that keep state in a way that is not known.
        count: how many ops were typed.
        vouched_ops: the ops that the user vouches for.
        without_axis: those that leave no axis as long as the batch.
        assumes_same_for_all: whether an answer of all samples together is
            taken as known, as of labels in a hinge loss.
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
        self._vouches_for, self.has_known_shape = is_vouched, has_known_shape
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
            n, self.numbers, self.values, lengths_of=self.lengths_of
        )
        self._path = ""
        self.level, self.assumes_same_for_all = 0, False

    @functools.cached_property
    def lists(self):
        """What is known of lists, a `ListShapes`."""
        return ListShapes(self.values, self.numbers)

    def of(self, tensor):
        """Return the type of a tensor."""
        return self.values.type_of(tensor)

    def set_inputs(self, tensors, types):
        """Set the types of tensors of the batch, of which no value is known."""
        for tensor, tensor_type in zip(tensors, types):
            value = self.values[tensor]
            value.type, value.number = tensor_type, None

    def run(self, operations):
        """Type ops, each after those that it needs.

        `operations`: op → the name of its node.
        """
        # All records at once: this is less work than for each op.
        for op, input_values, output_values in self.values.around(operations):
            facts = FACTS[op.type]
            if facts.traits & op_facts.IS_GIVEN:
                continue
            typed_op = TypedOp(
                op,
                name=operations[op],
                type=op.type,
                facts=facts,
                inputs=op.inputs,
                outputs=op.outputs,
                input_values=input_values,
                output_values=output_values,
                n=self.n,
                any_number=self.any_number,
                typing=self,
            )
            self._type_op(typed_op)

    @contextlib.contextmanager
    def inside(self, name):
        """Name and place ops, meanwhile, as those of a call."""
        before = self._in_backward, self._in_own_gradient, self._path, self._top
        self._in_backward = self._is_backward(name)
        is_own = self._is_own_gradient(name)
        self._in_own_gradient = self._in_backward and is_own
        self._path, self._top = f"{self._path}{name}/", self._top or name
        try:
            yield
        finally:
            self._in_backward, self._in_own_gradient = before[:2]
            self._path, self._top = before[2:]

    def failed(self, op, why, untyped=False):
        """Note that an op, or a call, mixes the samples; return the `Mixed`."""
        mixed = Mixed(op.type, self._called_name(op), why, untyped=untyped)
        self.failures.append(mixed)
        return mixed

    def _called_name(self, op):
        """Return the name of an op where it is called."""
        return f"{self._path}{op.name}"

    def _is_backward(self, name):
        """Whether a node is of the backward pass, or called from there."""
        is_added = not self._path and name in self._backward
        return self._in_backward or is_added

    def _without_loss(self, op, types):
        """Return the types of inputs as a custom gradient finds them."""
        if self._is_backward(op.name) and self._is_own_gradient(op.name):
            return list(map(divisors.without_loss, types))
        return types

    def _is_own_gradient(self, name):
        """Whether a node of the backward pass is of a custom gradient."""
        return self._in_own_gradient or not gradients.is_made_gradient(name)

    def _type_op(self, op):
        facts, types = op.facts, [value.type for value in op.input_values]
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
        elif facts.may_keep_state and self._has_unknown_state(op, types):
            self.set_types(op, self.effects[-1])
        elif op.outputs:
            if facts.traits & op_facts.ADVANCES:
                self.state.advance(op)
            if facts.has_state:
                types = with_held_types(op, types, self)
            if facts.traits & op_facts.FORWARDS:
                forward_handles(op, self)
            self.count += 1
            self._type_computation(op, types)

    def _is_marked(self, op, types):
        """Whether the package has marked an op; then note what it says."""
        mark = gradients.mark_of(op.op)
        if mark == gradients.SAME_FOR_ALL:
            self.assumes_same_for_all = True
        elif mark == gradients.WHOLE_LOSS:
            op.output_values[0].type = settle_factor(types[0])
        return mark in (gradients.SAME_FOR_ALL, gradients.WHOLE_LOSS)

    def _type_computation(self, op, types):
        facts = op.facts
        may_be_constant = facts.traits & op_facts.MAY_BE_CONSTANT
        if may_be_constant and is_constant(op, types):
            return
        classes, flags = set(map(type, types)), 0
        if Mixed in classes:
            # A mixed tensor is no error by itself: it matters where it
            # arrives.
            mixed = next(t for t in types if isinstance(t, Mixed))
            self.set_types(op, mixed)
            return
        for input_type in types:
            flags |= input_type.flags
        if facts.size_inputs and flags & BY_SIZE:
            types = without_size_flags(op, types)
            flags = flags_of(types)
        # The types of counters in loops are subclasses of `Free`, with rules.
        if facts.traits & op_facts.IN_PYTHON or not classes <= {Free}:
            results = self._by_rule(op, types, classes)
            self.set_types(op, results)
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
        if op.facts.has_state:
            refuse_state_of_samples(op, types)
        rule = ALL_RULES.get(op.type)
        if rule is None:
            raise Untyped("has no type rule")
        inputs = USER_INPUTS if op.type in USER_RULES else INPUTS
        places = inputs[op.type]
        if places != ALL:
            followed = {k for k, t in enumerate(types) if type(t) is not Free}
            # An argument may have several tensors: places are no indices then.
            if op.facts.takes_several or not followed <= places:
                refuse_other_inputs(op, types, places)
        return rule(op, types)

    def lengths_of(self, op):
        """Return the lengths that an op may have in its shapes."""
        name = self._top or op.name
        op = None if self._top else op
        return self._lengths_at(self.lengths, name, op=op)

    def _by_rule(self, op, types, classes):
        """Return what the rule of an op gives, or a `Mixed` with its reason.

        `classes`: those of the types.
        """
        try:
            if self._backward and Divisor in classes:
                types = self._without_loss(op, types)
                if all(isinstance(t, Free) for t in types):
                    return Free(flags_of(types))
            if self._every_number.is_needed:
                self._every_number.check(op)
            in_python = op.facts.traits & op_facts.IN_PYTHON
            if not in_python and _are_of_loops(types, classes):
                results = sample_loops.type_in_loop(op, types)
                results = Free(flags_of(types)) if results is None else results
            else:
                results = self._apply_rule(op, types)
            if not isinstance(results, list):
                results = [results] * len(op.outputs)
            self._require_axes(op, results)
            if self.any_number:
                results = with_other_axes(op, results, self.n)
            if any(t.flags & DIVIDED for t in results):
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

    def _require_axes(self, op, results):
        """Refuse a result of a rule that has samples where there are none."""
        for tensor, result in zip(op.outputs, results):
            if not isinstance(result, At) or tensor.dtype == tf.variant:
                continue
            shape, length = tensor.shape, self.n * result.rows * result.lead
            if shape.rank is not None and (
                not 0 <= result.axis < shape.rank
                or shape[result.axis] not in (None, length)
            ):
                why = "has no axis for the samples where its rule says"
                raise Untyped(why)

    def _with_factors(self, op, types, results):
        """Return the types of outputs that sums of masks multiply."""
        if not self._is_backward(op.name):
            return self._divisors.apply_factors(op, types, results)
        is_own = self._is_own_gradient(op.name)
        return divisors.gradient_types(op, results, is_own)

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
        for value, tensor_type in zip(op.output_values, types):
            is_mask = value.tensor.dtype == tf.bool
            has_values = is_mask and tensor_type.flags & VALUES
            if has_values and not isinstance(tensor_type, Mixed):
                # How many there are may divide a loss.
                flags = tensor_type.flags & ~VALUES
                tensor_type = dataclasses.replace(tensor_type, flags=flags)
            value.type = tensor_type

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

    def _has_unknown_state(self, op, types):
        """Whether an op keeps state, and neither a rule nor the user knows it.

        Queues, stages, files and the like, also without outputs.
        """
        if self.n <= 1 or not has_unknown_state(op, types):
            return False
        if self._is_vouched(op):
            return False
        why = "has no type rule, and may keep state or read what is kept"
        self.effects.append(self.failed(op, why, True))
        return True


def _are_of_loops(types, classes):
    """Whether types are those of loops through the samples, or of lists."""
    if not classes.isdisjoint(sample_loops.LOOP_TYPES):
        return True
    return At in classes and OF_LIST in [t.axis for t in types if type(t) is At]
