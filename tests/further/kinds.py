"""The registry of further models, and what their builders share.

The gradients of the samples of each model are those of single samples: no
mask, weight or regulariser of the batch divides its loss.
"""

import dataclasses
import functools
import typing

import keras
import numpy as np
import tensorflow as tf

from tests.further import tasks

layers, ops = keras.layers, keras.ops


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of model.

    Attributes:
        name: its name.
        make: returns a compiled model, x and y.
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


def added(name, about, module, **settings):
    """Decorate a function that returns a compiled model, x and y."""

    def register(make):
        assert name not in KINDS, name
        group = module.rsplit(".", 1)[1]
        KINDS[name] = Kind(name, make, about, group=group, **settings)
        return make

    return register


def kind(*inputs, y=tasks.LABELS, name=None, about=None, **settings):
    """Decorate a builder as that of a kind of model.

    It takes the inputs' tensors, and returns features that are classified, or
    (outputs or a model, loss), with weights of several losses behind that.

    Args:
        inputs: `Values`, or the shape of normal numbers.
        y: those of the targets, `SAME`, or a list.
        name: of the kind; by default the builder's.
        about: what it is; by default the builder's docstring.
        settings: of the `Kind`.
    """

    def register(build):
        make = functools.partial(made, build, inputs, y)
        words = about or _in_a_list(build.__doc__)
        module = build.__module__
        added(name or build.__name__, words, module, **settings)(make)
        return build

    return register


def _in_a_list(sentence):
    """A sentence without its full stop and its capital, if it is no name."""
    if not sentence.startswith(("Gram", "PPO", "VAE")):
        sentence = sentence[0].lower() + sentence[1:]
    return sentence.rstrip(".")


def made(build, inputs, y):
    """Return a compiled model, x and y, by what `kind` is given."""
    inputs = [_values(one) for one in inputs]
    tensors = [keras.Input(one.shape, dtype=one.dtype) for one in inputs]
    x = [one.batch(seed) for seed, one in enumerate(inputs)]
    found = build(*tensors)
    if len(inputs) == 1:
        (tensors,), (x,) = tensors, x
    if y is tasks.SAME:
        y = x
    elif isinstance(y, list):
        y = [_values(one).batch(8 + k) for k, one in enumerate(y)]
    else:
        y = _values(y).batch(8)
    if not isinstance(found, tuple):
        return classified(tensors, found, x, y=y)
    model, *losses = found
    if not isinstance(model, keras.Model):
        model = keras.Model(tensors, model)
    perturbed(model).compile("sgd", *losses)
    return model, x, y


def _values(one):
    return one if isinstance(one, tasks.Values) else tasks.normals(*one)


def perturbed(model):
    """Make every trained weight matter: no zeros, no ones."""
    rng = np.random.default_rng(2)
    for variable in model.trainable_variables:
        noise = 0.1 * rng.normal(size=variable.shape)
        variable.assign_add(noise.astype(variable.dtype))
    return model


def still(model):
    """Freeze batch normalisation, with statistics as after training."""
    rng = np.random.default_rng(3)
    for layer in model._flatten_layers():
        if isinstance(layer, layers.BatchNormalization):
            layer.trainable = False
            for variable in (layer.moving_mean, layer.moving_variance):
                noise = 0.2 * rng.uniform(size=variable.shape)
                variable.assign_add(noise.astype(variable.dtype))
    return model


def classified(inputs, features, x, *, y=None):
    """A classifier by the mean of maps or sequences, compiled."""
    axes = tuple(range(1, len(features.shape) - 1))
    if axes:
        features = ops.mean(features, axes)
    logits = layers.Dense(tasks.CLASSES, name="logits")(features)
    model = still(perturbed(keras.Model(inputs, logits)))
    model.compile("sgd", tasks.CROSSENTROPY())
    return model, x, tasks.LABELS.batch(0) if y is None else y


class Own(layers.Layer):
    """A function of tensors and of parts: layers, or weights by their shape."""

    def __init__(self, function, *parts):
        super().__init__()
        self.function = function
        self.parts = [
            self.add_weight(part) if isinstance(part, tuple) else part
            for part in parts
        ]

    def call(self, inputs):
        return self.function(*tf.nest.flatten(inputs), *self.parts)


def normed(x):
    """Behind a layer normalisation."""
    return layers.LayerNormalization()(x)


def attended(x, others=None, heads=2, *, size=3, **settings):
    """Attention to others, or to itself."""
    attention = layers.MultiHeadAttention(heads, size)
    return attention(x, x if others is None else others, **settings)


def mlp(width, *widths, activation="tanh"):
    """Dense layers, of which the last is linear, for vectors of `width`."""
    *hidden, last = widths
    parts = [layers.Dense(size, activation) for size in hidden]
    return keras.Sequential([keras.Input((width,)), *parts, layers.Dense(last)])


def conv(filters, kernel, strides=1, *, activation="relu", padding="same"):
    """A convolution of images, of which "same" and relu are the default."""
    return layers.Conv2D(
        filters, kernel, strides, padding, activation=activation
    )
