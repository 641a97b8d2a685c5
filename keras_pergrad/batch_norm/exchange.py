"""The exchange of a normalisation layer for another kind, in its place."""

import contextlib
import functools
import math

import keras

from keras_pergrad.keras_internals.models.layers import (
    call_nodes,
    is_only_layers,
    turn_into,
)
from keras_pergrad.keras_internals.models.parts import layers_of

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
                undo.callback(_restore, layer, _state(layer))
                new = _replacement(layer, by, groups)
                for node in call_nodes(layer):
                    # Only BatchNormalization takes a mask.
                    node.arguments.kwargs.pop("mask", None)
                turn_into(layer, new)
        yield
        undo.pop_all()  # no error: the exchange stays


def _state(layer):
    call_arguments = [dict(node.arguments.kwargs) for node in call_nodes(layer)]
    return type(layer), vars(layer), call_arguments


def _restore(layer, state):
    cls, attributes, call_arguments = state
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


def trained_norms(model):
    """Return the layers that use the batch's statistics in training."""
    kind = keras.layers.BatchNormalization
    layers = layers_of(model)
    return [x for x in layers if isinstance(x, kind) and x.trainable]


def refuse_saving(model, exchanged_layers):
    """Let layers that make the exchanged ones themselves give no config."""
    # What Keras makes of their config has batch normalisation again.
    exchanged_ids = set(map(id, exchanged_layers))
    for layer in _with_own_code(model):
        inner_ids = {id(inner) for inner in layers_of(layer)} - {id(layer)}
        if exchanged_ids & inner_ids:
            get_config = functools.partial(_refuse_config, layer.name)
            object.__setattr__(layer, "get_config", get_config)


def _with_own_code(layer):
    """Yield the outermost layers that make the layers inside themselves."""
    if not is_only_layers(layer):
        yield layer
        return
    for inner in layer.layers:
        yield from _with_own_code(inner)


def _refuse_config(name):
    raise ValueError(
        f"{name!r} makes its layers itself, and would make BatchNormalization "
        "again where it is loaded or copied: expected save_weights() and no "
        "save(). To load the weights, make the model by its code, call "
        "replace_batch_norm(model, in_place=True) and load_weights()."
    )
