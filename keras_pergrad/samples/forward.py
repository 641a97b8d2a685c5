"""The forward pass of a model in a graph, with what its layer rules watch.

It is Keras's own. Only layers that have a rule (recurrent layers, and layers
of the user) are called through this rule, and recurrent layers that have none
run their loop on GPUs, too. They are always restored afterwards.
"""

import contextlib
import functools
import inspect

import keras
import tensorflow as tf

from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.cudnn import loops_instead
from keras_pergrad.keras_internals.model_parts import layers_of, takes_training
from keras_pergrad.keras_internals.tracing import functions_in_line
from keras_pergrad.keras_internals.xla import in_xla
from keras_pergrad.samples.layer_rules.rule_registry import find_rule
from keras_pergrad.samples.rule_calls import RuleCall


class Forward:
    """`model(x)`, in the graph that is being built.

    Attributes:
        graph: the graph.
        start, stop: how many ops it had before and after.
        outputs: what the model returned.
        calls: a list of `RuleCall`.
    """

    def __init__(self, model, training=True):
        self.model = model
        self.training = training
        self.graph, self.start, self.stop = None, 0, 0
        self.outputs = None
        self.calls = []
        self._muted = False

    def __call__(self, x):
        self.graph = tf.compat.v1.get_default_graph()
        self.start = len(self.graph.get_operations())
        with contextlib.ExitStack() as stack:
            if in_xla():
                # XLA has no gradient for the call of a function.
                stack.enter_context(functions_in_line())
            layers = layers_of(self.model)
            stack.enter_context(loops_instead(layers))
            for layer in layers:
                rule = find_rule(layer) if layer.trainable_variables else None
                if rule is not None:
                    call = self._wrapped(layer, rule)
                    stack.enter_context(attribute(layer, "call", call))
            if takes_training(self.model):
                self.outputs = self.model(x, training=self.training)
            else:
                self.outputs = self.model(x)
        self.stop = len(self.graph.get_operations())
        return self.outputs

    def _wrapped(self, layer, rule):
        original = layer.call

        @functools.wraps(original)
        def call(*args, **kwargs):
            inside = tf.compat.v1.get_default_graph() is not self.graph
            if self._muted or inside:
                return original(*args, **kwargs)
            args, kwargs = _first_by_place(original, args, kwargs)
            if rule.reason_against(layer, *args, **kwargs) is not None:
                return original(*args, **kwargs)
            return self._follow(layer, rule, original, args, kwargs)

        call.rule = rule
        return call

    def _follow(self, layer, rule, original, args, kwargs):
        first = len(self.graph.get_operations())
        watched = []

        def watch(tensor):
            # A copy, so that other reads of the tensor are not counted.
            watched.append(tf.identity(tensor))
            return watched[-1]

        self._muted = True
        try:
            if rule.forward is None:
                outputs, inputs = _linear(layer, original, args, kwargs, watch)
            else:
                outputs, inputs = rule.forward(
                    layer, original, watch, *args, **kwargs
                )
        finally:
            self._muted = False
        ops = tuple(self.graph.get_operations()[first:])
        self.calls.append(RuleCall(layer, rule, ops, inputs, watched))
        if rule.forward is None:
            # Not among `ops`: the activation may be a layer with weights.
            activation = getattr(layer, "activation", None)
            return outputs if activation is None else activation(outputs)
        return outputs


def _linear(layer, original, args, kwargs, watch):
    """Call the layer itself, without its activation."""
    with contextlib.ExitStack() as stack:
        if getattr(layer, "activation", None) is not None:
            linear = keras.activations.linear
            stack.enter_context(attribute(layer, "activation", linear))
        outputs = watch(original(*args, **kwargs))
    return outputs, args[0] if args else next(iter(kwargs.values()))


def _first_by_place(call, args, kwargs):
    """Return the arguments, the first one positional, as rules expect it."""
    name = next(iter(inspect.signature(call).parameters), None)
    if args or name not in kwargs:
        return args, kwargs
    return (kwargs[name],), {k: v for k, v in kwargs.items() if k != name}
