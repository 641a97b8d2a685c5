"""Layers that hold what they were adapted to, such as a vocabulary."""

import keras
import numpy as np

from keras_pergrad.keras_internals.layer_parts import has_given_words, lookup_of
from keras_pergrad.keras_internals.model_parts import layers_of

layers = keras.layers


def adapted(model, public):
    """Yield each layer that was adapted to private data, with what it keeps."""
    waiting, inside = layers_of(model), set()
    for layer in waiting:
        if isinstance(layer, layers.TextVectorization):
            inside.add(id(lookup_of(layer)))
    for layer in waiting:
        if layer.name not in public and id(layer) not in inside:
            kept = _kept(layer)
            if kept:
                yield layer, kept


def _kept(layer):
    """Return what a layer has from adapt(), in words, or None."""
    if isinstance(layer, layers.Normalization):
        return "mean and variance" if _has_moments(layer) else None
    if isinstance(layer, layers.Discretization):
        # With `num_bins` they can come from adapt() alone.
        by_adapt = layer.num_bins is not None
        known = layer.bin_boundaries is not None
        return "boundaries" if by_adapt and known else None
    if isinstance(layer, layers.TextVectorization):
        layer = lookup_of(layer)
    if isinstance(layer, (layers.StringLookup, layers.IntegerLookup)):
        return "vocabulary" if _has_words(layer) else None
    # Of one's own: whether it was called is not known.
    return "state" if callable(getattr(layer, "adapt", None)) else None


def _has_moments(layer):
    if layer.input_mean is not None or not layer.built:
        return False
    mean, variance = (
        np.asarray(v) for v in (layer.adapt_mean, layer.adapt_variance)
    )
    return bool(mean.any() or (variance != 1).any())


def _has_words(lookup):
    """Whether words were given by adapt() or set_vocabulary()."""
    if has_given_words(lookup):
        return False
    return len(lookup.get_vocabulary(include_special_tokens=False)) > 0
