"""Layers whose weights are still as they were made, and others.

Told by variables that are made of zeros or ones, as biases and scales are:
training moves them. A layer without any is not judged.
"""

import keras
import numpy as np

_CONSTANT = (keras.initializers.Zeros, keras.initializers.Ones)


def origins(layers):
    """Return the paths of layers: trained before, untrained, and frozen so."""
    trained, untrained, frozen = [], [], []
    for layer in layers:
        # The variables of inner layers are judged there.
        own = [v for v in layer.variables if getattr(layer, v.name, 0) is v]
        known = [v for v in own if _made_constant(layer, v)]
        if not known:
            continue
        path = known[0].path.rpartition("/")[0]
        # An LSTM's bias is made of zeros and ones.
        if not all(np.isin(np.asarray(v), (0, 1)).all() for v in known):
            trained.append(path)
        elif layer.trainable:
            untrained.append(path)
        elif len(own) > len(known):
            frozen.append(path)
    return tuple(trained), tuple(untrained), tuple(frozen)


def _made_constant(layer, variable):
    initializer = getattr(layer, f"{variable.name}_initializer", None)
    return isinstance(initializer, _CONSTANT)
