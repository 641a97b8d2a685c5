"""Epsilon for a noise multiplier, and the multiplier for an epsilon.

The privacy loss distribution is used where it takes the event, Rényi
differential privacy otherwise.
"""

import dataclasses
import functools
import json
import math
from typing import Any

import numpy as np

from keras_pergrad.privacy.mechanism import (
    ADD_OR_REMOVE,
    BLANK,
    REPLACE,
    import_dp_accounting,
)

#: Up to this many different noise multipliers are composed as distributions.
_MAX_MULTIPLIERS = 32
#: Below this noise a distribution takes gigabytes, and epsilon is in the
#: hundreds anyway.
_MIN_PLD_NOISE = 0.1
#: The grid on which dp-accounting rounds losses, and a coarser one for cases in
#: which a single step would take a minute. A coarser grid gives a larger
#: epsilon, never a smaller one.
_FINE_INTERVAL, _COARSE_INTERVAL = 1e-4, 1e-2


def neighboring_relation(phases):
    """Return the relation that holds for phases, (`Mechanism`, steps) each."""
    relations = {m.selection.relation(m) for m, steps in phases if steps}
    if relations == {ADD_OR_REMOVE, BLANK}:
        # Poisson sampling loses as much if a blank replaces an example.
        return BLANK
    if len(relations) > 1:
        raise ValueError(
            "Phases with sampling='fixed' guarantee that one example may be "
            "exchanged for another, those with another sampling that "
            "it may be missing, so that no epsilon holds for both. Expected "
            "one of these kinds for all phases of a model. Received: "
            f"{[mechanism.sampling for mechanism, _ in phases]}"
        )
    return relations.pop() if relations else ADD_OR_REMOVE


def phase_event(mechanism, steps):
    """Return the `DpEvent` of the first steps of a phase."""
    dp, selection = import_dp_accounting(), mechanism.selection
    counts = selection.count_noises(mechanism, steps)
    event = dp.ComposedDpEvent(
        [
            dp.SelfComposedDpEvent(selection.event(mechanism, noise), count)
            for noise, count in sorted((float(n), k) for n, k in counts.items())
        ]
    )
    if not mechanism.search:
        return event
    return dp.ComposedDpEvent(
        [_search_event(event, **json.loads(mechanism.search))]
    )


#: The distributions of a search's number of trials, by their shapes.
TRIAL_SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}


def _search_event(trial_event, expected_trials, distribution, score_noise):
    """Return the event of a search that publishes the best of its trials."""
    # Papernot and Steinke, "Hyperparameter tuning with Rényi differential
    # privacy", arXiv 2110.03620.
    dp = import_dp_accounting()
    if score_noise is not None:  # One protected example changes it by one.
        score_event = dp.GaussianDpEvent(score_noise)
        trial_event = dp.ComposedDpEvent([trial_event, score_event])
    return dp.dp_event.RepeatAndSelectDpEvent(
        trial_event, expected_trials, TRIAL_SHAPES[distribution]
    )


def accountant_name(phases):
    """Return how epsilon is computed for some phases: "PLD" or "RDP"."""
    num_multipliers = sum(
        len(phase_event(mechanism, steps).events)
        for mechanism, steps in phases
        if steps
    )
    min_noise = min(
        (m.noise(0, steps).min() for m, steps in phases if steps), default=1.0
    )
    if (
        neighboring_relation(phases) == REPLACE
        or num_multipliers > _MAX_MULTIPLIERS
        or any(m.search for m, steps in phases if steps)
    ):
        return "RDP"
    if min_noise < _MIN_PLD_NOISE:
        return "RDP"
    return "PLD"


@functools.lru_cache(maxsize=4096)
def compute_epsilon(phases, delta, interval=None):
    """Return the epsilon that phases spent, of (`Mechanism`, steps) each."""
    # `interval` is the grid on which losses are rounded, always up: a coarser
    # one is faster and gives a slightly larger epsilon.
    phases = tuple((m, steps) for m, steps in phases if steps)
    if not phases:
        return 0.0
    return float(epsilon_of_delta(phases, interval)(delta))


def epsilon_of_delta(phases, interval=None):
    """Return epsilon as a function of delta, for phases with steps."""
    if accountant_name(phases) == "PLD":
        return loss_distribution(phases, interval).get_epsilon_for_delta
    dp = import_dp_accounting()
    relations = {
        ADD_OR_REMOVE: dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        REPLACE: dp.NeighboringRelation.REPLACE_ONE,
        BLANK: dp.NeighboringRelation.REPLACE_SPECIAL,
    }
    accountant = dp.rdp.RdpAccountant(
        neighboring_relation=relations[neighboring_relation(phases)]
    )
    for mechanism, steps in phases:
        accountant.compose(phase_event(mechanism, steps))
    return accountant.get_epsilon


