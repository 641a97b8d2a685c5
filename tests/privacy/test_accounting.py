"""Epsilon is what dp-accounting says, for every kind of sampling."""

import dp_accounting as dp
import keras
import numpy as np
import pytest
from dp_accounting import pld, rdp

from keras_pergrad.privacy.accounting import (
    accountant_name,
    affordable_steps,
    calibrate_noise,
    compute_epsilon,
    neighboring_relation,
)
from keras_pergrad.privacy.mechanism import Mechanism
from tests.privacy.tiny import schedule_json

NEIGHBOURS = dp.NeighboringRelation


def mechanism(sampling="poisson", noise=3.0, batch_size=100, examples=1000):
    return Mechanism(sampling, examples, batch_size, noise, "")


def by_library(accountant, event, count, delta=1e-6):
    return accountant.compose(event, count).get_epsilon(delta)


def test_anchors():
    assert compute_epsilon(((mechanism(), 512),), 1e-6) == pytest.approx(
        3.77, abs=5e-3
    )
    noise = calibrate_noise(mechanism(), 512, 1.0, 1e-6)
    assert noise == pytest.approx(9.66, abs=5e-3)
    now = mechanism(noise=noise)
    assert 0.999 < compute_epsilon(((now, 512),), 1e-6) <= 1


@pytest.mark.parametrize("steps", [1, 40])
def test_poisson(steps):
    event = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(3.0))
    expected = by_library(pld.PLDAccountant(), event, steps)
    found = compute_epsilon(((mechanism(), steps),), 1e-6)
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_full_batch(sampling):
    now = mechanism(sampling, 20.0, 1000)
    expected = by_library(pld.PLDAccountant(), dp.GaussianDpEvent(20.0), 50)
    found = compute_epsilon(((now, 50),), 1e-6)
    assert found == pytest.approx(expected, abs=1e-6)


def test_fixed():
    # An example exchanged for another moves the sum by twice the clip norm,
    # and the accountant divides by how far the sum moves.
    event = dp.SampledWithoutReplacementDpEvent(
        1000, 100, dp.GaussianDpEvent(3.0 / 2)
    )
    accountant = rdp.RdpAccountant(neighboring_relation=NEIGHBOURS.REPLACE_ONE)
    expected = by_library(accountant, event, 30)
    found = compute_epsilon(((mechanism("fixed"), 30),), 1e-6)
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_replaced_gradient_counts_twice():
    """Sampled with certainty, the bound is that of a sum moved by 2C."""
    event = dp.SampledWithoutReplacementDpEvent(10, 10, dp.GaussianDpEvent(2.0))
    accountant = rdp.RdpAccountant(neighboring_relation=NEIGHBOURS.REPLACE_ONE)
    twice = rdp.RdpAccountant()
    expected = by_library(twice, dp.GaussianDpEvent(2.0), 1)
    assert by_library(accountant, event, 1) == pytest.approx(expected)


@pytest.mark.parametrize(("steps", "epochs"), [(1, 1), (10, 1), (11, 2)])
def test_shuffled_is_one_look_an_epoch(steps, epochs):
    expected = by_library(pld.PLDAccountant(), dp.GaussianDpEvent(3.0), epochs)
    found = compute_epsilon(((mechanism("shuffled"), steps),), 1e-6)
    assert found == pytest.approx(expected, abs=1e-6)
    amplified = compute_epsilon(((mechanism(), steps),), 1e-6)
    assert found > amplified


def test_phases_compose():
    first, second = mechanism(), mechanism(noise=5.0, batch_size=50)
    accountant = pld.PLDAccountant()
    accountant.compose(
        dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(3.0)), 20
    )
    expected = by_library(
        accountant, dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(5.0)), 30
    )
    found = compute_epsilon(((first, 20), (second, 30)), 1e-6)
    assert found == pytest.approx(expected, abs=1e-6)
    both = compute_epsilon(((first, 20), (mechanism("shuffled"), 0)), 1e-6)
    assert both == pytest.approx(compute_epsilon(((first, 20),), 1e-6))


def test_phases_of_different_guarantees_are_refused():
    phases = ((mechanism(), 1), (mechanism("fixed"), 1))
    with pytest.raises(ValueError, match="no epsilon holds for both"):
        compute_epsilon(phases, 1e-6)
    assert neighboring_relation(
        ((mechanism(), 1), (mechanism("shuffled"), 1))
    ) == ("blank")


def test_users():
    several = Mechanism("poisson", 1000, 50, 3.0, "", 3)
    alone = compute_epsilon(((mechanism(batch_size=50), 10),), 1e-6)
    found = compute_epsilon(((several, 10),), 1e-6)
    # More than one example, less than three that always come together.
    together = by_library(
        pld.PLDAccountant(),
        dp.PoissonSampledDpEvent(1 - 0.95**3, dp.GaussianDpEvent(1.0)),
        10,
    )
    assert alone < found < together
    one = Mechanism("poisson", 1000, 50, 3.0, "", 1)
    assert compute_epsilon(((one, 10),), 1e-6) == alone


def test_schedules_of_noise():
    pieces = keras.optimizers.schedules.PiecewiseConstantDecay([9], [3.0, 6.0])
    now = mechanism(noise=schedule_json(pieces))
    np.testing.assert_allclose(now.noise(8, 4), [3, 3, 6, 6])
    accountant = pld.PLDAccountant()
    event = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(3.0))
    accountant.compose(event, 10)
    event = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(6.0))
    expected = by_library(accountant, event, 5)
    found = compute_epsilon(((now, 15),), 1e-6)
    assert found == pytest.approx(expected, abs=1e-6)
    assert accountant_name(((now, 15),)) == "PLD"
    smooth = keras.optimizers.schedules.ExponentialDecay(3.0, 10, 1.1)
    now = mechanism(noise=schedule_json(smooth))
    assert accountant_name(((now, 34),)) == "RDP"
    accountant = rdp.RdpAccountant()
    for noise in now.noise(0, 34):
        event = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(noise))
        accountant.compose(event)
    expected = accountant.get_epsilon(1e-6)
    assert compute_epsilon(((now, 34),), 1e-6) == pytest.approx(
        expected, abs=1e-6
    )


def test_most_steps():
    now = mechanism()
    target = compute_epsilon(((now, 23),), 1e-6)
    assert affordable_steps((), now, target, 1e-6, 0, 64) == 23
    assert affordable_steps((), now, target, 1e-6, 0, 8) == 8
    assert affordable_steps((), now, 1e-3, 1e-6, 0, 8) == 0


@pytest.mark.parametrize(
    "sampling", [pytest.param("fixed", marks=pytest.mark.slow), "shuffled"]
)
def test_calibrated_noise_is_just_enough(sampling):
    now = mechanism(sampling, 0.0, 250)
    noise = calibrate_noise(now, 4, 4.0, 1e-5)
    found = compute_epsilon(((mechanism(sampling, noise, 250), 4),), 1e-5)
    assert 0.998 * 4 < found <= 4


def test_calibration_after_a_phase():
    before = ((mechanism(), 20),)
    spent = compute_epsilon(before, 1e-6)
    noise = calibrate_noise(mechanism(), 10, spent + 0.3, 1e-6, before)
    found = compute_epsilon((*before, (mechanism(noise=noise), 10)), 1e-6)
    assert spent + 0.29 < found <= spent + 0.3
    with pytest.raises(ValueError, match=r"after epsilon=.*, spent before"):
        calibrate_noise(mechanism(), 10, spent, 1e-6, before)
