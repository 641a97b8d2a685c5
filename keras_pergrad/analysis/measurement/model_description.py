"""The description of a model: its architecture, settings and loss.

Runs of different Keras versions can be compared, so the architecture and the
loss hold nothing that depends on the version. The settings may: only those
that both versions know are compared.
"""

import functools
import hashlib
import inspect
import json
import warnings

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals import model_parts
from keras_pergrad.keras_internals.functional_models import model_inside
from keras_pergrad.keras_internals.model_parts import (
    call_arguments_of,
    calls_of,
    entries_of,
    inner_layers,
)

# Entries that only tell layers of equal function apart, say how they were
# initialised, or are described elsewhere.
_NOT_SETTINGS = {
    "name",
    "dtype",
    "trainable",
    "seed",
    "build_config",
    "registered_name",
    "module",
    "shared_object_id",
    "class_name",
    "batch_shape",
    "code",  # of a lambda: depends on the version of Python
}


def architecture(model):
    """Return a fingerprint of a built model's layer classes and variables."""
    classes = [type(layer).__name__ for layer in _layers(model)]
    shapes = [[v.dtype, list(v.shape)] for v in model.trainable_variables]
    text = json.dumps([classes, shapes])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def settings(model):
    """Return the layers' settings by name, such as "2 Dense activation"."""
    layers = list(_layers(model))
    numbers = {id(layer): number for number, layer in enumerate(layers)}
    by_name = {}
    for number, layer in enumerate(layers):
        name = f"{number} {type(layer).__name__}"
        # Operations are left out: which make masks depends on the version.
        inputs = [
            [
                _place(parent.operation, numbers)
                for parent in _behind_casts(node.parent_nodes)
                if isinstance(parent.operation, keras.Layer)
            ]
            for node in calls_of(layer)
        ]
        if inputs:
            by_name[f"{name} inputs"] = str(inputs)
        by_name |= _flat(name, _config(layer))
    return plain(by_name)


def _behind_casts(nodes):
    """Yield these nodes; for a cast (Keras 3.8 has them) what it casts."""
    for node in nodes:
        if type(node.operation).__name__ == "Cast":
            yield from _behind_casts(node.parent_nodes)
        else:
            yield node


def compiled_loss(model):
    """Return the losses of a model that has been trained or traced."""
    compiled = model_parts.compiled_loss(model)
    entries = [e for e in entries_of(compiled) if e.loss is not None]
    losses = [_loss(entry) for entry in entries]
    own = type(model).compute_loss
    if own is not keras.Model.compute_loss:
        losses.append({"loss": own.__qualname__})
    return plain(losses)


def plain(config):
    """Return a config with plain values only, as JSON holds them."""
    return json.loads(json.dumps(config, default=_plain_value))


def _plain_value(value):
    if isinstance(value, (np.generic, np.ndarray, tf.Tensor)):
        return np.asarray(value).tolist()
    if hasattr(value, "get_config") and not isinstance(value, type):
        return {"class": type(value).__name__, **value.get_config()}
    if isinstance(value, functools.partial):
        bound = [_plain_value(value.func), value.args, value.keywords]
        return {"partial": plain(bound)}
    return getattr(value, "__qualname__", type(value).__name__)


def _layers(model):
    """Yield the layers of a model and of the user's own layers, each once."""
    # The layers inside Keras's own layers depend on its version.
    graph = model_inside(model)
    for layer in inner_layers(model, recursive=False):
        if layer is graph or isinstance(layer, keras.layers.InputLayer):
            continue
        if not isinstance(layer, keras.Model):
            yield layer
        if isinstance(layer, keras.Model) or not _is_keras(type(layer)):
            yield from _layers(layer)


def _place(layer, numbers):
    """Return the number of a layer, or its kind if it has none."""
    if isinstance(layer, keras.Model):
        return "model"
    return numbers.get(id(layer), type(layer).__name__)


def _is_keras(cls):
    return cls.__module__.partition(".")[0] == "keras"


def _config(thing):
    try:
        with warnings.catch_warnings():
            # Keras warns that a lambda is unsafe to save.
            warnings.simplefilter("ignore", UserWarning)
            return thing.get_config()
    except Exception:  # a user's class may raise anything here
        return {}


def _flat(name, config):
    """Return settings by name, including those of layers inside layers."""
    if not isinstance(config, dict):
        return {name: config}
    flat = {}
    for key, value in config.items():
        if key not in _NOT_SETTINGS and "initializer" not in key:
            inner = key in ("config", "value")
            flat |= _flat(name if inner else f"{name} {key}", value)
    return flat


def _loss(entry):
    loss = entry.loss
    given = call_arguments_of(loss)
    if isinstance(given, dict):
        described, function = {"loss": _plain_value(loss.fn)}, loss.fn
    else:
        described = {"loss": type(loss).__qualname__}
        given, function = _config(loss), type(loss).__init__
    try:
        parameters = inspect.signature(function).parameters
        defaults = {name: p.default for name, p in parameters.items()}
    except (TypeError, ValueError):  # no Python function
        defaults = {}
    described |= {
        name: value
        for name, value in given.items()
        if name not in ("name", "dtype", "reduction")
        and plain(value) != plain(defaults.get(name))
    }
    reduction = getattr(loss, "reduction", "sum_over_batch_size")
    if reduction != "sum_over_batch_size":
        described["reduction"] = reduction
    if entry.path:
        described["output"] = list(entry.path)
    if entry.loss_weights not in (None, 1):
        described["weight"] = entry.loss_weights
    return described
