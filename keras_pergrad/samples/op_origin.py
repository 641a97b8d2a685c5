"""The layer, or the loss, from which an op of a step comes.

Private names in use: `Layer._flatten_layers`.
"""

import re

from keras_pergrad.samples import messages

_GRADIENT = re.compile(r"(?:^|/)gradients(?:_\d+)?/(.+?)_grad/")


class OpOrigin:
    """Where ops of a step come from, by their names.

    Args:
        model: the model.
        behind: the ops of the loss.
    """

    def __init__(self, model, behind):
        self._model = model
        self._layers = {layer.name: layer for layer in model._flatten_layers()}
        self._behind = {op.name for op in behind}

    def layer(self, name):
        """Return the layer in whose call an op was made, or None."""
        for names in self.around(name):
            layer = self._layers[names[0]]
            if layer is not self._model:
                return layer
        return None

    def around(self, name):
        """Yield the scopes around an op that are of layers, innermost first.

        Yields:
            A list of the names of the layers that a scope may be of: Keras
            opens a scope twice, so that layer "a" is in "a_1", too.
        """
        for part in reversed(self.forward(name).split("/")[:-1]):
            names = dict.fromkeys([part, re.sub(r"_\d+$", "", part)])
            known = [one for one in names if one in self._layers]
            if known:
                yield known

    def forward(self, name):
        """Return the name of the op that a gradient op belongs to."""
        found = _GRADIENT.search(name)
        return name if found is None else found.group(1) + "/"

    def is_of_loss(self, name):
        """Whether an op is one of the loss, or of its gradient."""
        found = _GRADIENT.search(name)
        name = name if found is None else found.group(1)
        parts = name.split("/")
        return any(
            "/".join(parts[: k + 1]) in self._behind for k in range(len(parts))
        )

    def refusal(self, bad):
        """Return (layer or None, error) for a `Mixed`."""
        model, layer = self._model, self.layer(bad.op_name)
        if bad.untyped:
            return layer, ValueError(messages.untyped(model, layer, bad))
        if layer is None and self.is_of_loss(bad.op_name):
            return None, ValueError(messages.loss_couples(model, bad))
        return layer, ValueError(messages.mixes(model, layer, bad))
