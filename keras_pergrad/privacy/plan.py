"""The plan of private training: what follows from its arguments."""

import dataclasses
import math
from typing import Any

from keras_pergrad.aggregations.clipping import ClippedMean, is_schedule
from keras_pergrad.common.registry import serialize
from keras_pergrad.privacy.accounting import compute_epsilon
from keras_pergrad.privacy.calibration import calibrate_noise
from keras_pergrad.privacy.clipping_variants import (
    AdaptiveClippedMean,
    AutomaticClippedMean,
)
from keras_pergrad.privacy.correlated_noise import make_strategy
from keras_pergrad.privacy.mechanism import (
    BOUNDING,
    Clipping,
    Mechanism,
    NoiseSchedule,
)
from keras_pergrad.privacy.selections import SELECTIONS
from keras_pergrad.privacy.settings import (
    EARLIER_NOISE,
    INDEPENDENT,
    Settings,
)
from keras_pergrad.privacy.users import privacy_unit

#: The clippings that are known to keep gradients within `clip_norm`.
_KNOWN = ClippedMean, AutomaticClippedMean, AdaptiveClippedMean
#: The numbers of bands that are tried where none is given.
_BANDS = (1, 2, 4, 8, 16, 32)
#: The noise of a search is calibrated to slightly less than the budget, so that
#: one that is resumed on another machine keeps to it in spite of rounding.
_SEARCH_MARGIN = 1e-6


@dataclasses.dataclass(frozen=True)
class Plan:
    """What follows from `Settings`.

    Attributes:
        mechanism: the numbers that epsilon depends on.
        clipping: the aggregation that clips and adds the noise.
    """

    mechanism: Mechanism
    clipping: ClippedMean

    @classmethod
    def of(cls, settings: Settings) -> "Plan":
        """Choose what was not given; refuse what does not fit together."""
        strategy = _choose_strategy(settings)
        noise: Any = settings.noise_multiplier
        if noise is None:
            noise = _choose_noise(settings, strategy)
        clipping = _configure_clipping(settings, noise)
        recorded = NoiseSchedule.of(noise) if is_schedule(noise) else noise
        mechanism = _mechanism(
            settings, recorded, strategy, clipping=Clipping.of(clipping)
        )
        _require_budget(settings, mechanism)
        return cls(mechanism, clipping)


def _mechanism(settings, noise, strategy, **others):
    """Return the `Mechanism` with a noise and a strategy."""
    return Mechanism(
        settings.sampling,
        settings.examples,
        settings.batch_size,
        noise_multiplier=noise,
        examples_per_user=settings.samples_per_user or 1,
        unit=privacy_unit(settings.user_ids),
        strategy=strategy,
        augmentations=settings.augmentations or 1,
        **{"search": settings.search, **others},
    )


def _choose_strategy(settings):
    """Return the `Strategy` of correlated noise; None if it is independent."""
    if settings.noise == INDEPENDENT:
        return None
    kind = EARLIER_NOISE[settings.earlier_noise]
    _require_spaced_batches(settings, kind)
    steps, bands = settings.planned_steps, settings.bands
    if steps is None:
        raise ValueError(
            "Correlated noise is planned for a number of steps. Expected "
            "`epochs` or `steps`. Received: neither"
        )
    most = settings.examples // settings.batch_size
    if kind != "banded":
        most = steps
    elif settings.sampling == "ordered":
        most = math.ceil(settings.examples / settings.batch_size)
    if bands is not None:
        if bands > most:
            raise ValueError(
                "An example may be in at most one of as many batches as there "
                f"are bands. Expected `bands` up to {most} with "
                f"sampling={settings.sampling!r}, {settings.examples} "
                f"examples and batch_size={settings.batch_size}. Received: "
                f"bands={bands}"
            )
        return make_strategy(kind, bands, steps)
    if settings.noise_multiplier is not None or settings.target_epsilon is None:
        raise ValueError(
            "The number of bands is chosen for a budget. Expected `bands`, or "
            "`target_epsilon` without `noise_multiplier`. Received: bands=None"
        )
    counts = [b for b in _BANDS if b <= min(most, steps)]
    strategies = [make_strategy(kind, count, steps) for count in counts]

    def error(strategy):
        # Those of a search are best for one training with its budget.
        noise = _calibrate(settings, strategy, is_rough=True, search=None)
        return noise * strategy.mean_error(steps)

    return min(strategies, key=error)


def _require_spaced_batches(settings, kind):
    """Refuse a sampling under which correlated noise is not accounted for."""
    sampling = settings.sampling
    if not SELECTIONS[sampling].supports_correlated_noise:
        raise ValueError(
            "With correlated noise, enough steps must lie between two batches "
            "with the same example. Expected sampling='cyclic' or 'ordered', "
            f"or noise='independent'. Received: sampling={sampling!r}"
        )
    if kind != "banded" and sampling != "ordered":
        raise ValueError(
            "Noise that is drawn again, not kept, is accounted for without "
            "amplification by sampling. Expected sampling='ordered', "
            f"or earlier_noise='kept'. Received: sampling={sampling!r}, "
            f"earlier_noise={settings.earlier_noise!r}"
        )


