"""The description of a run: its model, probe batch and machine."""

import contextlib
import hashlib
import importlib.metadata
import platform
import sys
import uuid

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.measurement.model_description import (
    architecture,
    compiled_loss,
    plain,
    settings,
)
from keras_pergrad.common import devices
from keras_pergrad.keras_internals.model_parts import inner_layers
from keras_pergrad.keras_internals.repeatability import (
    global_seed,
    is_deterministic,
)
from keras_pergrad.runs import RunInfo


def describe(model, batch, fit, tags, run, sketch_size):
    """Return the `RunInfo` of training `model`, measured on `batch`."""
    accelerators = devices.accelerators()
    kind = "CPU"
    if accelerators:
        kind = "METAL" if accelerators[0].is_metal else accelerators[0].type
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
        device=kind,
        seed=global_seed(),
        optimizer=_config(model.optimizer),
        gradient_mode=_config(getattr(model, "gradient_mode", None)),
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
        strings = array.dtype == object
        shown = repr(array.tolist()).encode() if strings else array.tobytes()
        content.update(shown)
    return content.hexdigest()[:16]


def _precision(model):
    """Return the name of the layers' dtype policy, or a list of them."""
    names = [
        layer.dtype_policy.name
        for layer in inner_layers(model)
        if not isinstance(layer, (keras.Model, keras.layers.InputLayer))
    ]
    return names[0] if len(set(names)) == 1 else names


def _config(thing):
    """Return the config of an optimizer or a mode with its class, or None."""
    if thing is None:
        return None
    return plain({"class": type(thing).__name__, **thing.get_config()})


def _versions():
    packages = tf, keras, np, sys.modules["keras_pergrad"]
    versions = {package.__name__: package.__version__ for package in packages}
    metal = "tensorflow-metal"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions[metal] = importlib.metadata.version(metal)
    return {"python": platform.python_version(), **versions}


def _machine():
    """Return a hash that tells machines apart without naming them."""
    text = f"{uuid.getnode()} {platform.machine()} {platform.system()}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]
