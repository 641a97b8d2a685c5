"""The search for the op that mixes the samples, and for its layer.

Private names in use: `Layer._flatten_layers`.
"""

import re

import tensorflow as tf

from keras_pergrad.samples import messages
from keras_pergrad.samples.use_search import SIZES


def culprit(trial, forward, mixes):
    """Return (layer or None, error) for what mixes samples.

    Args:
        trial: the `Trial` in which it was seen.
        forward: whether the forward pass mixes, or only the backward pass.
        mixes: `mixes(runs, place)`: whether samples are mixed in a tensor.
    """
    make = _All if forward else _Back
    observed, runs = trial.observe(make)
    model = trial.like.model
    mixed = [mixes(runs, k) for k in range(len(observed.tensors))]
    noisy = runs.noisy()
    op, op_is_loss = observed.first_mixed(mixed)
    if op is None:
        return None, ValueError(messages.mixes_somewhere(model))
    layer = layer_of(op, model)
    draws = any(noisy[k] for k, t in enumerate(observed.followed) if t.op is op)
    if op_is_loss and not draws:
        return None, ValueError(messages.loss_couples(model, op))
    return layer, ValueError(messages.mixes(model, layer, op, draws))


def layer_of(op, model):
    """Get the layer in whose call an op was created, by its name, or None."""
    layers = {layer.name: layer for layer in model._flatten_layers()}
    for part in reversed(op.name.split("/")[:-1]):
        for name in (part, re.sub(r"_\d+$", "", part)):
            if name in layers and layers[name] is not model:
                return layers[name]
    return None


class _All:
    """Every tensor that depends on the values of the batch."""

    def __init__(self, tape, loss):
        data = {id(t) for t in tf.nest.flatten(tape.batch) if t is not None}
        behind = set(tape.behind)
        self.followed, self._behind = [], set()
        for op in tape.graph.get_operations():
            if op.type in SIZES or not any(id(t) in data for t in op.inputs):
                continue
            data.update(map(id, op.outputs))
            if op in behind:
                self._behind.add(op.name)
                continue
            self.followed += [
                t
                for t in op.outputs
                if t.dtype.is_floating and t.shape.rank is not None
            ]
        self.tensors = self._shown(loss)

    def _shown(self, loss):
        return [tf.identity(t) for t in self.followed]

    def first_mixed(self, mixed):
        """Return the first op that mixes, and whether it is in a loss."""
        for t, is_mixed in zip(self.followed, mixed):
            if is_mixed:
                return t.op, False
        return None, False


class _Back(_All):
    """The loss's gradient with respect to every such tensor."""

    def _shown(self, loss):
        found = tf.gradients(loss, self.followed)
        pairs = [(t, g) for t, g in zip(self.followed, found) if g is not None]
        self.followed = [t for t, _ in pairs]
        return [tf.convert_to_tensor(g) for _, g in pairs]

    def first_mixed(self, mixed):
        for t, is_mixed in reversed(list(zip(self.followed, mixed))):
            if is_mixed:
                takers = [
                    op
                    for op in t.consumers()
                    if not op.name.startswith("gradients")
                ]
                for op in takers:
                    if op.name in self._behind:
                        return op, True
                return (takers or [t.op])[0], not takers
        return None, False