def _choose_noise(settings, strategy):
    """Return the noise multiplier for which the budget is enough."""
    search = settings.search
    if settings.target_epsilon is None or settings.planned_steps is None:
        raise ValueError(
            "Expected `target_epsilon` with `epochs` or `steps`, for which "
            "the noise is calibrated, or `noise_multiplier`. Received: "
            f"target_epsilon={settings.target_epsilon}, "
            f"steps={settings.planned_steps}"
        )
    try:
        return _calibrate(settings, strategy, search=search)
    except ValueError as error:
        if search is not None and search.score_noise is not None:
            error.add_note("A larger score_noise leaves more of the budget.")
        raise


def _calibrate(settings, strategy, *, search, is_rough=False):
    target = settings.target_epsilon
    return calibrate_noise(
        lambda noise: _mechanism(settings, noise, strategy, search=search),
        settings.planned_steps,
        target if search is None else target * (1 - _SEARCH_MARGIN),
        delta=settings.delta,
        earlier_phases=settings.spent,
        is_rough=is_rough,
    )


def _configure_clipping(settings, noise):
    """Return the clipping, with its noise, seed and batch size set."""
    clipping = settings.clipping
    if clipping is None:
        norm = settings.clip_norm
        clipping: Any = ClippedMean(1.0 if norm is None else norm)
    elif settings.clip_norm is not None:
        raise ValueError(
            "Expected `clip_norm` or `clipping`. Received: both, "
            f"clip_norm={settings.clip_norm!r}, clipping={clipping!r}"
        )
    reserved = ("noise_multiplier", "seed", "expected_batch_size")
    if not isinstance(clipping, ClippedMean) or any(
        getattr(clipping, name) for name in reserved
    ):
        raise ValueError(
            "`clipping` must be a ClippedMean, an AutomaticClippedMean or an "
            "AdaptiveClippedMean, without noise_multiplier, seed and "
            "expected_batch_size, which PrivateTraining gives it. "
            f"Received: clipping={clipping!r}"
        )
    _require_bounding(clipping, settings.vouched)
    if settings.noise != INDEPENDENT and (
        is_schedule(noise) or isinstance(clipping, AdaptiveClippedMean)
    ):
        received = f"noise_multiplier={noise!r}, clipping={clipping!r}"
        raise ValueError(
            "Correlated noise has one multiplier for all steps, and allows no "
            "other noisy query. Expected a number for `noise_multiplier` and a "
            f"ClippedMean or an AutomaticClippedMean. Received: {received}"
        )
    config = {
        **clipping.get_config(),
        # What is added is made of what is accounted for.
        "noise_multiplier": serialize(noise) if is_schedule(noise) else noise,
        "seed": settings.seed,
        "expected_batch_size": settings.batch_size,
    }
    return type(clipping).from_config(config)


def _require_bounding(clipping, vouched):
    """Refuse what may leave a sample's gradient larger than `clip_norm`."""
    kind = type(clipping).__name__
    if set(vouched) - {kind}:
        raise ValueError(
            "`vouched` expected the name of the class of `clipping`, which is "
            f"{kind!r}, or nothing. Received: vouched={list(vouched)}. Layers "
            "and ops are vouched for in model.compile(vouched=[...])."
        )
    if type(clipping) not in _KNOWN and (
        kind not in vouched or kind in BOUNDING
    ):
        raise ValueError(
            f"Nothing proves that {kind} keeps each sample's gradient within "
            f"`clip_norm`. Expected one of {', '.join(BOUNDING)}. If you know "
            f"that it does, add vouched=[{kind!r}] (its name must differ from "
            "these); the statement then says so. Received: clipping="
            f"{clipping!r}, vouched={list(vouched)}"
        )
    if clipping.clip_norm == math.inf:
        raise ValueError(
            "`clip_norm` must be finite: no noise hides a gradient that is "
            "not clipped. Received: clip_norm=inf"
        )


def _require_budget(settings, mechanism):
    """Refuse a budget that is too small: for one step, or for the search."""
    target, search = settings.target_epsilon, settings.search
    if target is None:
        return
    steps = 1 if search is None else settings.planned_steps
    phases = (*settings.spent, (mechanism, steps))
    spent = compute_epsilon(phases, settings.delta)
    if spent <= target:
        return
    if search is None:
        raise ValueError(
            "The budget is not enough for one step. Expected a larger "
            "`target_epsilon` or `noise_multiplier`. Received: "
            f"target_epsilon={target}, while one step spends {spent:.4g}"
        )
    raise ValueError(
        "The budget is not enough for the search. Expected a larger "
        "`target_epsilon` or `noise_multiplier`, or no `noise_multiplier`, "
        f"so that it is calibrated. Received: target_epsilon={target}, "
        f"while the search spends {spent:.4g}"
    )
