"""Epsilon of private training, by dp-accounting.

The privacy loss distribution is used where it takes the event, Rényi
differential privacy otherwise.
"""

import collections
import functools
import math

import numpy as np

#: Up to so many different noise multipliers are composed exactly.
_MOST_DIFFERENT = 32
#: With less noise a distribution takes gigabytes, and epsilon is hundreds.
_LEAST_NOISE = 0.1
#: The interval at which dp-accounting tells losses apart, and the one for
#: cases in which a step alone would take a minute; a coarser one gives a
#: larger epsilon.
_FINE, _COARSE = 1e-4, 1e-2


def library():
    """Import dp-accounting.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import dp_accounting
        import dp_accounting.dp_event
        import dp_accounting.pld.privacy_loss_distribution
        import dp_accounting.rdp
    except ImportError as error:
        raise ImportError(
            "Private training counts epsilon with dp-accounting, which is not "
            "installed. Run: pip install 'keras-pergrad[privacy]'"
        ) from error
    return dp_accounting


def relation(mechanism):
    """Return how the data sets of a mechanism's guarantee differ, in a word.

    "add_or_remove": by one unit more or less; "replace": one unit is exchanged
    for another, and their number is known; "blank": one unit is exchanged for
    a blank that takes its place in the order.
    """
    if mechanism.sampling == "shuffled":
        return "blank"
    fixed = mechanism.sampling == "fixed" and not mechanism.is_full_batch
    return "replace" if fixed else "add_or_remove"


def relation_of(phases):
    """Return the relation that holds for several phases together.

    Args:
        phases: (`Mechanism`, steps) of each.

    Raises:
        ValueError: there is none.
    """
    found = {relation(mechanism) for mechanism, steps in phases if steps}
    if found == {"add_or_remove", "blank"}:
        # Poisson sampling loses as much if a blank replaces an example.
        return "blank"
    if len(found) > 1:
        raise ValueError(
            "Phases with sampling='fixed' guarantee that one example may be "
            "exchanged for another, those with 'poisson' or 'shuffled' that "
            "it may be missing, so that no epsilon holds for both. Expected "
            "one of these kinds for all phases of a model. Received: "
            f"{[mechanism.sampling for mechanism, _ in phases]}"
        )
    return found.pop() if found else "add_or_remove"


def event_of(mechanism, steps, first=0):
    """Return the `DpEvent` of some steps.

    Args:
        mechanism: a `Mechanism`.
        steps: how many.
        first: how many steps of the phase came before.
    """
    dp = library()
    if mechanism.sampling == "shuffled":
        counts = _by_epoch(mechanism, steps)
    else:
        counts = collections.Counter(mechanism.noise(first, steps))
    return dp.ComposedDpEvent(
        [
            dp.SelfComposedDpEvent(_event_of_step(mechanism, noise), count)
            for noise, count in sorted(counts.items())
        ]
    )


def _by_epoch(mechanism, steps):
    """Count the epochs that have begun, by the smallest noise in each.

    In an epoch every example is in one batch: only the noise of that batch
    hides it. No amplification by sampling is claimed.
    """
    length = mechanism.steps_per_epoch
    noise = mechanism.noise(0, -(-steps // length) * length)
    return collections.Counter(noise.reshape(-1, length).min(axis=1))


def _event_of_step(mechanism, noise):
    dp, noise = library(), float(noise)
    if mechanism.sampling == "shuffled" or mechanism.is_full_batch:
        return dp.GaussianDpEvent(noise / mechanism.examples_per_user)
    if mechanism.sampling == "fixed":
        return dp.SampledWithoutReplacementDpEvent(
            mechanism.examples,
            mechanism.batch_size,
            dp.GaussianDpEvent(noise / _replaced_sensitivity()),
        )
    if mechanism.examples_per_user > 1:
        return _event_of_user(mechanism, noise)
    return dp.PoissonSampledDpEvent(mechanism.rate, dp.GaussianDpEvent(noise))


def _event_of_user(mechanism, noise):
    """Return the event of a step in which a user has several examples.

    How many are in a batch is binomial, so a user's effect is a mixture
    (Charles et al., "Fine-tuning large language models with user-level
    differential privacy", arXiv 2407.07737).
    """
    from scipy import stats

    most = mechanism.examples_per_user
    numbers = np.arange(most + 1)
    chances = stats.binom.pmf(numbers, most, mechanism.rate)
    return library().dp_event.MixtureOfGaussiansDpEvent(
        noise,
        tuple(float(k) for k in numbers),
        tuple(float(p) for p in chances),
    )


@functools.cache
def _replaced_sensitivity():
    """Return the sensitivity to an exchange, in dp-accounting's unit.

    Exchanging a gradient moves the sum by twice the clip norm. dp-accounting
    asks for noise over the clip norm, but takes it as noise over the
    sensitivity (google/differential-privacy#378); if that changes, this
    function detects it.
    """
    dp = library()
    event = dp.GaussianDpEvent(1.0)

    def spent(relation, event):
        accountant = dp.rdp.RdpAccountant(neighboring_relation=relation)
        return accountant.compose(event).get_epsilon(1e-5)

    whole = dp.SampledWithoutReplacementDpEvent(1, 1, event)
    replaced = spent(dp.NeighboringRelation.REPLACE_ONE, whole)
    removed = spent(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, event)
    return 2.0 if abs(replaced - removed) < 1e-6 else 1.0


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
    if relation_of(phases) == "replace" or different > _MOST_DIFFERENT:
        return "RDP"
    if least < _LEAST_NOISE:
        return "RDP"
    return "PLD"


@functools.lru_cache(maxsize=4096)
def epsilon_of(phases, delta, interval=None):
    """Return the epsilon that was spent, by dp-accounting.

    Args:
        phases: a tuple of (`Mechanism`, steps).
        delta: the probability with which epsilon need not hold.
        interval: how finely losses are told apart; a coarser one is faster
            and gives a slightly larger epsilon. None: as dp-accounting does;
            a coarse one where several examples are of one user.
    """
    phases = tuple((m, steps) for m, steps in phases if steps)
    if not phases:
        return 0.0
    if accountant_of(phases) == "PLD":
        return float(_distribution(phases, interval)(delta))
    dp = library()
    relations = {
        "add_or_remove": dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace": dp.NeighboringRelation.REPLACE_ONE,
        "blank": dp.NeighboringRelation.REPLACE_SPECIAL,
    }
    accountant = dp.rdp.RdpAccountant(
        neighboring_relation=relations[relation_of(phases)]
    )
    for mechanism, steps in phases:
        accountant.compose(event_of(mechanism, steps))
    return float(accountant.get_epsilon(delta))


def _distribution(phases, interval):
    """Return epsilon as a function of delta, from the loss distribution.

    It does what `PLDAccountant` does, but keeps the distribution of one step
    from one epoch to the next, since this takes most of the time.
    """
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
    """Return how many steps of a phase a budget is enough for.

    Args:
        before: phases before, a tuple of (`Mechanism`, steps).
        mechanism: the `Mechanism` of the phase.
        target: the budget for epsilon.
        delta: as for `epsilon_of`.
        least, most: the range to search; the budget is taken to be enough for
            `least` steps, or they have been done.
    """

    def fits(steps):
        return epsilon_of((*before, (mechanism, steps)), delta) <= target

    if fits(most):
        return most
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least
