"""One call of a model, with what every layer took and gave."""

import contextlib
import dataclasses
import functools

import keras
import tensorflow as tf

from keras_pergrad import coupling, draws
from keras_pergrad.calls import takes_whole
from keras_pergrad.patching import attribute
from keras_pergrad.trial.samples import tensors


@dataclasses.dataclass
class Call:
    """What one layer took and gave; layers by their places."""

    place: int
    parent: int | None
    inputs: list
    outputs: list


class Run:
    """One call of the model, with what every layer took and gave."""

    def __init__(self, model, layers, x, training, drawn=None):
        self.calls, self.losses, self.draws = [], [], []
        self.coupled = False
        self.shuffled = []
        self._stack = []
        self._muted = 0
        with contextlib.ExitStack() as stack:
            for place, layer in enumerate(layers):
                call = self._watched(place, layer)
                stack.enter_context(attribute(layer, "call", call))
                noting = self._noting(place)
                stack.enter_context(attribute(layer, "add_loss", noting))
            stack.enter_context(coupling.refused_layers(model, self._refuse))
            stack.enter_context(keras.StatelessScope(collect_losses=True))
            stack.enter_context(
                draws.recording(self._on_draw)
                if drawn is None
                else draws.replaying(drawn)
            )
            if model._call_has_training_arg:
                model(x, training=training)
            else:
                model(x)

    def rows(self, size, taken):
        """What was drawn, for these samples."""
        found = [draw.rows() for draw in self.draws]
        return [
            tf.gather(r, taken) if r.shape.rank and r.shape[0] == size else r
            for r in found
        ]

    def _on_draw(self, draw):
        self.draws.append(draw)
        if draw.name == "shuffle" and self._stack:
            self.shuffled.append((self._stack[-1], draw.result))

    def _refuse(self, layer, error):
        # Known by its class, and refused with a better text.
        self.coupled = True

    def _noting(self, place):
        def add_loss(loss):
            # Not handed on: whoever records the step around would take it.
            self.losses += [(place, t) for t in tf.nest.flatten(loss)]

        return add_loss

    def _watched(self, place, layer):
        original = layer.call
        if isinstance(original, tf.types.experimental.PolymorphicFunction):
            original = original.python_function
        # What is inside runs on steps, not on samples.
        whole = takes_whole(layer)

        @functools.wraps(original)
        def call(*args, **kwargs):
            if self._muted or not tf.executing_eagerly():
                return original(*args, **kwargs)
            parent = self._stack[-1] if self._stack else None
            self._stack.append(place)
            self._muted += whole
            try:
                outputs = original(*args, **kwargs)
            finally:
                self._muted -= whole
                self._stack.pop()
            self.calls.append(
                Call(place, parent, tensors((args, kwargs)), tensors(outputs))
            )
            return outputs

        return call
