"""The description of a run: its model, probe, software and machine.

Runs of different Keras versions can be compared, so the architecture and the
loss hold nothing that depends on the version. The settings may: only those
that both versions know are compared.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
import json
import platform
import uuid
import warnings

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common import machine
from keras_pergrad.keras_internals.models import parts
from keras_pergrad.keras_internals.models.layers import (
    call_arguments_of,
    call_nodes,
    inner_model,
)
from keras_pergrad.keras_internals.models.parts import entries_of, inner_layers
from keras_pergrad.keras_internals.state.saved import (
    global_seed,
    is_deterministic,
)
from keras_pergrad.runs.run_info import RunInfo

# Entries that only distinguish layers of equal function, say how they were
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
    """Return a fingerprint of a built model's layer classes and variables.

    Equal where gradients can be compared, whatever the version of Keras; the
    `settings` may differ.
    """
    classes = [type(layer).__name__ for layer in _layers(model)]
    shapes = [[v.dtype, list(v.shape)] for v in model.trainable_variables]
    text = json.dumps([classes, shapes])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def settings(model):
    """Return the layers' settings by name, such as "2 Dense activation"."""
    layers = list(_layers(model))
    layer_numbers = {id(layer): number for number, layer in enumerate(layers)}
    by_name = {}
    for number, layer in enumerate(layers):
        name = f"{number} {type(layer).__name__}"
        # Operations are left out: which make masks depends on the version.
        inputs = [
            [
                _layer_reference(parent.operation, layer_numbers)
                for parent in _behind_casts(node.parent_nodes)
                if isinstance(parent.operation, keras.Layer)
            ]
            for node in call_nodes(layer)
        ]
        if inputs:
            by_name[f"{name} inputs"] = str(inputs)
        by_name |= _flatten_settings(name, _config_of(layer))
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
    compiled = parts.compiled_loss(model)
    entries = [e for e in entries_of(compiled) if e.loss is not None]
    losses = [_describe_loss(entry) for entry in entries]
    method = type(model).compute_loss
    if method is not keras.Model.compute_loss:
        losses.append({"loss": method.__qualname__})
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
        pieces = [_plain_value(value.func), value.args, value.keywords]
        return {"partial": plain(pieces)}
    return getattr(value, "__qualname__", type(value).__name__)


def _layers(model):
    """Yield the layers of a model and of the user's own layers, each once."""
    # The layers inside Keras's own layers depend on its version.
    graph = inner_model(model)
    for layer in inner_layers(model, recursive=False):
        if layer is graph or isinstance(layer, keras.layers.InputLayer):
            continue
        if not isinstance(layer, keras.Model):
            yield layer
        if isinstance(layer, keras.Model) or not _is_keras(type(layer)):
            yield from _layers(layer)


def _layer_reference(layer, layer_numbers):
    """Return the number of a layer, or its kind if it has none."""
    if isinstance(layer, keras.Model):
        return "model"
    return layer_numbers.get(id(layer), type(layer).__name__)


def _is_keras(cls):
    return cls.__module__.partition(".")[0] == "keras"


def _config_of(thing):
    try:
        with warnings.catch_warnings():
            # Keras warns that a lambda is unsafe to save.
            warnings.simplefilter("ignore", UserWarning)
            return thing.get_config()
    except Exception:  # a user's class may raise anything here
        return {}


def _flatten_settings(name, config):
    """Return settings by name, including those of layers inside layers."""
    if not isinstance(config, dict):
        return {name: config}
    flat = {}
    for key, value in config.items():
        if key not in _NOT_SETTINGS and "initializer" not in key:
            is_nested = key in ("config", "value")
            flat |= _flatten_settings(
                name if is_nested else f"{name} {key}", value
            )
    return flat


def _describe_loss(entry):
    loss = entry.loss
    arguments = call_arguments_of(loss)
    if isinstance(arguments, dict):
        description, function = {"loss": _plain_value(loss.fn)}, loss.fn
    else:
        description = {"loss": type(loss).__qualname__}
        arguments, function = _config_of(loss), type(loss).__init__
    try:
        parameters = inspect.signature(function).parameters
        defaults = {name: p.default for name, p in parameters.items()}
    except (TypeError, ValueError):  # no Python function
        defaults = {}
    description |= {
        name: value
        for name, value in arguments.items()
        if name not in ("name", "dtype", "reduction")
        and plain(value) != plain(defaults.get(name))
    }
    reduction = getattr(loss, "reduction", "sum_over_batch_size")
    if reduction != "sum_over_batch_size":
        description["reduction"] = reduction
    if entry.path:
        description["output"] = list(entry.path)
    if entry.loss_weights not in (None, 1):
        description["weight"] = entry.loss_weights
    return description


def describe(model, batch, *, fit, tags, run, sketch_size):
    """Return the `RunInfo` of training `model`, measured on `batch`."""
    accelerators = machine.accelerators()
    device_type = "CPU"
    if accelerators:
        device_type = (
            "METAL" if accelerators[0].is_metal else accelerators[0].type
        )
    return RunInfo(
        run=run,
        architecture=architecture(model),
        settings=settings(model),
        loss=compiled_loss(model),
        probe=fingerprint(batch),
        probe_samples=int(tf.nest.flatten(batch[0])[0].shape[0]),
        variables=[
            {"path": v.path, "shape": [int(size) for size in v.shape]}
            for v in model.trainable_variables
        ],
        sketch_size=sketch_size,
        versions=_versions(),
        platform={
            "system": platform.system(),
            "release": platform.release(),
            "processor": platform.machine(),
        },
        machine=_machine(),
        devices=["CPU", *(f"{d.name} ({d.platform})" for d in accelerators)],
        device=device_type,
        seed=global_seed(),
        optimizer=_config_or_none(model.optimizer),
        gradient_mode=_config_or_none(getattr(model, "gradient_mode", None)),
        precision=_precision(model),
        jit_compile=bool(model.jit_compile),
        run_eagerly=bool(model.run_eagerly),
        op_determinism=is_deterministic(),
        **fit,
        tags=dict(tags or {}),
    )


def fingerprint(batch):
    """Return a fingerprint of the content of a batch."""
    content = hashlib.sha256()
    for tensor in tf.nest.flatten(batch):
        if tensor is None:
            content.update(b"none")
            continue
        array = np.asarray(tensor)
        content.update(f"{array.dtype.name}{array.shape}".encode())
        is_text = array.dtype == object
        data = repr(array.tolist()).encode() if is_text else array.tobytes()
        content.update(data)
    return content.hexdigest()[:16]


def _precision(model):
    """Return the name of the layers' dtype policy, or a list of them."""
    names = [
        layer.dtype_policy.name
        for layer in inner_layers(model)
        if not isinstance(layer, (keras.Model, keras.layers.InputLayer))
    ]
    return names[0] if len(set(names)) == 1 else names


def _config_or_none(thing):
    """Return the config of an optimizer or a mode with its class, or None."""
    if thing is None:
        return None
    return plain({"class": type(thing).__name__, **thing.get_config()})


def _versions():
    versions = machine.library_versions()
    for metal in ("tensorflow-metal", "tensorflow-metal-plugin"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[metal] = importlib.metadata.version(metal)
    return {"python": platform.python_version(), **versions}


def _machine():
    """Return a hash that distinguishes machines without naming them."""
    text = f"{uuid.getnode()} {platform.machine()} {platform.system()}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]
