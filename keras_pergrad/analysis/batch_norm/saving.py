"""Saved models whose own code makes the layers that were exchanged.

Made anew by its config, such a model has batch normalisation again. So it is
saved with the layers that it has in their places, and these are exchanged
once more when it is loaded.
"""

from typing import Any

import keras

from keras_pergrad.analysis.batch_norm.layer_exchange import become, built_like
from keras_pergrad.keras_internals.functional_models import is_only_layers
from keras_pergrad.keras_internals.model_parts import layers_of
from keras_pergrad.keras_internals.sharing import (
    as_original,
    derived_class,
    saved_as,
)


def norms(layer):
    """Return the batch normalisation in a layer, in order."""
    return [
        inner
        for inner in layers_of(layer)
        if isinstance(inner, keras.layers.BatchNormalization)
    ]


def made_by_own_code(model):
    """Return the outermost layers that make batch normalisation, with it."""
    # Layers are in another order here than among all of the model.
    own = [(layer, norms(layer)) for layer in _with_own_code(model)]
    return [(layer, inner) for layer, inner in own if inner != [layer]]


def save_as_exchanged(made):
    """Let layers of `made_by_own_code` be saved with what was exchanged."""
    norm = keras.layers.BatchNormalization
    for layer, before in made:
        exchanged = {
            place: new
            for place, new in enumerate(before)
            if not isinstance(new, norm) or not new.trainable
        }
        if exchanged:
            _change_class(layer, exchanged)


def _with_own_code(layer):
    """Yield the outermost layers that make the layers inside themselves."""
    if not is_only_layers(layer):
        yield layer
        return
    for inner in layer.layers:
        yield from _with_own_code(inner)


def _change_class(layer, exchanged):
    presets = hasattr(layer, "save_to_preset")
    cls = derived_class(type(layer), _WithPresets if presets else _Front)
    saved_as(cls, WithoutBatchNorm)
    object.__setattr__(layer, "__class__", cls)
    object.__setattr__(layer, "_exchanged", _Exchanged(exchanged))


class _Exchanged:
    """Layers by their place among the `norms`, out of sight of Keras."""

    def __init__(self, layers):
        self.layers = layers


class _Front:
    """What comes before a layer's own methods."""

    _exchanged = _Exchanged({})
    _awaited = None

    def get_config(self):
        with as_original(self):
            config = _saved(self, "compile_config")
        layers = self._exchanged.layers.items()
        # They are built for the layers that they take the place of.
        new = {str(k): _saved(layer, "build_config") for k, layer in layers}
        return {"layer": config, "exchanged": new}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return WithoutBatchNorm.from_config(config, custom_objects)

    def build_from_config(self, config):
        following: Any = super()
        following.build_from_config(config)
        if self._awaited is not None:
            _exchange_again(self, self._awaited)


def _saved(layer, without):
    config: Any = keras.saving.serialize_keras_object(layer)
    config.pop(without, None)
    return config


class _WithPresets(_Front):
    """For models of keras-hub."""

    def save_to_preset(self, *args, **kwargs):
        raise ValueError(
            f"{self.name!r} has another normalisation in the place of "
            "BatchNormalization, and from a preset it would be made with "
            "BatchNormalization again. Use save() and keras.saving.load_model, "
            "or save_weights()."
        )


class WithoutBatchNorm(keras.layers.Layer):
    """The name that these layers and models are saved under."""

    @classmethod
    def from_config(cls, config, custom_objects=None):
        load = keras.saving.deserialize_keras_object
        layer = load(config["layer"], custom_objects=custom_objects)
        new = {
            int(place): load(saved, custom_objects=custom_objects)
            for place, saved in config["exchanged"].items()
        }
        if layer.built:
            _exchange_again(layer, new)
        else:
            _change_class(layer, {})
            object.__setattr__(layer, "_awaited", new)
        return layer


saved_as(WithoutBatchNorm, WithoutBatchNorm)


def _exchange_again(layer, new):
    """Exchange the layers of a layer that was made by its own code."""
    object.__setattr__(layer, "_awaited", None)
    made = norms(layer)
    if len(made) <= max(new) or not all(made[k].built for k in new):
        raise ValueError(
            f"Layer {layer.name!r} was saved with other normalisation than it "
            "makes, and the layers to be exchanged are not there when it is "
            "loaded. Create them in `__init__` or `build`; or make the model "
            "by code, call replace_batch_norm on it and load_weights()."
        )
    for place, other in new.items():
        old = made[place]
        if isinstance(other, keras.layers.BatchNormalization):
            old.trainable = False
        else:
            become(old, built_like(other, old))
    _change_class(layer, {place: made[place] for place in new})
