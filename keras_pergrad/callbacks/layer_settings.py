"""What makes a layer what it is, in every version of Keras.

Newer versions add arguments to old layers. A setting counts only where it is
not what Keras's constructors take by default.
"""

import codecs
import hashlib
import inspect
import json
import marshal
import warnings

import numpy as np

from keras_pergrad.callbacks.plain import plain_value

# What tells two layers of one function apart, or says how they began.
_NOT_STRUCTURE = (
    "name",
    "dtype",
    "trainable",
    "seed",
    "build_config",
    "registered_name",
    "module",
    "shared_object_id",
)


def settings_of(operation, inside):
    """What its config adds to Keras's defaults, and whether it wraps layers."""
    try:
        with warnings.catch_warnings():
            # That a lambda is unsafe to save.
            warnings.simplefilter("ignore", UserWarning)
            config = operation.get_config()
    except Exception:  # a user's layer may raise anything here
        return {}, False
    defaults = _defaults(type(operation))
    names = {type(layer).__name__ for layer in inside}
    kept, wraps = {}, False
    for key, value in config.items():
        if _is_one_of(value, names):
            wraps = True
        elif key in defaults:
            if not is_default(_structure(value), defaults[key]):
                kept[key] = value
        elif value is not None and value is not False:
            kept[key] = value
    return _structure(kept), wraps


def _defaults(cls):
    """The defaults of the arguments of Keras's constructors in a class."""
    found = {}
    for base in cls.__mro__:
        if not is_from_keras(base) or "__init__" not in vars(base):
            continue
        for name, given in inspect.signature(base.__init__).parameters.items():
            if given.default is not given.empty:
                found.setdefault(name, given.default)
    if found.get("data_format", "") is None:
        found["data_format"] = "channels_last"
    return found


def is_from_keras(cls):
    """Whether a class or function is Keras's own."""
    return cls.__module__.partition(".")[0] == "keras"


def is_default(value, default):
    """Whether a setting equals a default, as a text or as a number."""
    numbers = (int, float)
    if isinstance(value, numbers) and isinstance(default, numbers):
        return value == default
    return as_text(value) == as_text(default)


def _is_one_of(config, names):
    """Whether a config is that of a layer, or of several, of these classes."""
    if isinstance(config, (list, tuple)):
        return bool(config) and all(_is_one_of(part, names) for part in config)
    return isinstance(config, dict) and config.get("class_name") in names


def _structure(config):
    if isinstance(config, dict):
        if config.get("class_name") == "__lambda__":
            return _structure(config["config"])
        if set(config) == {"code", "defaults", "closure"}:
            return _lambda(*config.values())
        if set(config) == {"value"} and isinstance(config["value"], tuple):
            return _lambda(*config["value"])
        return {
            key: _structure(value)
            for key, value in config.items()
            if key not in _NOT_STRUCTURE and "initializer" not in key
        }
    if isinstance(config, (list, tuple)):
        return [_structure(value) for value in config]
    return config


def _lambda(code, *bound):
    """What a lambda names and holds; its code depends on Python and file."""
    code = marshal.loads(codecs.decode(code.encode("ascii"), "base64"))
    constants = [c for c in code.co_consts if isinstance(c, (int, float, str))]
    return ["lambda", code.co_names, constants, bound]


def as_text(structure):
    """As JSON, the same for the same content."""
    return json.dumps(structure, sort_keys=True, default=_short)


def _short(value):
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        array = np.asarray(value)
        content = hashlib.sha256(np.ascontiguousarray(array).tobytes())
        return [array.dtype.name, array.shape, content.hexdigest()]
    return plain_value(value)
