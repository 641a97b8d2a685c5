"""What the tape keeps of one call of a layer."""

import dataclasses

import keras

from keras_pergrad.replay import Recorded


@dataclasses.dataclass
class Call:
    """One recorded call of a layer.

    Attributes:
        layer: the layer.
        rule: its rule, or None for the generic fallback.
        reason: why the fallback serves it, where it does.
        watched: the tensors whose gradients are needed.
        inputs: what the rule needs besides them.
        recorded: the call as the fallback needs it.
        accessed: ids of the trainable variables that were read in it, but
            not in a call inside it.
        parents: the calls that it was made in.
        refused: whether it was, by a tape that goes on.
    """

    layer: keras.layers.Layer
    rule: object = None
    reason: str | None = None
    watched: list = dataclasses.field(default_factory=list)
    inputs: object = None
    recorded: Recorded | None = None
    accessed: set = dataclasses.field(default_factory=set)
    parents: tuple = ()
    refused: bool = False

    def covers(self, variable_id):
        """Whether repeating this call differentiates that variable, too."""
        return self.rule is None and variable_id in self.accessed


def takes_whole(layer):
    """Layers that call their sublayers inside a loop of their own."""
    return isinstance(layer, (keras.layers.RNN, keras.layers.TimeDistributed))


def assigns_weights(layer):
    """Whether the layer reads weights only to assign them.

    SpectralNormalization sets the inner layer's kernel before it calls it;
    Keras differentiates with respect to the value that was set.
    """
    cls = keras.layers.SpectralNormalization
    return isinstance(layer, cls) and type(layer).call is cls.call
