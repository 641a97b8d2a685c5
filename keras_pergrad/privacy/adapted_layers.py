"""Layers that hold what they were adapted to, such as a vocabulary."""

import keras
import numpy as np

from keras_pergrad.common.names import did_you_mean
from keras_pergrad.common.text import first_few
from keras_pergrad.keras_internals.models.layers import (
    has_fixed_vocabulary,
    lookup_of,
)
from keras_pergrad.keras_internals.models.parts import layers_of

layers = keras.layers


def require_layers(model, augment, names):
    """Refuse names of public layers that no layer has."""
    known = [layer.name for layer in layers_of(model) if layer is not model]
    if isinstance(augment, keras.layers.Layer):
        known += [layer.name for layer in layers_of(augment)]
    for name in names:
        if name not in known:
            raise ValueError(
                "PrivateTraining(public_layers=[...]) expected names of layers "
                f"of model {model.name!r}. Received: {name!r}."
                f"{did_you_mean(name, known)} The layers are: "
                f"{first_few(list(map(repr, known)), 20)}"
            )


def adapted_layers(model, public):
    """Yield each layer that was adapted to private data, with what it keeps."""
    candidates, inner_lookups = layers_of(model), set()
    for layer in candidates:
        if isinstance(layer, layers.TextVectorization):
            inner_lookups.add(id(lookup_of(layer)))
    for layer in candidates:
        if layer.name not in public and id(layer) not in inner_lookups:
            state = _adapted_state(layer)
            if state:
                yield layer, state


def _adapted_state(layer):
    """Return what a layer has from adapt(), in words, or None."""
    if isinstance(layer, layers.Normalization):
        return "mean and variance" if _has_moments(layer) else None
    if isinstance(layer, layers.Discretization):
        # With `num_bins` they can come from adapt() alone.
        can_adapt = layer.num_bins is not None
        has_boundaries = layer.bin_boundaries is not None
        return "boundaries" if can_adapt and has_boundaries else None
    if isinstance(layer, layers.TextVectorization):
        layer = lookup_of(layer)
    if isinstance(layer, (layers.StringLookup, layers.IntegerLookup)):
        return "vocabulary" if _has_vocabulary(layer) else None
    # A layer of the user's: whether adapt() was called is not known.
    return "state" if callable(getattr(layer, "adapt", None)) else None


def _has_moments(layer):
    if layer.input_mean is not None or not layer.built:
        return False
    mean, variance = (
        np.asarray(v) for v in (layer.adapt_mean, layer.adapt_variance)
    )
    return bool(mean.any() or (variance != 1).any())


def _has_vocabulary(lookup):
    """Whether words were given by adapt() or set_vocabulary()."""
    if has_fixed_vocabulary(lookup):
        return False
    return len(lookup.get_vocabulary(include_special_tokens=False)) > 0
