"""The exchange of a normalisation layer for another kind, in its place.

A model whose own code makes the layers would have batch normalisation again if
it were made anew by its config. So it is saved with the layers that it has in
their places, and these are exchanged once more when it is loaded.
"""

import contextlib
import math
from typing import Any

import keras

from keras_pergrad.keras_internals.models.parts import (
    call_nodes,
    is_only_layers,
    layers_of,
    turn_into,
)
from keras_pergrad.keras_internals.models.sharing import (
    as_original,
    derived_class,
    saved_as,
)

#: As published with group normalisation (Wu and He, arXiv 1803.08494).
_MAX_GROUPS = 32
_MIN_VALUES = 16


@contextlib.contextmanager
def exchanged(layers, by, groups):
    """Exchange built layers; if an error is raised inside, take them back."""
    with contextlib.ExitStack() as undo:
        for layer in layers:
            if by == "frozen":
                undo.callback(setattr, layer, "trainable", layer.trainable)
                layer.trainable = False
            else:
                undo.callback(_restore, layer, *_state(layer))
                _turn_in_place(layer, _replacement(layer, by, groups))
        yield
        undo.pop_all()  # no error: the exchange stays


def _state(layer):
    call_arguments = [dict(node.arguments.kwargs) for node in call_nodes(layer)]
    return type(layer), vars(layer), call_arguments


def _restore(layer, cls, attributes, call_arguments):
    # Not by `setattr`: Keras would track the attributes anew.
    object.__setattr__(layer, "__class__", cls)
    object.__setattr__(layer, "__dict__", attributes)
    for node, kwargs in zip(call_nodes(layer), call_arguments):
        node.arguments.kwargs.update(kwargs)


def check_exchange(layer, by):
    """Refuse a layer that the other kind cannot replace."""
    if by == "frozen":
        return
    where = f"layer {layer.name!r} ({type(layer).__name__})"
    if type(layer).call is not keras.layers.BatchNormalization.call:
        raise ValueError(
            f"{where} overrides BatchNormalization.call, so that nothing is "
            "known to be equal to it. Exchange it by hand, or use by='frozen'."
        )
    if not layer.built:
        raise ValueError(
            f"{where} has never been called: its channels are not known. "
            "Remove it from the model, or use by='frozen'."
        )
    axis, shape = _axis(layer), _shape(layer)
    if axis == 0:
        raise ValueError(
            f"{where} has its channels on axis 0, that of the samples: "
            f"axis={layer.axis}, input shape {shape}. Expected another axis."
        )
    channels, positions = shape[axis], _positions(layer)
    if channels * (1 if by == "layer" else positions or 2) == 1:
        way = "Remove the layer, or use by='frozen'."
        if by == "layer" and positions != 1:
            way = "Use by='group', which takes a channel's positions together."
        raise ValueError(
            f"{where} would normalise single values, which makes each of them "
            f"0: input shape {shape}, axis={layer.axis}, by={by!r}. {way}"
        )


def _shape(layer):
    return layer.get_build_config()["input_shape"]


def _axis(layer):
    """Return the axis of the channels, not negative."""
    return layer.axis % len(_shape(layer))


def _positions(layer):
    """Return the fewest values of a channel in a sample, None if unknown."""
    calls = (node.input_tensors[0].shape for node in call_nodes(layer))
    position_sizes = [
        [s for i, s in enumerate(shape) if i not in (0, _axis(layer))]
        for shape in (_shape(layer), *calls)
    ]
    is_known = all(None not in sizes for sizes in position_sizes)
    return min(map(math.prod, position_sizes)) if is_known else None


def groups_for(channels, positions, max_groups):
    """Get the largest fitting number of groups (see `replace_batch_norm`)."""
    least_channels, least_values = 1, 2
    if max_groups is None:
        max_groups = _MAX_GROUPS
        least_channels, least_values = 2, _MIN_VALUES
    min_channels = max(least_channels, least_values / (positions or 1))
    candidates = range(1, min(channels, max_groups) + 1)
    divisors = [
        n
        for n in candidates
        if not channels % n and channels / n >= min_channels
    ]
    return max(divisors, default=1)


