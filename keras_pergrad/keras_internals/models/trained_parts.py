"""The trained parts of a model, saved with it: LoRA, and frozen layers.

Keras merges a layer's LoRA weights into its kernel when it saves. When it
loads, both factors are zero and so are their gradients. Models that do not
keep their layers' configs, as in keras-hub, come back with all weights
trainable, and a saved optimizer does not fit them.

Private names in use: `Layer._trainable_variables`, `_non_trainable_variables`;
of keras-hub's models `_lora_rank`, `_lora_enabled_layers`.
"""

import warnings
import weakref

import numpy as np

from keras_pergrad.keras_internals.models.parts import inner_layers
from keras_pergrad.keras_internals.state.saved import SavedState

#: The attribute of the model. Keras loads attributes in the order of their
#: names, and this one has to come after all layers.
ATTRIBUTE = "~lora"
_KERAS_HUB_ATTRIBUTES = ("_lora_rank", "_lora_enabled_layers")


class LoRA(SavedState):
    """The variables of layers with LoRA as they are, not merged, for saving."""

    def __init__(self, model):
        # A weak reference, or Keras would go through the model again.
        self._model = weakref.ref(model)

    def save_own_variables(self, store):
        for key, variable in self._variables():
            store[key] = np.asarray(variable.value)

    def load_own_variables(self, store):
        variables = dict(self._variables())
        # A file of Keras, or of a model with LoRA elsewhere, has only merged
        # weights, which are already loaded.
        if set(variables) == set(store.keys()):
            for key, variable in variables.items():
                variable.assign(store[key])

    def _variables(self):
        """Yield (key, variable) of the own variables of layers with LoRA."""
        layers = [lr for lr in inner_layers(self._model()) if lr.variables]
        for index, layer in enumerate(layers):
            if getattr(layer, "lora_enabled", False):
                own_variables = (
                    layer._trainable_variables + layer._non_trainable_variables
                )
                for number, variable in enumerate(own_variables):
                    yield f"{index}_{number}", variable


def config_of(model):
    """Describe what is trained, as JSON for `restore`; None: not built."""
    if not model.built:
        return None
    layers = inner_layers(model)
    return {
        "layers": [int(layer.trainable) for layer in layers],
        "with_variables": _indices_with_variables(layers),
        "variables": [int(v.trainable) for v in model.variables],
        "lora": {
            str(index): _lora_arguments(layer)
            for index, layer in enumerate(layers)
            if getattr(layer, "lora_enabled", False)
        },
        "keras_hub": {
            str(index): {
                name: getattr(layer, name) for name in _KERAS_HUB_ATTRIBUTES
            }
            for index, layer in enumerate(layers)
            if all(hasattr(layer, name) for name in _KERAS_HUB_ATTRIBUTES)
        },
    }


def restore(model, config):
    """Restore which parts of a new model are trained, and add LoRA weights."""
    if config is None or not model.built:
        return
    layers = _layers_by_index(model, config)
    if layers is None:
        return
    for index, arguments in config["lora"].items():
        if not layers[int(index)].lora_enabled:
            layers[int(index)].enable_lora(**arguments)
    for index, attributes in config["keras_hub"].items():
        for name, value in attributes.items():
            setattr(layers[int(index)], name, value)
    variables = model.variables
    if len(variables) != len(config["variables"]):
        _warn(
            model,
            "variables",
            len(variables),
            expected=len(config["variables"]),
        )
        return
    # A layer passes its flag on to its inner layers, which come after it.
    for index, layer in layers.items():
        layer.trainable = bool(config["layers"][index])
    for variable, trainable in zip(variables, config["variables"]):
        variable.trainable = bool(trainable)


def _indices_with_variables(layers):
    """Return the places of the layers that have variables."""
    return [index for index, layer in enumerate(layers) if layer.variables]


def _layers_by_index(model, config):
    """Return the saved layers by their index, or None if they differ."""
    # Layers without variables may appear later, such as those that a tokenizer
    # makes when its vocabulary is loaded, which is after `restore`.
    layers = inner_layers(model)
    if len(layers) == len(config["layers"]):
        return dict(enumerate(layers))
    with_variables = [
        layers[index] for index in _indices_with_variables(layers)
    ]
    if len(with_variables) == len(config["with_variables"]):
        return dict(zip(config["with_variables"], with_variables))
    _warn(model, "layers", len(layers), expected=len(config["layers"]))
    return None


def _lora_arguments(layer):
    """Return the arguments for `enable_lora`."""
    arguments = {"rank": layer.lora_rank}
    if hasattr(layer, "lora_alpha"):  # new in Keras 3.9
        arguments["lora_alpha"] = layer.lora_alpha
    return arguments


def _warn(model, parts, received, *, expected):
    warnings.warn(
        f"Model {model.name!r} was saved with {expected} {parts} and is made "
        f"anew with {received}: which of them were trainable is not restored. "
        "Set `trainable` of its layers, and compile it again.",
        stacklevel=2,
    )
