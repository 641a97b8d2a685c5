"""Records what every layer saw in one forward pass of the whole batch.

Each layer's `call` is wrapped for the duration of the pass, always undone.
Layers with a rule run with their activation set aside, so that the gradient
of the *pre-activation* is known; the others are recorded whole, so that the
generic fallback can repeat them. One backward pass then gives every gradient.

Private names in use: `Layer._flatten_layers`, `Layer._trainable_variables`,
`tensorflow.python.eager.record.could_possibly_record`.
"""

import contextlib
import functools

import keras
import tensorflow as tf
from tensorflow.python.eager.record import could_possibly_record

from keras_pergrad import coupling, draws, outside, refusals, trial
from keras_pergrad.applied import applied
from keras_pergrad.calls import (
    Call,
    assigns_weights,
    first_by_place,
    is_input,
    takes_whole,
)
from keras_pergrad.carriers import carriers
from keras_pergrad.factors import join, widened
from keras_pergrad.losses import components
from keras_pergrad.patching import attribute
from keras_pergrad.replay import Recorded, is_composite, training_inside
from keras_pergrad.rules.registry import find_rule


class Tape:
    """One forward and one backward pass, with every layer's part in it.

    Args:
        model: a built `keras.Model`.
        training: whether its layers are called for training.

    Example:

    ```python
    tape = Tape(model)
    with tape:
        y_pred = tape.forward(x)
        loss = ...
    factors = tape.sample_gradients(loss)
    ```
    """

    def __init__(self, model, training=True):
        self.model = model
        self.training = training
        self.variables = list(model.trainable_variables)
        self.calls = []
        self._known = {id(v): v for v in self.variables}
        self._by_tensor = {}
        for variable in self.variables:
            # On a replica the tape notes what stands for all of them.
            for part in (variable.value, *components(variable)):
                self._by_tensor[id(part)] = variable
        self._gradients = tf.GradientTape(watch_accessed_variables=False)
        self._accounts = []
        self._stack = []
        self._open = []
        self._muted = 0
        self._graph = None
        self._loss = contextlib.ExitStack()

    def __enter__(self):
        self._gradients.__enter__()
        return self

    def __exit__(self, *error):
        self._loss.close()
        return self._gradients.__exit__(*error)

    def forward(self, x):
        """`model(x)`, recorded."""
        self._graph = draws.current_graph()
        self._x = first_tensor(x)
        self._batch = self._x.shape[0]
        kwargs = {}
        if self.model._call_has_training_arg:
            kwargs["training"] = self.training
        tried = trial.of(self.model, x, self.training)
        tried.refuse(self.model, self.refuse_coupled)
        with contextlib.ExitStack() as stack:
            for place, layer in enumerate(self.model._flatten_layers()):
                sideways = place in tried.sideways
                stack.enter_context(self._wrapped(layer, sideways))
            # Outermost, so that the layers' rules are still found.
            refuse = self.refuse_coupled
            stack.enter_context(coupling.refused(self.model, refuse))
            stack.enter_context(draws.recording(self._on_draw))
            outputs = self.model(x, **kwargs)
        # From here on only the loss can read a weight.
        self._loss.enter_context(
            outside.watched(self._gradients, self.variables)
        )
        return outputs

    def refuse(self, layer, error):
        """Stops at a layer that has no per-sample gradient."""
        raise error

    def refuse_coupled(self, layer, error):
        """Stops at a layer or loss by which none is defined."""
        self.refuse(layer, error)

    def _on_draw(self, draw):
        for recorded in self._open:
            recorded.draws.append(draw)

    @contextlib.contextmanager
    def _wrapped(self, layer, sideways=False):
        original = layer.call
        if isinstance(original, tf.types.experimental.PolymorphicFunction):
            # What runs in a graph of its own cannot be recorded from outside.
            original = original.python_function

        @functools.wraps(original)
        def call(*args, **kwargs):
            if self._muted:
                return original(*args, **kwargs)
            if sideways and self._stack:
                return self._hand_over(layer, original, args, kwargs)
            return self._record(layer, rule, original, args, kwargs)

        rule = find_rule(layer) if layer._trainable_variables else None
        rule = rule or (find_rule(layer) if takes_whole(layer) else None)
        call.rule = rule
        with attribute(layer, "call", call):
            yield

    def _record(self, layer, rule, original, args, kwargs):
        if self._is_out_of_sight(layer):
            self.refuse(layer, ValueError(refusals.out_of_sight(layer)))
            return original(*args, **kwargs)
        call = Call(layer, rule, parents=tuple(self._stack))
        composite = any(map(is_composite, tf.nest.flatten((args, kwargs))))
        if composite:
            call.rule = rule = None
        elif rule is not None:
            args, kwargs = first_by_place(original, args, kwargs)
            call.reason = rule.reason_against(layer, *args, **kwargs)
            if call.reason:
                call.rule = rule = None
        whole = takes_whole(layer)
        with self._frame(call), self._mute(whole or rule is not None):
            if rule is None:
                outputs = self._follow_call(call, original, args, kwargs)
            elif rule.forward is None:
                outputs = self._follow_linear(call, original, args, kwargs)
            else:
                outputs = self._follow_rule(call, original, args, kwargs)
        if assigns_weights(layer):
            call.accessed.clear()
        if call.accessed:
            self.calls.append(call)
            if composite:
                call.refused, call.watched = True, []
                error = ValueError(refusals.composite(layer))
                self.refuse(layer, error)
        if rule is not None and rule.forward is None:
            # Outside of the frame: an activation may be a layer with weights.
            activation = getattr(layer, "activation", None)
            return outputs if activation is None else activation(outputs)
        return outputs

    def _hand_over(self, layer, original, args, kwargs):
        """Leaves a call to the fallback of the layer that it is made in.

        Samples are not on the first axis here, but they are around it.
        """
        added = []
        around = self._stack[-1]
        noting = attribute(layer, "add_loss", _noting(layer, added))
        with self._mute(takes_whole(layer)), noting:
            outputs = original(*args, **kwargs)
        if added or getattr(layer, "activity_regularizer", None) is not None:
            # The fallback around sees only what goes through its outputs.
            error = ValueError(refusals.layout(layer, "another number of"))
            self.refuse(layer, error)
        around.reason = around.reason or refusals.sideways(layer)
        return outputs

    def _is_out_of_sight(self, layer):
        """Whether what the layer does here does not reach the tape."""
        if draws.current_graph() is not self._graph:
            return True
        # Inside a custom gradient (rematerialisation is one).
        owns = layer._trainable_variables or takes_whole(layer)
        return bool(owns) and not could_possibly_record()

    def _follow_linear(self, call, original, args, kwargs):
        """The layer's own call, with its activation set aside."""
        with contextlib.ExitStack() as stack:
            if getattr(call.layer, "activation", None) is not None:
                linear = keras.activations.linear
                stack.enter_context(attribute(call.layer, "activation", linear))
            outputs = original(*args, **kwargs)
        self._gradients.watch(outputs)
        call.watched.append(outputs)
        call.inputs = args[0] if args else next(iter(kwargs.values()))
        return outputs

    def _follow_rule(self, call, original, args, kwargs):
        def watch(tensor):
            self._gradients.watch(tensor)
            call.watched.append(tensor)
            return tensor

        outputs, call.inputs = call.rule.forward(
            call.layer, original, watch, *args, **kwargs
        )
        return outputs

    def _follow_call(self, call, original, args, kwargs):
        training = training_inside()
        recorded = Recorded(call.layer, args, kwargs, training, [], [])
        self._open.append(recorded)
        added = []
        try:
            with attribute(call.layer, "add_loss", _noting(call.layer, added)):
                outputs = original(*args, **kwargs)
        finally:
            self._open.remove(recorded)
        # An output that is an input would be watched as both.
        outputs = tf.nest.map_structure(
            lambda t: tf.identity(t) if is_input(t, args, kwargs) else t,
            outputs,
        )
        recorded.outputs = carriers(outputs)
        recorded.losses = added
        floats = [t for t in recorded.outputs if t.dtype.is_floating]
        self._gradients.watch(floats)
        call.watched = floats
        call.recorded = recorded
        return outputs

    @contextlib.contextmanager
    def _mute(self, muted):
        self._muted += bool(muted)
        try:
            yield
        finally:
            self._muted -= bool(muted)

    @contextlib.contextmanager
    def _frame(self, call):
        """Notes which trainable variables are read in this very call."""
        with contextlib.ExitStack() as stack:
            if self._accounts:
                stack.enter_context(self._accounts[-1].stop_recording())
            account = stack.enter_context(tf.GradientTape())
            self._accounts.append(account)
            self._stack.append(call)
            try:
                yield
            finally:
                self._accounts.pop()
                self._stack.pop()
        for part in account.watched_variables():
            variable = self._by_tensor.get(id(part))
            if variable is not None:
                call.accessed.add(id(variable))
        recorded = call.recorded
        if recorded is not None and recorded.losses and call.accessed:
            own = [p for p in account.watched_variables()]
            if any(
                g is not None for g in account.gradient(recorded.losses, own)
            ):
                error = ValueError(refusals.own_loss(call.layer))
                self.refuse(call.layer, error)

    def sample_gradients(self, loss, scale=None):
        """What each sample contributes to the gradient of each variable.

        Args:
            loss: the scalar loss of the batch, reduced as Keras does.
            scale: the factor by which `loss` was multiplied (loss scaling).

        Returns:
            A list in the order of `model.trainable_variables` of
            `SampleGradients`; None for a variable that the loss does not
            depend on.
        """
        parts = {}
        for _, variable, factor in self.parts(loss, scale):
            parts.setdefault(id(variable), []).append(factor)
        return [
            widened(join(parts[id(v)]), v.value.dtype)
            if id(v) in parts
            else None
            for v in self.variables
        ]

    def parts(self, loss, scale=None):
        """Yields (call, variable, factor) for each use of a variable."""
        flat = [t for call in self.calls for t in call.watched]
        values = [v.value for v in self.variables]
        gradients = self._gradients.gradient(loss, flat + values)
        error = outside.error(self.variables, gradients[len(flat) :])
        if error is not None:
            raise error
        gradients = iter(self._checked(gradients[: len(flat)]))
        reached = set()
        for call in self.calls:
            reached |= call.accessed
            dz = [next(gradients) for _ in call.watched]
            if call.refused or all(g is None for g in dz):
                continue
            try:
                found = list(applied(call, self.variables, dz, scale))
            except ValueError as error:
                self.refuse(call.layer, error)
                continue
            for variable, factor in found:
                key = id(variable)
                reached.add(key)
                covered = any(p.covers(key) for p in call.parents)
                if key in self._known and not covered:
                    yield call, variable, factor
        missed = [v.path for v in self.variables if id(v) not in reached]
        if missed:
            error = ValueError(refusals.missed(self.model, missed))
            self.refuse(self.model, error)

    def _checked(self, gradients):
        """The same gradients, once their first axis is known to be n."""
        sizes = []
        for call in self.calls:
            for tensor in call.watched:
                size = tensor.shape[0]
                if size is None or self._batch is None:
                    sizes.append(tf.shape(tensor)[0])
                elif size != self._batch:
                    error = ValueError(refusals.layout(call.layer, size))
                    self.refuse(call.layer, error)
                    call.refused = True
        if not sizes:
            return gradients
        check = tf.debugging.Assert(
            tf.reduce_all(tf.equal(tf.stack(sizes), tf.shape(self._x)[0])),
            [refusals.layout(None, "another number of"), tf.stack(sizes)],
        )
        with tf.control_dependencies([check] if check is not None else []):
            return [
                None if g is None else tf.identity(tf.convert_to_tensor(g))
                for g in gradients
            ]


def first_tensor(x):
    """The tensor whose first axis counts the samples."""
    return next(t for t in tf.nest.flatten(x) if t is not None)


def _noting(layer, added):
    original = layer.add_loss

    def add_loss(loss):
        added.extend(tf.nest.flatten(loss))
        return original(loss)

    return add_loss
