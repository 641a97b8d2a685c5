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
        self._models = {model.name}
        optimizer = getattr(model, "optimizer", None)
        self._optimizer = getattr(optimizer, "name", None)
        parts = {part for name in names for part in name.split("/")}
        known = self._names | self._models
        plain = sum(name in parts for name in known)
        marked = sum(f"{name}_1" in parts for name in known)
        self._marked = marked > plain

    def __call__(self, name):
        """`'dense'`, `'block/dense'`, `'optimizer'`, `'loss'` or `''`."""
        found = []
        for part in name.split("/"):
            layer = self._layer(part)
            if layer in self._names and layer not in found:
                found.append(layer)
        if found:
            return "/".join(found)
        return self._outside(name)

    def _layer(self, part):
        stripped = re.sub(r"_\d+$", "", part)
        choices = [stripped, part] if self._marked else [part, stripped]
        for choice in choices:
            if choice in self._names:
                return choice
        return None

    def _outside(self, name):
        parts = [re.sub(r"_\d+$", "", part) for part in name.split("/")]
        if self._optimizer and self._optimizer in name.split("/"):
            return "optimizer"
        if self._optimizer and re.sub(r"_\d+$", "", self._optimizer) in parts:
            return "optimizer"
        if "compile_loss" in parts:
            return "loss"
        return ""
