"""What further models are given and asked: inputs, targets and losses."""

import dataclasses
import functools
import typing

import keras
import numpy as np

from tests.models import making

#: How many samples a batch has, and how many classes there are.
N, CLASSES = 3, 3
CROSSENTROPY = functools.partial(
    keras.losses.SparseCategoricalCrossentropy, from_logits=True
)
BINARY = functools.partial(keras.losses.BinaryCrossentropy, from_logits=True)


@dataclasses.dataclass(frozen=True)
class Values:
    """The values of an input or of a target.

    Attributes:
        shape: of a sample.
        dtype: None is the float type of Keras.
        make: returns those of a batch, by a seed.
    """

    shape: tuple
    dtype: str | None
    make: typing.Callable

    def batch(self, seed=0):
        found = self.make(seed=seed)
        if self.dtype == "string":
            return found
        return found.astype(self.dtype or keras.config.floatx())


def normals(*shape):
    """Normal numbers."""
    return Values(shape, None, functools.partial(making.normal, N, *shape))


def integers(high, *shape, dtype="int32"):
    """Whole numbers from 0 to `high`, without it."""
    make = functools.partial(making.integers, high, N, *shape)
    return Values(shape, dtype, make)


def shares(*shape):
    """Numbers between 0 and 1."""
    numbers = normals(*shape)

    def make(seed):
        return 1 / (1 + np.exp(-numbers.make(seed=seed)))

    return dataclasses.replace(numbers, make=make)


def given(values, dtype=None):
    """These values."""
    values = np.array(values)
    return Values(values.shape[1:], dtype, lambda seed: values)


#: A class for each sample, and the labels 0 and 1.
LABELS = given(np.arange(N) % CLASSES, "int32")
CLICKS = given(np.arange(N)[:, None] % 2)
#: For targets: those of the input.
SAME = "same"
