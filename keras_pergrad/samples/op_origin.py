"""The layer, or the loss, from which an op of a step comes."""

import re

from keras_pergrad.keras_internals.model_parts import layers_of
from keras_pergrad.samples import messages

_GRADIENT = re.compile(r"(?:^|/)gradients(?:_\d+)?/(.+)_grad/")


class OpOrigin:
    """Where ops of a step come from.

    `scopes` are the name scopes in which layers were called, `backward` the
    names of the ops that the backward pass has added, `calls` those of loops
    and other calls of functions, in which no scope was seen.
    """

    def __init__(self, model, loss_ops, scopes, backward, calls):
        self._model, self._scopes = model, scopes
        self._backward, self._calls = backward, calls
        self._layers = {layer.name: layer for layer in layers_of(model)}
        self._loss_ops = {op.name for op in loss_ops}

    def layer(self, name):
        """Return the layer in whose call an op was made, or None."""
        for names, layer in self._around(name):
            layer = self._layers[names[0]] if layer is None else layer
            if layer is not self._model:
                return layer
        return None

    def caller(self, name):
        """Return the innermost layer that was seen to make an op, or None.

        No scope that only has the name of a layer counts.
        """
        parts = self.forward(name).split("/")[:-1]
        for k in range(len(parts), 0, -1):
            layer = self._scopes.get("/".join(parts[:k]))
            if layer is not None:
                return layer
        return None

    def around(self, name):
        """Yield for each call around an op the layers that it may be of.

        The innermost comes first. Inside of a loop, where no call was seen,
        the scopes tell by their names which of the layers within the layer
        that has the loop it is; layer "a" may be in "a_1": Keras opens a scope
        twice.
        """
        name = self.forward(name)
        if self.caller(name) is not None:
            for names, _ in self._around(name):
                yield names

    def _named(self, name):
        """Return the names by which scopes around an op tell a layer."""
        caller = self.caller(name)
        if caller is None:
            return set(self._layers)
        if self._has_prefix(name, self._calls):
            return {one.name for one in layers_of(caller)}
        return set()

    def _has_prefix(self, name, names):
        parts = name.split("/")
        return any("/".join(parts[: k + 1]) in names for k in range(len(parts)))

    def forward(self, name):
        """Return the name of the op to which one of the backward pass belongs.

        That of another op stays, whatever its scopes are called.
        """
        if self._has_prefix(name, self._backward):
            while (match := _GRADIENT.search(name)) is not None:
                name = match.group(1) + "/"
        return name

    def _around(self, name):
        """Yield (names, layer or None), innermost first."""
        name = self.forward(name)
        parts, known = name.split("/")[:-1], self._named(name)
        for k in range(len(parts), 0, -1):
            layer = self._scopes.get("/".join(parts[:k]))
            if layer is not None:
                yield [layer.name], layer
                continue
            part = parts[k - 1]
            names = dict.fromkeys([part, re.sub(r"_\d+$", "", part)])
            names = [one for one in names if one in known]
            if names:
                yield names, None

    def is_of_loss(self, name):
        """Whether an op is one of the loss, or of its gradient."""
        return self._has_prefix(self.forward(name), self._loss_ops)

    def refusal(self, bad):
        """Return (layer or None, error) for a `Mixed`."""
        model, layer = self._model, self.layer(bad.op_name)
        if bad.untyped:
            return layer, ValueError(messages.untyped(model, layer, bad))
        if layer is None and self.is_of_loss(bad.op_name):
            return None, ValueError(messages.loss_couples(model, bad))
        return layer, ValueError(messages.mixes(model, layer, bad))
