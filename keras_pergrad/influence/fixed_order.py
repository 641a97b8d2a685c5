"""Batches of a data set, which must be the same in each pass over it."""

import hashlib
import json
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.models.parts import layers_of


class FixedOrderBatches:
    """The batches of a data set; another order in a later pass is refused.

    Samples are numbered by their places, which another order would mix up.
    `name` is that of the argument that they come from.
    """

    def __init__(self, batches, name):
        self._batches, self._name = batches, name
        self.count = batches.count
        self._checksums = {}
        # The first batch is read now, so that even a single later pass is
        # compared with something.
        next(iter(self))

    def __iter__(self):
        return self.iterate_from(0)

    def iterate_from(self, number):
        """Yield the batches from one of this number on."""
        for index, batch in enumerate(
            self._batches.iterate_from(number), number
        ):
            checksum = _checksum(batch)
            if self._checksums.setdefault(index, checksum) != checksum:
                raise ValueError(
                    f"The data set of `{self._name}` must give the same "
                    "batches in the same order each time. Received: another "
                    f"batch number {index} than before, as after "
                    "shuffle() or random changes in map(). Give arrays, "
                    "shuffle(..., reshuffle_each_iteration=False), or cache() "
                    "behind what is random."
                )
            yield batch


def _checksum(batch):
    checksum = 0
    for part in tf.nest.flatten(batch, expand_composites=True):
        if part is not None:
            array = np.asarray(part)
            is_text = array.dtype == object
            data = b"\0".join(array.reshape(-1)) if is_text else array.tobytes()
            checksum = zlib.crc32(data, checksum)
    return checksum


def count_and_checksum(batches):
    """Return how many samples all batches have, and a number of their values.

    They are read once.
    """
    samples, checksum = 0, 0
    for batch in batches:
        samples += len(tf.nest.flatten(batch[0])[0])
        text = str(_checksum(batch)).encode()
        checksum = zlib.crc32(text, checksum)
    return samples, checksum


def definition_checksum(model):
    """Return a text that changes with a model's layers and its loss.

    Names of layers do not matter: Keras numbers them in each process. Every
    setting does, unlike in `runs.description.architecture`, whose question is
    whether the gradients of two models can be compared.
    """
    layers = layers_of(model)
    indices = {layer.name: k for k, layer in enumerate(layers)}
    compiled = model.get_compile_config() or {}
    parts = [[type(layer).__name__, _config_of(layer)] for layer in layers]
    parts += [compiled.get("loss"), compiled.get("loss_weights")]
    text = json.dumps(_without_names(parts, indices), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _config_of(part):
    try:
        saved: Any = keras.saving.serialize_keras_object(part)
        return saved["config"]
    except (NotImplementedError, TypeError, ValueError, KeyError):
        return None  # A class of the user's that cannot be saved.


def _without_names(config, indices):
    if isinstance(config, dict):
        return {
            str(key): _without_names(value, indices)
            for key, value in sorted(config.items(), key=str)
            if value is not None
        }
    if isinstance(config, list | tuple):
        return [_without_names(value, indices) for value in config]
    is_name = isinstance(config, str) and config in indices
    return f"layer {indices[config]}" if is_name else config
