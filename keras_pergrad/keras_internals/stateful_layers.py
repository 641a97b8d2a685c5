"""Layers that hand a state from each batch to the next."""

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.model_parts import layers_of


def states_of(model):
    """Return the variables of the states, which are none of the model's."""
    return [
        state
        for layer in _stateful(model)
        for state in tf.nest.flatten(getattr(layer, "states", None))
        if isinstance(state, keras.Variable)
    ]


def stateful_layers(model, user, how):
    """Say for each stateful layer that `user` takes other batches, and how."""
    return [
        f"layer {layer.name!r} ({type(layer).__name__}) is stateful: it hands "
        "a state from each batch to the next, with one row for each sample. "
        f"{user} {how}, for which that state is not defined. Use "
        "stateful=False, or gradient_mode='batch'."
        for layer in _stateful(model)
    ]


def _stateful(model):
    return [x for x in layers_of(model) if getattr(x, "stateful", False)]
