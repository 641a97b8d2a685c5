"""The registry of further models, and what their builders share.

A builder returns a compiled model, x and y. The gradients of its samples are
those of single samples: no mask, weight or regulariser of the batch divides
its loss.
"""

import dataclasses
import typing

import keras
import numpy as np

layers, ops = keras.layers, keras.ops
#: How many samples a batch has, and how many classes there are.
N, CLASSES = 3, 3


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of model.

    Attributes:
        name: its name.
        make: its builder.
        about: what it is, in a few words.
        group: the module of its builder.
        dtype: the float type in which it is compared.
        draws: whether the forward pass draws numbers.
        known: whether a layer for strings in it is known, not proved, to
            treat each sample by itself.
    """

    name: str
    make: typing.Callable
    about: str
    group: str
    dtype: str = "float64"
    draws: bool = False
    known: bool = False


KINDS: dict[str, Kind] = {}


def kind(name, about, **settings):
    """Decorate a builder as that of a kind of model."""

    def register(make):
        assert name not in KINDS, name
        group = make.__module__.rsplit(".", 1)[1]
        KINDS[name] = Kind(name, make, about, group, **settings)
        return make

    return register


def generator(seed=0):
    """The random numbers of a builder."""
    return np.random.default_rng(seed)


def normal(*shape, seed=0):
    """Normal numbers for a batch, in the float type of Keras."""
    found = generator(seed).normal(size=(N, *shape))
    return found.astype(keras.config.floatx())


def integers(most, *shape, seed=0):
    """Whole numbers for a batch, from 0 up to `most`, without it."""
    return generator(seed).integers(0, most, (N, *shape)).astype("int32")


def labels():
    """A class for each sample."""
    return np.arange(N, dtype="int32") % CLASSES


def crossentropy():
    """The loss of a classifier that returns logits."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def perturbed(model):
    """Make every trained weight matter: no zeros, no ones."""
    rng = generator(2)
    for variable in model.trainable_variables:
        noise = 0.1 * rng.normal(size=variable.shape)
        variable.assign_add(noise.astype(variable.dtype))
    return model


def still(model):
    """Freeze batch normalisation, with statistics as after training."""
    rng = generator(3)
    for layer in model._flatten_layers():
        if isinstance(layer, layers.BatchNormalization):
            layer.trainable = False
            for variable in (layer.moving_mean, layer.moving_variance):
                noise = 0.2 * rng.uniform(size=variable.shape)
                variable.assign_add(noise.astype(variable.dtype))
    return model


def pooled(features):
    """One vector a sample, of maps or sequences."""
    axes = tuple(range(1, len(features.shape) - 1))
    return ops.mean(features, axes) if axes else features


def classified(inputs, features, x):
    """A classifier by the mean of features, perturbed and compiled."""
    logits = layers.Dense(CLASSES, name="logits")(pooled(features))
    model = still(perturbed(keras.Model(inputs, logits)))
    model.compile("sgd", crossentropy())
    return model, x, labels()
