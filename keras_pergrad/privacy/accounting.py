"""The epsilon of phases of private training.

The privacy loss distribution is used where it takes the event, Rényi
differential privacy otherwise.
"""

import functools
import math

from keras_pergrad.privacy.mechanism import TRIAL_SHAPES
from keras_pergrad.privacy.selections import (
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
            "Phases with sampling='fixed' hide that one example is replaced "
            "by another; phases with another sampling hide that it is missing, "
            "so that no epsilon holds for both. Expected one of these kinds "
            "for all phases of a model. Received: "
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
    return dp.ComposedDpEvent([_search_event(event, mechanism.search)])


def _search_event(trial_event, search):
    """Return the event of a search that publishes the best of its trials."""
    # Papernot and Steinke, "Hyperparameter tuning with Rényi differential
    # privacy", arXiv 2110.03620.
    dp = import_dp_accounting()
    if search.score_noise is not None:
        # One protected example changes the score by one.
        score_event = dp.GaussianDpEvent(search.score_noise)
        trial_event = dp.ComposedDpEvent([trial_event, score_event])
    return dp.dp_event.RepeatAndSelectDpEvent(
        trial_event,
        search.expected_trials,
        TRIAL_SHAPES[search.distribution],
    )


def accountant_name(phases):
    """Return how epsilon is computed for some phases: "PLD" or "RDP"."""
    started = [(m, steps) for m, steps in phases if steps]
    by_moments = (
        neighboring_relation(phases) == REPLACE
        or any(m.search for m, _ in started)
        or any(m.noise(0, steps).min() < _MIN_PLD_NOISE for m, steps in started)
        or sum(len(phase_event(*phase).events) for phase in started)
        > _MAX_MULTIPLIERS
    )
    return "RDP" if by_moments else "PLD"


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
    relation = dp.NeighboringRelation[neighboring_relation(phases)]
    accountant = dp.rdp.RdpAccountant(neighboring_relation=relation)
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
    earlier_phases, mechanism, target, *, delta, min_steps, max_steps
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