def loss_distribution(phases, interval=None):
    """Return the distribution of the privacy loss of phases with steps."""
    # As `PLDAccountant` does, but the distribution of one step is kept from
    # one epoch to the next, since this takes most of the time.
    if interval is None:
        has_users = any(m.examples_per_user > 1 for m, _ in phases)
        interval = _COARSE_INTERVAL if has_users else _FINE_INTERVAL
    distributions = [
        _composed_distribution(event.event, event.count, interval)
        for mechanism, steps in phases
        for event in phase_event(mechanism, steps).events
    ]
    return functools.reduce(lambda a, b: a.compose(b), distributions)


def _composed_distribution(event, count, interval):
    if type(event).__name__ == "GaussianDpEvent":
        # Exact: k Gaussian steps amount to one with the noise over √k.
        noise = event.noise_multiplier / math.sqrt(count)
        return _step_distribution(type(event)(noise), interval)
    return _step_distribution(event, interval).self_compose(count)


@functools.lru_cache(maxsize=64)
def _step_distribution(event, interval):
    """Return the distribution of the privacy loss of one event."""
    pld = import_dp_accounting().pld.privacy_loss_distribution
    event_type = type(event).__name__
    if event_type == "MixtureOfGaussiansDpEvent":
        return pld.from_mixture_gaussian_mechanism(
            standard_deviation=event.standard_deviation,
            sensitivities=event.sensitivities,
            sampling_probs=event.sampling_probs,
            value_discretization_interval=interval,
        )
    rate = 1.0
    if event_type == "PoissonSampledDpEvent":
        rate, event = event.sampling_probability, event.event
    return pld.from_gaussian_mechanism(
        standard_deviation=event.noise_multiplier,
        sampling_prob=rate,
        value_discretization_interval=interval,
    )


def affordable_steps(
    earlier_phases, mechanism, target, delta, min_steps, max_steps
):
    """Return how many of a phase's steps a budget allows, within bounds."""

    def fits(steps):
        return (
            compute_epsilon((*earlier_phases, (mechanism, steps)), delta)
            <= target
        )

    if fits(max_steps):
        return max_steps
    while max_steps - min_steps > 1:
        middle = (min_steps + max_steps) // 2
        min_steps, max_steps = (
            (middle, max_steps) if fits(middle) else (min_steps, middle)
        )
    return min_steps


# The noise multiplier that a budget asks for.


_MIN_NOISE, _MAX_NOISE = 0.1, 1e6
#: The grids of losses during the search: a rough one, then a narrower one.
_SEARCH_INTERVAL, _NARROW_INTERVAL = 1e-2, 1e-3


def calibrate_noise(
    mechanism, steps, target, delta, earlier_phases=(), is_rough=False
):
    """Find the least noise multiplier for which a budget is enough."""

    def excess_epsilon(noise, interval=None):
        candidate = dataclasses.replace(
            mechanism, noise_multiplier=float(noise)
        )
        phases = (*earlier_phases, (candidate, steps))
        return compute_epsilon(phases, delta, interval) - target

    low, high = 0.5, 1.0
    while excess_epsilon(high, _SEARCH_INTERVAL) > 0:
        low, high = high, high * 2
        if high > _MAX_NOISE:
            context = ""
            if earlier_phases:
                spent_epsilon = compute_epsilon(tuple(earlier_phases), delta)
                context = f" after epsilon={spent_epsilon:.4g}, spent before"
            raise ValueError(
                f"No noise is enough for this budget{context}. Received: "
                f"target_epsilon={target}, delta={delta}, {steps} steps of "
                f"batches of {mechanism.batch_size}. Ask for a larger "
                "epsilon, or for fewer steps."
            )
    # Downwards in small steps: very little noise takes long to account for.
    while low > _MIN_NOISE and excess_epsilon(low, _SEARCH_INTERVAL) <= 0:
        low, high = low / 2, low
    # The intervals get finer, since the finest takes long. Without
    # distributions they make no difference.
    candidate = dataclasses.replace(mechanism, noise_multiplier=high)
    uses_pld = accountant_name((*earlier_phases, (candidate, steps))) == "PLD"
    stages = [(_SEARCH_INTERVAL, 2e-2), (_NARROW_INTERVAL, 1e-4), (None, 1e-4)]
    stages = stages if uses_pld else [(None, 1e-4)]
    for interval, width in stages[:2] if is_rough else stages:

        def stage_excess(noise, interval=interval):
            return excess_epsilon(noise, interval)

        # Often the search on the coarser grids has already come close enough.
        if interval is None and -1e-4 * target < stage_excess(high) <= 0:
            break
        low, high = _bracket_root(stage_excess, low, high, width)
        low, high = _narrow_bracket(stage_excess, low, high, width)
    return high


def _bracket_root(excess, low, high, width):
    """Return an interval that contains the solution, from one that is near."""
    factor = 1 + width
    while low > _MIN_NOISE and excess(low) <= 0:
        low, high, factor = low / factor, low, factor**2
    while excess(high) > 0:
        low, high, factor = high, high * factor, factor**2
    return low, high


