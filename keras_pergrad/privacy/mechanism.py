"""The mechanism of private training: the numbers its privacy depends on."""

import dataclasses
import functools
import json
import math

import keras
import numpy as np

from keras_pergrad.privacy.batch_selection import SELECTIONS

SAMPLINGS = tuple(SELECTIONS)
UNITS = EXAMPLE, UNIQUE, USER = ("example", "unique", "user")


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """One phase of private training, apart from how long it goes on.

    Attributes:
        sampling: one of `SAMPLINGS`.
        examples: how many examples there are.
        batch_size: how many of them a batch has, or is expected to have.
        noise_multiplier: the standard deviation of the noise on the sum of
            clipped gradients, over the clip norm; or the JSON of a schedule.
        clipping: the JSON of the aggregation that clips.
        examples_per_user: how many examples one user may have; 1 where the
            unit of privacy is an example.
        unit: whom the guarantee is for, one of `UNITS`: an example, of which
            a person may have several; one that is another person's; or a user
            with all examples.
    """

    sampling: str
    examples: int
    batch_size: int
    noise_multiplier: float | str
    clipping: str
    examples_per_user: int = 1
    unit: str = "example"

    @property
    def selection(self):
        """How the examples of a batch are chosen, a `BatchSelection`."""
        return SELECTIONS[self.sampling]

    @property
    def rate(self):
        """The probability that an example is in a batch."""
        return self.batch_size / self.examples

    @property
    def steps_per_epoch(self):
        """The number of batches that make an epoch of `fit`."""
        return math.ceil(self.examples / self.batch_size)

    @property
    def is_full_batch(self):
        """Whether every example is in every batch."""
        return self.batch_size == self.examples

    def noise(self, first, steps):
        """Return the noise multipliers of some steps, (steps,)."""
        if isinstance(self.noise_multiplier, float):
            return np.full(steps, self.noise_multiplier)
        return _scheduled(self.noise_multiplier, first + steps)[first:]

    def noise_range(self, steps):
        """Return the least and the largest noise multiplier of some steps."""
        noise = self.noise(0, steps)
        return float(np.min(noise)), float(np.max(noise))

    def to_dict(self):
        """Return what `from_dict` takes, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, config):
        return cls(**config)


@functools.lru_cache(maxsize=32)
def _scheduled(config, steps):
    schedule = keras.saving.deserialize_keras_object(json.loads(config))
    values = [float(schedule(step)) for step in range(steps)]
    return np.asarray(values)
