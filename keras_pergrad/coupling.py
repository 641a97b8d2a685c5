"""Layers that couple the samples of a batch, refused by name."""

import contextlib
import functools

import keras

from keras_pergrad.patching import attribute


@contextlib.contextmanager
def refused(model):
    """Makes calls of coupling layers in training mode raise while active.

    Raises:
        ValueError: (on such a call) names the layer and the way out.
    """
    with contextlib.ExitStack() as stack:
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.BatchNormalization):
                stack.enter_context(
                    attribute(layer, "call", _guarded(layer, layer.call))
                )
        yield


def _guarded(layer, original):
    @functools.wraps(original)
    def call(*args, training=None, **kwargs):
        if training and layer.trainable:
            raise ValueError(
                f"layer {layer.name!r} (BatchNormalization) makes every "
                "sample's output depend on the whole batch while training, so "
                "that per-sample gradients are not defined. Use "
                "GroupNormalization or LayerNormalization instead, or set "
                f"`trainable = False` on {layer.name!r} before compile() so "
                "that it uses its moving statistics, or compile with "
                "gradient_mode='batch'."
            )
        return original(*args, training=training, **kwargs)

    return call
