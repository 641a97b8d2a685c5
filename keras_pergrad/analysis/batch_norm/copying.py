"""Copies of models, with weights of their own."""

import inspect
import tempfile

import keras

from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.functional_models import (
    is_only_layers,
    made_by,
)
from keras_pergrad.keras_internals.layer_parts import rename_like, set_path
from keras_pergrad.keras_internals.model_parts import layers_of


def copy_model(model):
    """Return a model with its own weights, of the same values, not compiled."""
    # What is shared in the model is shared in the copy; Keras's own saving
    # loses layers that a model shares with a model inside of it.
    copier = _Copier()
    own = {
        keras.saving.get_registered_name(type(layer)): _Maker(type(layer))
        for layer in layers_of(model)
        if not type(layer).__module__.startswith("keras.")
    }
    try:
        with keras.saving.custom_object_scope(own):
            copy = copier(model)
            if not copy.built:
                copy.build_from_config(model.get_build_config())
        shapes = [[tuple(w.shape) for w in m.weights] for m in (model, copy)]
        if shapes[0] != shapes[1]:
            raise ValueError("the copy has other weights")
    except Exception as error:
        raise ValueError(_NOT_COPIED.format(model.name, error)) from error
    for old, new in copier.pairs():
        _restore(old, new)
    return copy


_NOT_COPIED = (
    "model {!r} cannot be copied by its config: {}\n"
    "Give layers and models of your own a `get_config` with the arguments of "
    "`__init__`, and create their layers in `__init__` or `build`. Or let the "
    "layers be exchanged in this model: "
    "replace_batch_norm(model, in_place=True)."
)


class _Copier:
    """Copies layers, each of them once: what is shared stays shared."""

    def __init__(self):
        self._twins = {}

    def __call__(self, layer):
        """Return the layer's copy; operations without state are shared."""
        if not isinstance(layer, keras.Layer):
            return layer
        if id(layer) not in self._twins:
            self._twins[id(layer)] = layer, self._make(layer)
        return self._twins[id(layer)][1]

    def pairs(self):
        """Yield all layers and their copies, including those inside others."""
        for layer, twin in self._twins.values():
            if is_only_layers(layer):
                yield layer, twin
            else:
                # Made by the same code, so in the same order.
                yield from zip(layers_of(layer), layers_of(twin))

    def _make(self, layer):
        if is_only_layers(layer):
            # Otherwise the copy would be compiled as well.
            with attribute(layer, "compiled", False):
                return keras.models.clone_model(
                    layer, _input_tensors(layer), clone_function=self
                )
        config = layer.get_config()
        if isinstance(layer, keras.layers.Lambda):
            return type(layer).from_config(config, safe_mode=False)
        return _Maker(type(layer)).from_config(config)


def _input_tensors(layer):
    """Return new inputs under the old names; None: `clone_model` has them."""
    if isinstance(layer, keras.Sequential):
        return None
    return keras.tree.map_structure(
        lambda t: (
            keras.layers.InputLayer.from_config(made_by(t).get_config()).output
        ),
        layer.input,
    )


class _Maker:
    """Stands in for a class whose `__init__` lacks arguments Keras passes."""

    def __init__(self, cls):
        self._cls = cls

    def from_config(self, config):
        """Return a new object; `_restore` gives it its name."""
        accepted = inspect.signature(self._cls.__init__).parameters.values()
        if not any(p.kind is p.VAR_KEYWORD for p in accepted):
            names = {p.name for p in accepted}
            for name in {"name", "trainable", "dtype"} - names:
                config.pop(name, None)
        return self._cls.from_config(config)


def _restore(old, new):
    """Copy a layer's values, and all that no config holds, to its copy."""
    rename_like(new, old)
    if is_only_layers(old):
        return
    # The state of random layers is no weight; metrics are no part of a copy.
    kind = "weights" if isinstance(old, keras.Model) else "variables"
    for source, target in zip(getattr(old, kind), getattr(new, kind)):
        set_path(target, source.path)
        target.trainable = source.trainable
        target.assign(source)
    if hasattr(old, "save_assets"):
        with tempfile.TemporaryDirectory() as folder:
            old.save_assets(folder)
            new.load_assets(folder)
    if isinstance(old, keras.layers.Normalization):
        new.finalize_state()
