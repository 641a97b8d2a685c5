"""The arguments of private training, checked."""

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from keras_pergrad.aggregations.clipping import ClippedMean, is_schedule
from keras_pergrad.common.arguments import (
    names_given,
    positive_integer,
    positive_number,
    probability,
    require_one_of,
    seed_or_none,
)
from keras_pergrad.common.warning import warn_user
from keras_pergrad.modes import PerSample, Vectorized
from keras_pergrad.privacy.augmentation import check_augmentations
from keras_pergrad.privacy.correlated_noise import Kind
from keras_pergrad.privacy.ledger import ledger_of
from keras_pergrad.privacy.mechanism import Mechanism, TrialSearch
from keras_pergrad.privacy.selections import SAMPLINGS, import_dp_accounting
from keras_pergrad.privacy.users import Users, check_users

METHODS = {"vectorized": Vectorized, "per_sample": PerSample}
NOISES = INDEPENDENT, CORRELATED = ("independent", "correlated")
#: What is done with the noise of earlier steps → the kind of the strategy.
EARLIER_NOISE: dict[str, Kind] = {"kept": "banded", "redrawn": "banded_inverse"}
#: The positive integers that need not be given.
_COUNTS = (
    "microbatch_size",
    "epochs",
    "steps",
    "bands",
    "samples_per_user",
    "augmentations",
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """The arguments of a `PrivateTraining`, each of which is sound.

    Attributes:
        search: the search of which the training is a trial, or None.
        users: the `Users` if these may have several examples, else None.
        spent: the phases of the model to go on from.
        spent_record: what its ledger says, or None.
    """

    delta: float
    samples: int
    batch_size: int
    target_epsilon: float | None = None
    clip_norm: Any = None
    epochs: int | None = None
    steps: int | None = None
    sampling: str | None = None
    noise: str = INDEPENDENT
    bands: int | None = None
    earlier_noise: str = "kept"
    noise_multiplier: Any = None
    clipping: ClippedMean | None = None
    microbatch_size: int | None = None
    method: str = "vectorized"
    seed: int | None = None
    user_ids: Any = None
    samples_per_user: int | None = None
    public_layers: Sequence[str] = ()
    continue_from: Any = None
    augmentations: int | None = None
    augment: Callable[[Any], Any] | None = None
    vouched: Sequence[str] = ()
    search: TrialSearch | None = None
    users: Users | None = dataclasses.field(init=False)
    spent: tuple[tuple[Mechanism, int], ...] = dataclasses.field(init=False)
    spent_record: dict[str, Any] | None = dataclasses.field(init=False)

    def __post_init__(self):
        import_dp_accounting()
        self._set(probability, "delta")
        if self.target_epsilon is not None:
            self._set(positive_number, "target_epsilon", " or None")
        for name in _COUNTS:
            if getattr(self, name) is not None:
                self._set(positive_integer, name)
        require_one_of("method", self.method, sorted(METHODS))
        self._set(names_given, "public_layers")
        self._set(names_given, "vouched")
        self._keep(seed=seed_or_none(self.seed))
        self._set(positive_integer, "samples")
        self._keep(sampling=_sampling(self.sampling, self.noise))
        self._keep(
            users=check_users(
                self.samples,
                self.user_ids,
                max_per_user=self.samples_per_user,
                sampling=self.sampling,
            )
        )
        self._warn_of_delta()
        self._check_batch_size()
        check_augmentations(self.augmentations, self.augment)
        if self.epochs is not None and self.steps is not None:
            raise ValueError(
                "Expected `epochs` or `steps`. Received: both, "
                f"epochs={self.epochs!r}, steps={self.steps!r}"
            )
        spent, record = _spent(self.continue_from)
        # The model itself is not kept.
        self._keep(spent=spent, spent_record=record, continue_from=None)
        require_one_of("earlier_noise", self.earlier_noise, EARLIER_NOISE)
        if self.noise == INDEPENDENT:
            self._require_no_bands()
        given = self.noise_multiplier
        if given is not None and not is_schedule(given):
            without = " or a schedule: without noise nothing is private"
            self._set(positive_number, "noise_multiplier", without)

    @property
    def examples(self) -> int:
        """How many examples are used."""
        return self.samples if self.users is None else self.users.count

    @property
    def planned_steps(self) -> int | None:
        """The number of steps that are planned, or None."""
        if self.epochs is None:
            return self.steps
        return self.epochs * math.ceil(self.examples / self.batch_size)

    def with_batch_size(self, batch_size: int) -> "Settings":
        """Return the same settings with batches of another size."""
        other = copy.copy(self)
        other._keep(batch_size=batch_size)
        other._check_batch_size()
        return other

    def _keep(self, **values):
        """Set fields, as only this class does, before anyone sees it."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _set(self, check, name, *more):
        """Set a field to what a check of its value returns."""
        self._keep(**{name: check(name, getattr(self, name), *more)})

    def _warn_of_delta(self):
        limit = 1 / self.examples
        if self.delta >= limit:
            warn_user(
                "`delta` expected well below 1 / samples, which is "
                f"{limit:.3g}. Received: delta={self.delta}. It would permit "
                "publishing a sample as it is, whatever epsilon is. Take "
                f"{0.1 * limit:.1g} or less."
            )

    def _check_batch_size(self):
        self._set(positive_integer, "batch_size")
        if self.batch_size > self.examples:
            raise ValueError(
                "`batch_size` must be at most the number of examples. "
                f"Received: batch_size={self.batch_size}, with "
                f"{self.examples} examples"
            )

    def _require_no_bands(self):
        if self.bands is not None or self.earlier_noise != "kept":
            raise ValueError(
                "`bands` and `earlier_noise` are those of correlated noise. "
                "Expected noise='correlated' with them. Received: "
                f"noise={self.noise!r}, bands={self.bands!r}, "
                f"earlier_noise={self.earlier_noise!r}"
            )
        if self.sampling == "cyclic":
            raise ValueError(
                "With independent noise no groups take turns. Expected "
                "sampling='poisson', or noise='correlated'. Received: "
                "sampling='cyclic'"
            )


def _sampling(value, noise):
    """Return one of `SAMPLINGS`, by default what goes with a noise."""
    advice = " How much there is, a number, is `noise_multiplier`."
    require_one_of("noise", noise, NOISES, advice=advice)
    if value is None:
        return "poisson" if noise == INDEPENDENT else "cyclic"
    require_one_of("sampling", value, SAMPLINGS)
    return value


def _spent(model):
    """Return the phases and the record of a private model; of None none."""
    if model is None:
        return (), None
    ledger = ledger_of(model)
    if ledger is None:
        raise ValueError(
            "`continue_from` must be a model that was trained privately. "
            f"Received: continue_from={model!r}"
        )
    return ledger.spent, ledger.record()
