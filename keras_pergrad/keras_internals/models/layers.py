"""The parts of layers, losses and seeds that only extras read.

Private names in use: `keras.src.models.functional.functional_like_constructor`,
`Sequential._functional`; `Operation._inbound_nodes`, `_outbound_nodes`;
`Layer._layers`, `_trainable_variables`, `_dtype_policy`; `Loss._fn_kwargs`;
`Functional._inputs`, `KerasTensor._dtype`, `TextVectorization._lookup_layer`,
`IndexLookup._has_input_vocabulary`;
`keras.src.layers.rnn.conv_lstm.ConvLSTMCell`;
`keras.src.backend.common.global_state.get_global_attribute`.
"""

import warnings
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.layers.rnn.conv_lstm import ConvLSTMCell as ConvLSTMCell
from keras.src.models import functional as keras_functional

from keras_pergrad.keras_internals.models.parts import (
    Functional,
    patched_attributes,
)


def is_only_layers(layer):
    """Whether a layer consists of layers, without a `call` of its own."""
    return type(layer) is keras.Sequential or (
        isinstance(layer, Functional)
        and keras_functional.functional_like_constructor(type(layer))
    )


def inner_model(model):
    """Return the model that a Sequential one is built of, or None."""
    return model._functional if isinstance(model, keras.Sequential) else None


_MISSING = object()
_SEEN = set()


def optional(target, name, example, *, effect, default=None) -> Any:
    """Return an attribute; warn where not even `example()` has it."""
    # An object without the attribute is ordinary. If a typical one lacks it,
    # the library has changed, and `effect` says what is lost by that.
    value = getattr(target, name, _MISSING)
    if value is not _MISSING:
        return value
    if name not in _SEEN:
        typical = example()
        if hasattr(typical, name):
            _SEEN.add(name)
        else:
            library = type(typical).__module__.partition(".")[0]
            warnings.warn(
                f"This version of {library} has no "
                f"{type(typical).__name__}.{name}, so that {effect}.",
                stacklevel=2,
            )
    return default


def call_nodes(layer):
    """List the nodes of a layer's symbolic calls."""
    return layer._inbound_nodes


def call_arguments_of(loss):
    """Return the keyword arguments a loss function was wrapped with."""
    effect = (
        "records of runs describe a loss by its class and its config: it "
        "seems to differ from that of runs of other versions"
    )
    return optional(
        loss, "_fn_kwargs", keras.losses.MeanSquaredError, effect=effect
    )


def direct_sublayers(layer):
    """List the layers that are attributes of a layer, in order of creation."""
    return layer._layers


def own_weights(layer):
    """List the trainable variables of a layer, and those of its parts."""
    return layer._trainable_variables


def turn_into(layer, new):
    """Turn a layer into another one; all references to the object see it."""
    # The nodes of its calls stay: a functional model runs along them.
    calls = {k: vars(layer)[k] for k in ("_inbound_nodes", "_outbound_nodes")}
    # This bypasses Keras's tracking of attributes.
    object.__setattr__(layer, "__class__", type(new))
    object.__setattr__(layer, "__dict__", vars(new))
    vars(layer).update(calls)


def layer_computing_in(layer, policy):
    """Let a layer compute by another dtype policy inside."""
    # A functional model casts to the formats of its symbolic inputs.
    patches = [
        (tensor, "_dtype", policy.compute_dtype)
        for tensor in getattr(layer, "_inputs", None) or ()
        if tensor.dtype.startswith(("float", "bfloat"))
    ]
    return patched_attributes([(layer, "_dtype_policy", policy), *patches])


def lookup_of(layer):
    """Return the lookup layer inside of a `TextVectorization`."""
    return layer._lookup_layer


def has_fixed_vocabulary(lookup):
    """Whether a lookup layer got its vocabulary as an argument."""
    return lookup._has_input_vocabulary


def shared_seed_state():
    """Return the seed's variable, or None if no layer has asked for it yet."""
    # Keras's own getter would create it.
    seeds = global_state.get_global_attribute("global_seed_generator")
    return None if seeds is None else seeds.state
