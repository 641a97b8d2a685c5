"""The layer, or the loss, from which an op of a step comes."""

import contextlib
import re

import tensorflow as tf

from keras_pergrad.keras_internals.layer_parts import in_its_scope
from keras_pergrad.keras_internals.model_parts import layers_of
from keras_pergrad.samples import messages

_GRADIENT = re.compile(r"(?:^|/)gradients(?:_\d+)?/(.+?)_grad/")


@contextlib.contextmanager
def noting_scopes(model, scopes):
    """Note in a dict in which name scope each layer is called inside."""
    graph = tf.compat.v1.get_default_graph()

    def note(layer):
        if tf.compat.v1.get_default_graph() is graph:
            scopes[graph.get_name_scope()] = layer

    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            stack.enter_context(in_its_scope(layer, note))
        yield


class OpOrigin:
    """Where ops of a step come from, by their names."""

    def __init__(self, model, loss_ops, scopes):
        self._model, self._scopes = model, scopes
        self._layers = {layer.name: layer for layer in layers_of(model)}
        self._loss_ops = {op.name for op in loss_ops}

    def layer(self, name):
        """Return the layer in whose call an op was made, or None."""
        for names, layer in self._around(name):
            layer = self._layers[names[0]] if layer is None else layer
            if layer is not self._model:
                return layer
        return None

    def around(self, name):
        """Yield for each scope around an op the layers that it may be of.

        The innermost comes first. Where the scope was not seen, as inside of
        loops, layer "a" may be in "a_1": Keras opens a scope twice.
        """
        for names, _ in self._around(name):
            yield names

    def _around(self, name):
        """Yield (names, layer or None), innermost first."""
        parts = self.forward(name).split("/")[:-1]
        for k in range(len(parts), 0, -1):
            layer = self._scopes.get("/".join(parts[:k]))
            if layer is not None:
                yield [layer.name], layer
                continue
            part = parts[k - 1]
            names = dict.fromkeys([part, re.sub(r"_\d+$", "", part)])
            known = [one for one in names if one in self._layers]
            if known:
                yield known, None

    def forward(self, name):
        """Return the name of the op that a gradient op belongs to."""
        match = _GRADIENT.search(name)
        return name if match is None else match.group(1) + "/"

    def is_of_loss(self, name):
        """Whether an op is one of the loss, or of its gradient."""
        match = _GRADIENT.search(name)
        name = name if match is None else match.group(1)
        parts = name.split("/")
        return any(
            "/".join(parts[: k + 1]) in self._loss_ops
            for k in range(len(parts))
        )

    def refusal(self, bad):
        """Return (layer or None, error) for a `Mixed`."""
        model, layer = self._model, self.layer(bad.op_name)
        if bad.untyped:
            return layer, ValueError(messages.untyped(model, layer, bad))
        if layer is None and self.is_of_loss(bad.op_name):
            return None, ValueError(messages.loss_couples(model, bad))
        return layer, ValueError(messages.mixes(model, layer, bad))
