"""The rules of layers, by their classes."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import keras

from keras_pergrad.common.arguments import function as require_function
from keras_pergrad.common.arguments import named_arguments
from keras_pergrad.proof import layer_methods


@dataclasses.dataclass(frozen=True)
class Rule:
    """The way to find the per-sample gradients of one layer class.

    Attributes:
        layer_class: the class it was registered for.
        gradients: `gradients(layer, inputs, dz)`, a generator of
            (variable, SampleGradients) pairs.
        forward: `forward(layer, call, watch, *args, **kwargs)`, returning
            (outputs, inputs): an equal forward pass that calls `watch` on
            each tensor whose gradient `gradients` needs. None: the layer's
            own `call` without its activation.
        unsupported: `unsupported(layer, *args, **kwargs)`, the reason why
            this call needs the generic fallback, or None.
        by_position: whether `gradients` treats each entry of the second axis
            by itself, so that more of them may be given.
    """

    layer_class: type
    gradients: Callable
    forward: Callable | None = None
    unsupported: Callable | None = None
    by_position: bool = False

    def reason_against(self, layer, *args, **kwargs):
        """Return why the generic fallback must serve this call, or None."""
        name = layer_methods.own_method(layer, self.layer_class)
        if name is not None:
            return f"{type(layer).__name__} has a `{name}` of its own"
        if self.unsupported is None:
            return None
        return self.unsupported(layer, *args, **kwargs)


_RULES: dict[type, Rule] = {}


_Function = TypeVar("_Function", bound=Callable[..., Any])


@named_arguments
def register_rule(
    layer_class: type[keras.layers.Layer],
    *,
    forward: Callable[..., Any] | None = None,
    unsupported: Callable[..., Any] | None = None,
    replace: bool = False,
    by_position: bool = False,
) -> Callable[[_Function], _Function]:
    """Register a function as the per-sample gradient rule of a layer class.

    The function takes `(layer, inputs, dz)`: the layer, its first input for
    the whole batch, and the gradient of the batch's loss with respect to the
    layer's output before its `activation`, both with the sample as the first
    axis. It yields (variable, `SampleGradients`) pairs. The rule is used for
    the class, and for subclasses that inherit all methods and properties by
    which it computes: one that redefines `kernel`, say, is left to the
    fallback.

    Args:
        layer_class: a subclass of `keras.layers.Layer`.
        forward: optional `forward(layer, call, watch, *args, **kwargs)` that
            computes the same outputs, calls `watch(tensor)` on each tensor
            whose gradient the rule needs, outside of any `tf.while_loop`, and
            returns `(outputs, inputs)`.
            The rule's `dz` is then that gradient (a list of them where
            `watch` was called several times).
        unsupported: optional `unsupported(layer, *args, **kwargs)` that
            returns why the rule does not cover a call (the generic fallback
            then supports it), or None.
        replace: whether an existing rule of the class may be replaced.
        by_position: whether the rule treats each entry of the second axis
            (a time step) by itself. It may then be called on samples that are
            merged with positions, and gets these on that axis.

    Raises:
        TypeError: `layer_class` is no layer class.
        ValueError: the class has a rule already and `replace` is false.

    Example:

    >>> import keras
    >>> import keras_pergrad as kpg
    >>> class Scale(keras.layers.Layer):
    ...     def build(self, shape):
    ...         self.scale = self.add_weight(shape=(shape[-1],))
    ...     def call(self, inputs):
    ...         return inputs * self.scale
    >>> @kpg.extending.register_rule(Scale)
    ... def scale(layer, inputs, dz):
    ...     yield layer.scale, kpg.extending.Product(inputs, dz)
    """
    if not (
        isinstance(layer_class, type)
        and issubclass(layer_class, keras.layers.Layer)
    ):
        raise TypeError(
            "`layer_class` must be a subclass of keras.layers.Layer. "
            f"Received: layer_class={layer_class!r}"
        )

    for name, value in (("forward", forward), ("unsupported", unsupported)):
        if value is not None:
            require_function(name, value, " or None")

    def register(function):
        require_function("rule", function, "(layer, inputs, dz)")
        existing = _RULES.get(layer_class)
        if existing is not None and not replace:
            raise ValueError(
                f"{layer_class.__name__} has a rule already "
                f"({existing.gradients.__module__}."
                f"{existing.gradients.__name__}). "
                "Pass replace=True to replace it."
            )
        _RULES[layer_class] = Rule(
            layer_class,
            function,
            forward,
            unsupported=unsupported,
            by_position=by_position,
        )
        return function

    return register


def find_rule(layer):
    """Return the rule that serves `layer`, or None.

    The rule of a base class does not serve a subclass with its own `call`,
    which may compute anything. It does not serve a layer with a `call` in the
    instance either, unless the tape has set this `call`, which names the rule.
    """
    if "call" in vars(layer):
        return getattr(layer.call, "rule", None)
    layer_type = type(layer)
    for base in layer_type.__mro__:
        rule = _RULES.get(base)
        if rule is not None:
            return (
                rule
                if layer_type is base or layer_type.call is base.call
                else None
            )
    return None