def _replacement(layer, by, groups):
    """Return a built layer with settings and weights of the old one."""
    shape, axis = _shape(layer), _axis(layer)
    config = layer.get_config()
    kept_keys = ("name", "trainable", "dtype", "epsilon", "center", "scale")
    setting_kinds = ("initializer", "regularizer", "constraint")
    kept_keys += tuple(
        f"{w}_{p}" for w in ("gamma", "beta") for p in setting_kinds
    )
    settings = {key: config[key] for key in kept_keys}
    # Both new kinds work best with -1; BatchNormalization takes any axis.
    settings["axis"] = -1 if axis == len(shape) - 1 else axis
    if by == "layer":
        new = keras.layers.LayerNormalization.from_config(settings)
    else:
        settings["groups"] = groups_for(shape[axis], _positions(layer), groups)
        new = keras.layers.GroupNormalization.from_config(settings)
    new = _built_like(new, layer)
    for old, weight in ((layer.gamma, new.gamma), (layer.beta, new.beta)):
        if old is not None:
            weight.assign(old)
            weight.trainable = old.trainable
    return new


def _built_like(new, layer):
    """Build a layer for the inputs, and under the path, of another one."""
    with contextlib.ExitStack() as scopes:
        for scope_name in layer.path.split("/")[:-1]:
            scopes.enter_context(keras.name_scope(scope_name))
        new.build(_shape(layer))
    return new


def _turn_in_place(layer, new):
    """Turn a normalisation layer into another one, in its place."""
    for node in call_nodes(layer):
        # Only BatchNormalization takes a mask.
        node.arguments.kwargs.pop("mask", None)
    turn_into(layer, new)


def norms(layer):
    """Return the batch normalisation in a layer, in order."""
    return [
        inner
        for inner in layers_of(layer)
        if isinstance(inner, keras.layers.BatchNormalization)
    ]


def made_by_own_code(model):
    """Return (layer, batch normalisation in it) for layers that make some.

    Of nested layers only the outermost counts.
    """
    # Layers are in another order here than among all of the model.
    norms_by_layer = [(layer, norms(layer)) for layer in _with_own_code(model)]
    return [
        (layer, inner) for layer, inner in norms_by_layer if inner != [layer]
    ]


def save_as_exchanged(own_code_layers):
    """Make layers of `made_by_own_code` save the layers exchanged in them."""
    norm = keras.layers.BatchNormalization
    for layer, norms_before in own_code_layers:
        exchanged = {
            place: new
            for place, new in enumerate(norms_before)
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
    cls = derived_class(type(layer), _WithPresets if presets else _SavingFront)
    saved_as(cls, WithoutBatchNorm)
    object.__setattr__(layer, "__class__", cls)
    object.__setattr__(layer, "_exchanged", _Exchanged(exchanged))


class _Exchanged:
    """Layers by their place among the `norms`, out of sight of Keras."""

    def __init__(self, layers):
        self.layers = layers


class _SavingFront:
    """Methods that stand before a layer's own: it is saved as exchanged."""

    _exchanged = _Exchanged({})
    _awaited = None

    def get_config(self):
        with as_original(self):
            config = _serialized(self, "compile_config")
        layers = self._exchanged.layers.items()
        # They are built for the layers that they take the place of.
        new = {
            str(k): _serialized(layer, "build_config") for k, layer in layers
        }
        return {"layer": config, "exchanged": new}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return WithoutBatchNorm.from_config(config, custom_objects)

    def build_from_config(self, config):
        following: Any = super()
        following.build_from_config(config)
        if self._awaited is not None:
            _exchange_again(self, self._awaited)


def _serialized(layer, without):
    config: Any = keras.saving.serialize_keras_object(layer)
    config.pop(without, None)
    return config


class _WithPresets(_SavingFront):
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
    layer_norms = norms(layer)
    if len(layer_norms) <= max(new) or not all(
        layer_norms[k].built for k in new
    ):
        raise ValueError(
            f"Layer {layer.name!r} was saved with other normalisation than it "
            "makes, and the layers to be exchanged are not there when it is "
            "loaded. Create them in `__init__` or `build`; or make the model "
            "by code, call replace_batch_norm on it and load_weights()."
        )
    for place, other in new.items():
        old = layer_norms[place]
        if isinstance(other, keras.layers.BatchNormalization):
            old.trainable = False
        else:
            _turn_in_place(old, _built_like(other, old))
    _change_class(layer, {place: layer_norms[place] for place in new})
