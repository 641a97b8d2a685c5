"""Epsilon is what dp-accounting says, for every kind of sampling."""

import dataclasses

import dp_accounting as dp
import keras
import numpy as np
import pytest
from dp_accounting import pld, rdp

from keras_pergrad.privacy import accounting
from keras_pergrad.privacy.calibration import calibrate_noise
from keras_pergrad.privacy.mechanism import Mechanism, NoiseSchedule
from keras_pergrad.privacy.selections import BLANK


def mechanism(sampling="poisson", noise=3.0, batch_size=100):
    return Mechanism(sampling, 1000, batch_size, noise_multiplier=noise)


def with_noise(noise):
    return mechanism(noise=noise)


def poisson(rate=0.1, noise=3.0):
    return dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))


def by_library(*events, accountant=None):
    """The epsilon of events, each with how often it is."""
    accountant = accountant or pld.PLDAccountant()
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(1e-6)


def epsilon(*phases):
    return accounting.compute_epsilon(phases, 1e-6)


@pytest.mark.quick
def test_anchors():
    assert epsilon((mechanism(), 512)) == pytest.approx(3.77, abs=5e-3)
    noise = calibrate_noise(with_noise, 512, 1.0, delta=1e-6)
    assert noise == pytest.approx(9.66, abs=5e-3)
    assert 0.999 < epsilon((mechanism(noise=noise), 512)) <= 1


wide, narrow, full = (dp.GaussianDpEvent(v) for v in (3.0, 3.0 / 2, 20.0))
steps_of_noise = keras.optimizers.schedules.PiecewiseConstantDecay
falling = NoiseSchedule.of(steps_of_noise([9], [3.0, 6.0]))
PHASES = {
    "a step": ([(mechanism(), 1)], [(poisson(), 1)]),
    "steps": ([(mechanism(), 40)], [(poisson(), 40)]),
    "full batches": ([(mechanism("poisson", 20.0, 1000), 50)], [(full, 50)]),
    "full, fixed": ([(mechanism("fixed", 20.0, 1000), 50)], [(full, 50)]),
    # One look an epoch of ten batches.
    "shuffled, 1": ([(mechanism("shuffled"), 1)], [(wide, 1)]),
    "shuffled, 10": ([(mechanism("shuffled"), 10)], [(wide, 1)]),
    "shuffled, 11": ([(mechanism("shuffled"), 11)], [(wide, 2)]),
    "two phases": (
        [(mechanism(), 20), (mechanism(noise=5.0, batch_size=50), 30)],
        [(poisson(), 20), (poisson(0.05, 5.0), 30)],
    ),
    "a phase not begun": (
        [(mechanism(), 20), (mechanism("shuffled"), 0)],
        [(poisson(), 20)],
    ),
    "a schedule": (
        [(mechanism(noise=falling), 15)],
        [(poisson(), 10), (poisson(0.1, 6.0), 5)],
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", PHASES)
def test_epsilon_is_that_of_the_library(name):
    phases, events = PHASES[name]
    assert epsilon(*phases) == pytest.approx(by_library(*events), abs=1e-6)
    assert accounting.accountant_name(tuple(phases)) == "PLD"


def test_fixed():
    # An example exchanged for another moves the sum by twice the clip norm,
    # and the accountant divides by how far the sum moves.
    def replaced(examples, noise, count):
        event = dp.SampledWithoutReplacementDpEvent(examples, *noise)
        relation = dp.NeighboringRelation.REPLACE_ONE
        accountant = rdp.RdpAccountant(neighboring_relation=relation)
        return by_library((event, count), accountant=accountant)

    found = epsilon((mechanism("fixed"), 30))
    expected = replaced(1000, (100, narrow), 30)
    assert found == pytest.approx(expected, abs=1e-6)
    # Sampled with certainty, its bound is that of a sum moved by 2C.
    two = dp.GaussianDpEvent(2.0)
    expected = by_library((two, 1), accountant=rdp.RdpAccountant())
    assert replaced(10, (10, two), 1) == pytest.approx(expected)


def test_phases_of_different_guarantees_are_refused():
    with pytest.raises(ValueError, match="no epsilon holds for both"):
        epsilon((mechanism(), 1), (mechanism("fixed"), 1))
    phases = (mechanism(), 1), (mechanism("shuffled"), 1)
    assert accounting.neighboring_relation(phases) == BLANK


def test_users():
    one = mechanism(batch_size=50)
    several = dataclasses.replace(one, examples_per_user=3)
    alone = epsilon((one, 10))
    # More than one example, less than three that always come together.
    together = by_library((poisson(1 - 0.95**3, 1.0), 10))
    assert alone < epsilon((several, 10)) < together


def test_schedules_of_many_values_are_counted_by_rdp():
    now = mechanism(noise=falling)
    np.testing.assert_allclose(now.noise(8, 4), [3, 3, 6, 6])
    smooth = keras.optimizers.schedules.ExponentialDecay(3.0, 10, 1.1)
    now = mechanism(noise=NoiseSchedule.of(smooth))
    assert accounting.accountant_name(((now, 34),)) == "RDP"
    events = [(poisson(0.1, noise), 1) for noise in now.noise(0, 34)]
    expected = by_library(*events, accountant=rdp.RdpAccountant())
    assert epsilon((now, 34)) == pytest.approx(expected, abs=1e-6)


def test_most_steps():
    now = mechanism()
    target = epsilon((now, 23))
    cases = (target, 64, 23), (target, 8, 8), (1e-3, 8, 0)
    for budget, most, expected in cases:
        given = {"delta": 1e-6, "min_steps": 0, "max_steps": most}
        assert accounting.affordable_steps((), now, budget, **given) == expected


@pytest.mark.parametrize(
    "sampling", [pytest.param("fixed", marks=pytest.mark.slow), "shuffled"]
)
def test_calibrated_noise_is_just_enough(sampling):
    def with_noise(noise):
        return mechanism(sampling, noise, 250)

    noise = calibrate_noise(with_noise, 4, 4.0, delta=1e-5)
    found = accounting.compute_epsilon(((with_noise(noise), 4),), 1e-5)
    assert 0.998 * 4 < found <= 4


def test_calibration_after_a_phase():
    before = ((mechanism(), 20),)
    spent = epsilon(*before)
    given = {"delta": 1e-6, "earlier_phases": before}
    noise = calibrate_noise(with_noise, 10, spent + 0.3, **given)
    found = epsilon(*before, (mechanism(noise=noise), 10))
    assert spent + 0.29 < found <= spent + 0.3
    with pytest.raises(ValueError, match=r"after epsilon=.*, spent before"):
        calibrate_noise(with_noise, 10, spent, **given)
