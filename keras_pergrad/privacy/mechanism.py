"""The mechanism of private training: the numbers its privacy depends on."""

import dataclasses
import functools
import json
import math
from typing import Any

import keras
import numpy as np

from keras_pergrad.aggregations.clipping import ClippedMean, Schedule
from keras_pergrad.common.arguments import (
    number_from,
    positive_number,
    require_one_of,
)
from keras_pergrad.common.registry import serialize
from keras_pergrad.privacy.correlated_noise import Strategy
from keras_pergrad.privacy.selections import SELECTIONS, BatchSelection

#: The names of the clippings that are known to bound gradients.
BOUNDING = "ClippedMean", "AutomaticClippedMean", "AdaptiveClippedMean"
UNITS = EXAMPLE, UNIQUE, USER = ("example", "unique", "user")


#: The distributions of a search's number of trials, by their shapes.
TRIAL_SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}


@dataclasses.dataclass(frozen=True)
class NoiseSchedule:
    """A noise multiplier that changes from step to step.

    Attributes:
        config: the schedule as Keras writes it, the JSON of it: equal for
            equal schedules.
    """

    config: str

    @classmethod
    def of(cls, schedule: Schedule) -> "NoiseSchedule":
        """Return the one of a schedule of Keras."""
        return cls(_json(serialize(schedule)))

    @functools.lru_cache(maxsize=32)  # noqa: B019 of frozen objects
    def values(self, steps: int) -> np.ndarray:
        """Return the noise multipliers of the first steps, (steps,)."""
        config = json.loads(self.config)
        schedule = keras.saving.deserialize_keras_object(config)
        return np.asarray([float(schedule(step)) for step in range(steps)])


@dataclasses.dataclass(frozen=True)
class Clipping:
    """What clips and adds noise, but for its seed.

    Attributes:
        name: of the class.
        settings: the JSON of its config: equal for equal ones.
    """

    name: str
    settings: str

    @classmethod
    def of(cls, clipping: ClippedMean) -> "Clipping":
        """Return the one of an aggregation that clips."""
        config = serialize(clipping)
        settings = {k: v for k, v in config["config"].items() if k != "seed"}
        return cls(config["class_name"], _json(settings))

    def __repr__(self) -> str:
        """Show the call that makes such an aggregation."""
        settings = ", ".join(f"{k}={v!r}" for k, v in self.config.items())
        return f"{self.name}({settings})"

    @classmethod
    def from_json(cls, text: str) -> "Clipping":
        """Return what `to_json` has written."""
        ((name, settings),) = json.loads(text).items()
        return cls(name, _json(settings))

    def to_json(self) -> str:
        """Return a text, as ledgers and statements have it."""
        return _json({self.name: self.config})

    @property
    def config(self) -> dict[str, Any]:
        """The settings, name → value."""
        return json.loads(self.settings)


@dataclasses.dataclass(frozen=True)
class TrialSearch:
    """A search of which only the best trial is published.

    Attributes:
        expected_trials: the mean of the number of trials, at least 1.
        distribution: of that number, one of `TRIAL_SHAPES`.
        score_noise: the standard deviation of the noise on a private score, a
            number of examples; None: the score sees public data alone.
    """

    expected_trials: float
    distribution: str
    score_noise: float | None = None

    def __post_init__(self):
        mean, noise = self.expected_trials, self.score_noise
        mean = number_from("expected_trials", mean, 1)
        require_one_of("distribution", self.distribution, sorted(TRIAL_SHAPES))
        object.__setattr__(self, "expected_trials", mean)
        if noise is not None:
            noise = positive_number("score_noise", noise)
            object.__setattr__(self, "score_noise", noise)


def _json(config):
    return json.dumps(config, sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """One phase of private training, without the number of its steps.

    Attributes:
        sampling: one of `SELECTIONS`.
        examples: how many examples there are.
        batch_size: how many of them a batch has, or is expected to have.
        noise_multiplier: the standard deviation of the noise on the sum of
            clipped gradients, over the clip norm.
        clipping: what clips; None where epsilon alone is asked for.
        examples_per_user: how many examples one user may have; 1 where the
            unit of privacy is an example.
        unit: whom the guarantee is for, one of `UNITS`: an example, of which
            a person may have several; one that is another person's; or a user
            with all examples.
        strategy: by which noise is correlated from step to step, or None.
        search: the search whose best trial this is, or None.
        augmentations: how many views of an example its gradient is the mean
            of; the accounting does not depend on it.
    """

    sampling: str
    examples: int
    batch_size: int
    _: dataclasses.KW_ONLY
    noise_multiplier: float | NoiseSchedule
    clipping: Clipping | None = None
    examples_per_user: int = 1
    unit: str = EXAMPLE
    strategy: Strategy | None = None
    search: TrialSearch | None = None
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
        return self.noise_multiplier.values(first + steps)[first:]

    def noise_range(self, steps: int) -> tuple[float, float]:
        """Return the least and the largest noise multiplier of some steps."""
        noise = self.noise(0, steps)
        return float(np.min(noise)), float(np.max(noise))

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` takes, for JSON."""
        # In the words of all versions: a schedule, a clipping and a search
        # are texts there.
        noise, search = self.noise_multiplier, self.search
        texts = {
            "clipping": self.clipping.to_json() if self.clipping else "",
            "search": _json(dataclasses.asdict(search)) if search else "",
        }
        if isinstance(noise, NoiseSchedule):
            texts["noise_multiplier"] = noise.config
        return {**dataclasses.asdict(self), **texts}

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> "Mechanism":
        noise, clipping = config["noise_multiplier"], config["clipping"]
        strategy, search = config.get("strategy"), config.get("search")
        if strategy is not None:
            coefficients = tuple(strategy["coefficients"])
            strategy = Strategy(strategy["kind"], coefficients)
        typed = {
            "noise_multiplier": NoiseSchedule(noise)
            if isinstance(noise, str)
            else noise,
            "clipping": Clipping.from_json(clipping) if clipping else None,
            "strategy": strategy,
            "search": TrialSearch(**json.loads(search)) if search else None,
        }
        return cls(**{**config, **typed})
