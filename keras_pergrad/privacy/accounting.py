"""Epsilon of private training, by dp-accounting.

The privacy loss distribution is used where it takes the event, Rényi
differential privacy otherwise.
"""

import functools
import math

from keras_pergrad.privacy.batch_selection import ADD_OR_REMOVE, BLANK, REPLACE
from keras_pergrad.privacy.dp_events import library

#: Up to so many different noise multipliers are composed exactly.
_MOST_DIFFERENT = 32
#: With less noise a distribution takes gigabytes, and epsilon is hundreds.
_LEAST_NOISE = 0.1
#: The interval at which dp-accounting tells losses apart, and the one for
#: cases in which a step alone would take a minute; a coarser one gives a
#: larger epsilon.
_FINE, _COARSE = 1e-4, 1e-2


def relation_of(phases):
    """Return the relation that holds for phases, (`Mechanism`, steps) each."""
    relations = {m.selection.relation(m) for m, steps in phases if steps}
    if relations == {ADD_OR_REMOVE, BLANK}:
        # Poisson sampling loses as much if a blank replaces an example.
        return BLANK
    if len(relations) > 1:
        raise ValueError(
            "Phases with sampling='fixed' guarantee that one example may be "
            "exchanged for another, those with 'poisson' or 'shuffled' that "
            "it may be missing, so that no epsilon holds for both. Expected "
            "one of these kinds for all phases of a model. Received: "
            f"{[mechanism.sampling for mechanism, _ in phases]}"
        )
    return relations.pop() if relations else ADD_OR_REMOVE


def event_of(mechanism, steps):
    """Return the `DpEvent` of the first steps of a phase."""
    dp, selection = library(), mechanism.selection
    counts = selection.noises(mechanism, steps)
    return dp.ComposedDpEvent(
        [
            dp.SelfComposedDpEvent(selection.event(mechanism, noise), count)
            for noise, count in sorted((float(n), k) for n, k in counts.items())
        ]
    )


def accountant_of(phases):
    """Return how epsilon is computed for some phases: "PLD" or "RDP"."""
    different = sum(
        len(event_of(mechanism, steps).events)
        for mechanism, steps in phases
        if steps
    )
    least = min(
        (m.noise(0, steps).min() for m, steps in phases if steps), default=1.0
    )
    if relation_of(phases) == REPLACE or different > _MOST_DIFFERENT:
        return "RDP"
    if least < _LEAST_NOISE:
        return "RDP"
    return "PLD"


@functools.lru_cache(maxsize=4096)
def epsilon_of(phases, delta, interval=None):
    """Return the epsilon that phases spent, of (`Mechanism`, steps) each."""
    # `interval` is how finely losses are told apart; a coarser one is faster
    # and gives a slightly larger epsilon.
    phases = tuple((m, steps) for m, steps in phases if steps)
    if not phases:
        return 0.0
    if accountant_of(phases) == "PLD":
        return float(_distribution(phases, interval)(delta))
    dp = library()
    relations = {
        ADD_OR_REMOVE: dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        REPLACE: dp.NeighboringRelation.REPLACE_ONE,
        BLANK: dp.NeighboringRelation.REPLACE_SPECIAL,
    }
    accountant = dp.rdp.RdpAccountant(
        neighboring_relation=relations[relation_of(phases)]
    )
    for mechanism, steps in phases:
        accountant.compose(event_of(mechanism, steps))
    return float(accountant.get_epsilon(delta))


def _distribution(phases, interval):
    """Return epsilon as a function of delta, from the loss distribution."""
    # As `PLDAccountant` does, but the distribution of one step is kept from
    # one epoch to the next, since this takes most of the time.
    if interval is None:
        users = any(m.examples_per_user > 1 for m, _ in phases)
        interval = _COARSE if users else _FINE
    parts = [
        _of_part(part.event, part.count, interval)
        for mechanism, steps in phases
        for part in event_of(mechanism, steps).events
    ]
    total = functools.reduce(lambda a, b: a.compose(b), parts)
    return total.get_epsilon_for_delta


def _of_part(event, count, interval):
    if type(event).__name__ == "GaussianDpEvent":
        noise = event.noise_multiplier / math.sqrt(count)
        return _of_step(type(event)(noise), interval)
    return _of_step(event, interval).self_compose(count)


@functools.lru_cache(maxsize=64)
def _of_step(event, interval):
    """Return the distribution of the privacy loss of one event."""
    made = library().pld.privacy_loss_distribution
    kind = type(event).__name__
    if kind == "MixtureOfGaussiansDpEvent":
        return made.from_mixture_gaussian_mechanism(
            standard_deviation=event.standard_deviation,
            sensitivities=event.sensitivities,
            sampling_probs=event.sampling_probs,
            value_discretization_interval=interval,
        )
    rate = 1.0
    if kind == "PoissonSampledDpEvent":
        rate, event = event.sampling_probability, event.event
    return made.from_gaussian_mechanism(
        standard_deviation=event.noise_multiplier,
        sampling_prob=rate,
        value_discretization_interval=interval,
    )


def most_steps(before, mechanism, target, delta, least, most):
    """Return how many steps of a phase a budget allows, `least` to `most`."""

    def fits(steps):
        return epsilon_of((*before, (mechanism, steps)), delta) <= target

    if fits(most):
        return most
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least