def _narrow_bracket(excess, low, high, width):
    """Return a narrow interval; the budget is enough at its upper end."""
    from scipy import optimize

    width *= high
    if high - low > width and excess(low) > 0:
        root = optimize.brentq(excess, low, high, xtol=width / 2)
        low, high = root - width / 2, root + width / 2
        # The root is approximate: the upper end must keep to the budget.
        while excess(high) > 0:
            low, high = high, high + width
    return low, high


# The bounds that all pairs of epsilon and delta of a training give together.
#
# Each pair bounds an attacker who tells from the result whether someone's
# example was in the data. If he wrongly says so of a share α of those whose
# examples were not, he rightly says so of at most e^epsilon · α + delta of
# those whose examples were, and of 1 − (1 − α − delta) / e^epsilon.


#: The probability apart from which the Gaussian parameter holds.
MU_DELTA = 1e-10
_DELTAS = tuple(float(f"1e-{k}") for k in range(2, 11))
_FALSE_POSITIVE_RATES = (1e-2, 1e-3, 1e-4, 1e-5)
#: Losses are rounded on coarser grids than for epsilon alone, which takes a
#: tenth of the time and enlarges the bounds in the fourth digit.
_INTERVAL, _ROUGH_INTERVAL, _POINTS = 1e-3, 1e-2, 4001
#: Above it nothing is promised, and the distribution is long.
_MAX_EPSILON = 100.0


@dataclasses.dataclass(frozen=True)
class TradeOff:
    """What is known of a training beside one epsilon.

    Attributes:
        epsilons: pairs (delta, epsilon).
        true_positive_rates: pairs (rate of false positives, the largest rate
            of true positives that an attacker can have).
        mu: the Gaussian parameter; None where it is not known.
    """

    epsilons: tuple[tuple[float, float], ...]
    true_positive_rates: tuple[tuple[float, float], ...]
    mu: float | None


@functools.lru_cache(maxsize=32)
def trade_off(phases: Any) -> TradeOff:
    """Return the `TradeOff` of phases, (`Mechanism`, steps) each."""
    phases = tuple((m, steps) for m, steps in phases if steps)
    if not phases:
        pairs = tuple((rate, rate) for rate in _FALSE_POSITIVE_RATES)
        return TradeOff(tuple((d, 0.0) for d in _DELTAS), pairs, 0.0)
    by_delta = epsilon_of_delta(phases, _ROUGH_INTERVAL)
    is_exact = accountant_name(phases) == "PLD"
    has_curve = is_exact and by_delta(MU_DELTA) <= _MAX_EPSILON
    if has_curve:
        has_users = any(m.examples_per_user > 1 for m, _ in phases)
        interval = _ROUGH_INTERVAL if has_users else _INTERVAL
        losses: Any = loss_distribution(phases, interval)
        by_delta = losses.get_epsilon_for_delta
        epsilons = np.linspace(0, by_delta(MU_DELTA), _POINTS)
        deltas = losses.get_delta_for_epsilon(epsilons)
    else:
        # Above so large an epsilon a few points are enough, and take seconds.
        deltas = np.geomspace(0.5, MU_DELTA, 10 if is_exact else 100)
        epsilons = np.asarray([by_delta(delta) for delta in deltas])
    pairs = ((delta, float(by_delta(delta))) for delta in _DELTAS)
    return TradeOff(
        tuple(pair for pair in pairs if pair[1] < math.inf),
        tuple(
            (rate, true_positive_rate(rate, epsilons, deltas))
            for rate in _FALSE_POSITIVE_RATES
        ),
        gaussian_parameter(epsilons, deltas) if has_curve else None,
    )


def true_positive_rate(rate, epsilons, deltas):
    """Return an attacker's largest rate at a rate of false positives."""
    finite = epsilons <= _MAX_EPSILON
    epsilons, deltas = epsilons[finite], deltas[finite]
    bounds = np.minimum(
        np.exp(epsilons) * rate + deltas,
        1 - np.exp(-epsilons) * (1 - rate - deltas),
    )
    return float(np.clip(np.min(bounds, initial=1.0), rate, 1))


def gaussian_parameter(epsilons, deltas):
    """Return the least mu whose Gaussian curve is nowhere below a curve."""
    # Both deltas are convex functions of x = e^epsilon. Between two points
    # the given one is below its chord, and the Gaussian one above its tangent
    # in their middle: the comparison of both at the points is enough.
    from scipy.special import ndtr

    middle = (epsilons[1:] + epsilons[:-1]) / 2
    x = np.exp(middle)

    def is_enough(mu):
        slope = ndtr(-middle / mu - mu / 2)
        height = ndtr(-middle / mu + mu / 2) - x * slope
        return all(
            np.all(
                deltas[ends]
                <= height - (np.exp(epsilons[ends]) - x) * slope + MU_DELTA
            )
            for ends in (slice(1, None), slice(None, -1))
        )

    low, high = 0.0, 1.0
    while not is_enough(high):
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        mu = (low + high) / 2
        low, high = (low, mu) if is_enough(mu) else (mu, high)
    return high
