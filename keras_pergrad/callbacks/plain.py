"""Configs as plain values, which JSON can hold."""

import functools
import json

import numpy as np
import tensorflow as tf


def plain(config):
    """A config of plain values only."""
    return json.loads(json.dumps(config, default=plain_value))


def plain_value(value):
    """What stands for an object: its config, or its name.

    A function is known by its qualified name.
    """
    if isinstance(value, (np.generic, np.ndarray, tf.Tensor)):
        return np.asarray(value).tolist()
    if hasattr(value, "get_config") and not isinstance(value, type):
        return {"class": type(value).__name__, **value.get_config()}
    if isinstance(value, functools.partial):
        bound = [plain_value(value.func), value.args, value.keywords]
        return {"partial": plain(bound)}
    return getattr(value, "__qualname__", type(value).__name__)
