"""The methods by which a layer computes: those of a known class, or its own.

What is known of a class of Keras holds for what its methods do. A subclass,
or an instance, with a method of its own may compute anything.
"""

import inspect

import keras

from keras_pergrad.keras_internals.models.layers import lookup_of

#: Methods that do not compute outputs.
_HARMLESS = {
    "__init__",
    "build",
    "get_config",
    "from_config",
    "get_build_config",
    "build_from_config",
    "compute_output_shape",
    "compute_output_spec",
    "compute_mask",
    "count_params",
    "save_own_variables",
    "load_own_variables",
    "save_assets",
    "load_assets",
    "add_loss",
    "quantize",
}
_Text = keras.layers.TextVectorization


def own_method(layer, base):
    """Return the name of a method that `layer` does not have from `base`.

    None: there is none, but for those that do not compute outputs.
    """
    layer_type = type(layer)
    for name in _overridden(layer_type, base):
        return name
    classes = base.__mro__[: base.__mro__.index(keras.layers.Layer)]
    for name in vars(layer):
        inherited = next(
            (vars(c)[name] for c in classes if name in vars(c)), None
        )
        if inspect.isroutine(inherited) and name not in (*_HARMLESS, "call"):
            return name
    return None


def _overridden(layer_type, base):
    """Yield the methods and properties that subclasses of `base` define."""
    for cls in layer_type.__mro__[: layer_type.__mro__.index(base)]:
        for name, value in vars(cls).items():
            if name in _HARMLESS or not hasattr(value, "__get__"):
                continue
            # A property may stand before an attribute of the instance.
            overrides = not inspect.isroutine(value) or hasattr(base, name)
            if overrides and name not in ("__dict__", "__weakref__"):
                yield name


def is_exactly(layer, base):
    """Whether a layer computes by the methods of `base`, a class of Keras."""
    return (
        isinstance(layer, base)
        and own_method(layer, base) is None
        and "call" not in vars(layer)
    )


def is_samplewise(layer, classes):
    """Whether a layer of one of these classes treats each sample by itself."""
    if not any(is_exactly(layer, base) for base in classes):
        return False
    return not isinstance(layer, _Text) or _texts_are_independent(layer)


def pads_to_longest(layer):
    """Whether the longest text of a batch says how long all are."""
    if not isinstance(layer, _Text):
        return False
    config = _Text.get_config(layer)
    of_words = config["output_mode"] == "int" and config["split"] is not None
    return of_words and config["output_sequence_length"] is None


def _texts_are_independent(layer):
    config = _Text.get_config(layer)
    lookup = lookup_of(layer)
    return (
        not pads_to_longest(layer)
        and not callable(config["standardize"])
        and not callable(config["split"])
        and type(lookup) is keras.layers.StringLookup
        and is_exactly(lookup, keras.layers.StringLookup)
    )
