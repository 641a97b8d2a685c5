"""The mechanism of private training: the numbers its privacy depends on."""

import dataclasses
import functools
import json
import math
from typing import Any

import keras
import numpy as np

from keras_pergrad.privacy.correlated_noise import Strategy
from keras_pergrad.privacy.selections import SELECTIONS, BatchSelection

#: The names of the clippings that are known to bound gradients.
BOUNDING = "ClippedMean", "AutomaticClippedMean", "AdaptiveClippedMean"
UNITS = EXAMPLE, UNIQUE, USER = ("example", "unique", "user")


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """One phase of private training, apart from how long it goes on.

    Attributes:
        sampling: one of `SELECTIONS`.
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
        strategy: by which noise is correlated from step to step, or None.
        search: the JSON of the search whose best trial this is (see
            `private_search`); empty where training was not part of one.
        augmentations: how many views of an example its gradient is the mean
            of; the accounting does not depend on it.
    """

    sampling: str
    examples: int
    batch_size: int
    noise_multiplier: float | str
    clipping: str
    examples_per_user: int = 1
    unit: str = "example"
    strategy: Strategy | None = None
    search: str = ""
    augmentations: int = 1

    @property
    def selection(self) -> BatchSelection:
        """How the examples of a batch are chosen, a `BatchSelection`."""
        return SELECTIONS[self.sampling]

    @property
    def rate(self) -> float:
        """The probability that an example is in a batch."""
        return self.batch_size / self.examples

    @property
    def groups(self) -> int:
        """How many groups of examples take turns in cyclic sampling."""
        return 1 if self.strategy is None else self.strategy.bands

    @property
    def group_rate(self) -> float:
        """The probability that an example of a step's group is in the batch."""
        return self.rate * self.groups

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches that make an epoch of `fit`."""
        return math.ceil(self.examples / self.batch_size)

    @property
    def is_full_batch(self) -> bool:
        """Whether every example is in every batch."""
        return self.batch_size == self.examples

    def noise(self, first: int, steps: int) -> np.ndarray:
        """Return the noise multipliers of some steps, (steps,)."""
        if isinstance(self.noise_multiplier, float):
            return np.full(steps, self.noise_multiplier)
        return _schedule_values(self.noise_multiplier, first + steps)[first:]

    def noise_range(self, steps: int) -> tuple[float, float]:
        """Return the least and the largest noise multiplier of some steps."""
        noise = self.noise(0, steps)
        return float(np.min(noise)), float(np.max(noise))

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` takes, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> "Mechanism":
        strategy = config.get("strategy")
        if isinstance(strategy, dict):
            coefficients = tuple(strategy["coefficients"])
            strategy = Strategy(strategy["kind"], coefficients)
        return cls(**{**config, "strategy": strategy})


@functools.lru_cache(maxsize=32)
def _schedule_values(config, steps):
    schedule = keras.saving.deserialize_keras_object(json.loads(config))
    values = [float(schedule(step)) for step in range(steps)]
    return np.asarray(values)
