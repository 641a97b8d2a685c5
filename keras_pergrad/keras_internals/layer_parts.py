"""The parts of layers and variables that Keras keeps to itself.

Private names in use: `Layer._layers`, `_path`, `_trainable`,
`_trainable_variables`, `_open_name_scope`, `_dtype_policy`,
`Operation._inbound_nodes`, `_outbound_nodes`, `Variable._path`, `_trainable`,
`Functional._inputs`, `KerasTensor._dtype`,
`TextVectorization._lookup_layer`, `IndexLookup._has_input_vocabulary`,
`keras.src.layers.rnn.conv_lstm.ConvLSTMCell`.
"""

import contextlib

import tensorflow as tf
from keras.src.layers.rnn.conv_lstm import ConvLSTMCell as ConvLSTMCell

from keras_pergrad.common.patching import attribute


def layers_inside(layer):
    """List the layers that are attributes of a layer, as they were made."""
    return layer._layers


def own_weights(layer):
    """List the trainable variables of a layer, and those of its parts."""
    return layer._trainable_variables


def rename_like(layer, other):
    """Give a layer the name, path and flag `trainable` of another."""
    layer.name, layer._path = other.name, other.path
    # The property would pass the flag on to the layers inside.
    layer._trainable = other._trainable


def set_path(variable, path):
    """Give a variable the path of another."""
    variable._path = path


def turn_into(layer, new):
    """Turn a layer into another one; all references to the object see it."""
    calls = {k: vars(layer)[k] for k in ("_inbound_nodes", "_outbound_nodes")}
    # This bypasses Keras's tracking of attributes.
    object.__setattr__(layer, "__class__", type(new))
    object.__setattr__(layer, "__dict__", vars(new))
    vars(layer).update(calls)


@contextlib.contextmanager
def noting_scopes(layers, scopes):
    """Note in a dict in which name scope each layer is called inside.

    Only what is called in the present graph counts.
    """
    graph = tf.compat.v1.get_default_graph()

    def noting(layer):
        opened = layer._open_name_scope

        @contextlib.contextmanager
        def open_name_scope():
            with opened():
                if tf.compat.v1.get_default_graph() is graph:
                    scopes[graph.get_name_scope()] = layer
                yield

        return open_name_scope

    openers = [(layer, noting(layer)) for layer in layers]
    with contextlib.ExitStack() as stack:
        for layer, opener in openers:
            stack.enter_context(attribute(layer, "_open_name_scope", opener))
        yield


@contextlib.contextmanager
def layer_computing_in(layer, policy):
    """Let a layer compute by another dtype policy inside."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(attribute(layer, "_dtype_policy", policy))
        # A functional model casts to the formats of its symbolic inputs.
        for tensor in getattr(layer, "_inputs", None) or ():
            if tensor.dtype.startswith(("float", "bfloat")):
                dtype = policy.compute_dtype
                stack.enter_context(attribute(tensor, "_dtype", dtype))
        yield


def lookup_of(layer):
    """Return the lookup layer inside of a `TextVectorization`."""
    return layer._lookup_layer


def has_given_words(lookup):
    """Whether a lookup layer was made with its vocabulary."""
    return lookup._has_input_vocabulary
