"""Epsilon for a noise multiplier, and the multiplier for an epsilon.

The privacy loss distribution is used where it takes the event, Rényi
differential privacy otherwise.
"""

import dataclasses
import functools
import math

from keras_pergrad.privacy.mechanism import (
    ADD_OR_REMOVE,
    BLANK,
    REPLACE,
    library,
)

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


# The noise multiplier that a budget asks for.


_LOWEST_NOISE, _MOST_NOISE = 0.1, 1e6
#: How finely losses are told apart during the search.
_ROUGH, _CLOSE = 1e-2, 1e-3


def calibrated(mechanism, steps, target, delta, before=()):
    """Return the least noise multiplier for which a budget is enough."""

    def gap(noise, interval=None):
        now = dataclasses.replace(mechanism, noise_multiplier=float(noise))
        phases = (*before, (now, steps))
        return epsilon_of(phases, delta, interval) - target

    low, high = 0.5, 1.0
    while gap(high, _ROUGH) > 0:
        low, high = high, high * 2
        if high > _MOST_NOISE:
            after = ""
            if before:
                already = epsilon_of(tuple(before), delta)
                after = f" after epsilon={already:.4g}, spent before"
            raise ValueError(
                f"No noise is enough for this budget{after}. Received: "
                f"target_epsilon={target}, delta={delta}, {steps} steps of "
                f"batches of {mechanism.batch_size}. Ask for a larger "
                "epsilon, or for fewer steps."
            )
    # Downwards in small steps: very little noise takes long to account for.
    while low > _LOWEST_NOISE and gap(low, _ROUGH) <= 0:
        low, high = low / 2, low
    # The intervals get finer, since the finest takes long. Without
    # distributions they make no difference.
    now = dataclasses.replace(mechanism, noise_multiplier=high)
    fine = accountant_of((*before, (now, steps))) == "PLD"
    stages = [(_ROUGH, 2e-2), (_CLOSE, 1e-4), (None, 1e-4)]
    for interval, width in stages if fine else [(None, 1e-4)]:

        def spent(noise, interval=interval):
            return gap(noise, interval)

        if interval is None and -1e-4 * target < spent(high) <= 0:
            break
        low, high = _around(spent, low, high, width)
        low, high = _narrowed(spent, low, high, width)
    return high


def _around(gap, low, high, width):
    """Return an interval that contains the solution, from one that is near."""
    factor = 1 + width
    while low > _LOWEST_NOISE and gap(low) <= 0:
        low, high, factor = low / factor, low, factor**2
    while gap(high) > 0:
        low, high, factor = high, high * factor, factor**2
    return low, high


def _narrowed(gap, low, high, width):
    """Return a narrow interval; the budget is enough at its upper end."""
    from scipy import optimize

    width *= high
    if high - low > width and gap(low) > 0:
        root = optimize.brentq(gap, low, high, xtol=width / 2)
        low, high = root - width / 2, root + width / 2
        while gap(high) > 0:
            low, high = high, high + width
    return low, high
