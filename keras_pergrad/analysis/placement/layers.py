"""The layer that a node comes from, read from the node's name.

Keras opens a name scope for each layer it calls, and TensorFlow puts the
gradient's nodes under the same names. Scopes get a "_1" appended where the
name was used before, so "dense_1" may be layer dense or layer dense_1: the
names of one graph are read one way or the other, whichever explains more.
"""

import re

from keras_pergrad.keras_internals.model_parts import inner_layers


class Layers:
    """Maps node names to layers."""

    def __init__(self, model, names):
        layers = inner_layers(model)
        self._names = {layer.name for layer in layers}
        self._model = model.name
        name = getattr(getattr(model, "optimizer", None), "name", None)
        self._optimizer = {name, _stripped(name)} if name else set()
        parts = {part for name in names for part in name.split("/")}
        known = {*self._names, model.name}
        plain = sum(name in parts for name in known)
        marked = sum(f"{name}_1" in parts for name in known)
        self._marked = marked > plain

    def __call__(self, name):
        """Return a layer's path, "optimizer", "loss", the model's name, ""."""
        parts = name.split("/")
        layers = [self._layer(part) for part in parts]
        if any(layers):
            return "/".join(dict.fromkeys(filter(None, layers)))
        both = {*parts, *map(_stripped, parts)}
        if both & self._optimizer:
            return "optimizer"
        if "compile_loss" in both:
            return "loss"
        # Ops of the model's own, such as keras.ops in a functional model.
        return self._model if self._model in both else ""

    def _layer(self, part):
        choices = [part, _stripped(part)]
        known = [choice for choice in choices if choice in self._names]
        return known[-1 if self._marked else 0] if known else None


def _stripped(part):
    return re.sub(r"_\d+$", "", part)
