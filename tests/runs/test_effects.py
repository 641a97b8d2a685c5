import numpy as np
import pytest

from keras_pergrad.runs.effects import _f_test, compute_effects
from keras_pergrad.runs.grouping import Grouping

DIRECTIONS = 40


def _effects(runs, by="device", shift=0.0, seeds=1.0, repeats=0.1, random=0):
    """Runs as (device, seed) at places whose distances are known."""
    random = np.random.default_rng(random)
    spread = np.sqrt(DIRECTIONS)
    of_seed = random.normal(size=(100, DIRECTIONS)) * seeds / spread
    places = []
    for device, seed in runs:
        place = repeats * random.normal(size=DIRECTIONS) / spread
        place += 0 if seed is None else of_seed[seed]
        place[0] += shift * (device == "METAL")
        places.append(place)
    places = np.array(places)
    apart = ((places[:, None] - places[None]) ** 2).sum(-1)
    infos = [{"device": d, "seed": s} for d, s in runs]
    return compute_effects(apart, Grouping(infos, by), by)


BOTH = ("CPU", "METAL")


@pytest.mark.parametrize("copies", [2, 4])
def test_devices_differ_by_four_times_what_repeats_differ_by(copies):
    runs = [(d, s) for d in BOTH for s in (1, 2, 3) for _ in range(copies)]
    # √(shift² + 2 · 0.1²) is 4 · √(2 · 0.1²)
    (found,) = _effects(runs, shift=0.1 * np.sqrt(2 * 15))
    assert found.yardstick == "repeats"
    assert found.paired
    assert found.ratio == pytest.approx(4, rel=0.15)
    assert found.real
    assert found.counts == (3 * copies, 3 * copies)


def test_three_and_three_repeats_of_one_seed_are_enough():
    runs = [(d, 1) for d in BOTH for _ in range(3)]
    (found,) = _effects(runs, shift=0.5)
    assert found.ratio == pytest.approx(3.7, rel=0.2)
    assert found.real
    (found,) = _effects(runs, shift=0.0)
    assert found.ratio == pytest.approx(1, abs=0.1)
    assert not found.real


def test_no_difference_beyond_seed_noise():
    runs = [(d, s) for d in BOTH for s in range(4)]
    (found,) = _effects(runs, shift=0.3, repeats=0.0)
    assert found.yardstick == "seeds"
    assert found.paired
    assert found.ratio == pytest.approx(0.3 / np.sqrt(2), rel=0.15)
    assert not found.real
    # With other seeds on each side the shift drowns, too.
    runs = [("CPU", s) for s in range(4)] + [("METAL", s + 9) for s in range(4)]
    (found,) = _effects(runs, shift=0.3, repeats=0.0)
    assert not found.paired
    assert found.yardstick == "seeds"
    assert not found.real
    (found,) = _effects(runs, shift=9.0, repeats=0.0)
    assert found.real


def test_repeats_of_a_seed_do_not_pose_as_seeds():
    """Two seeds a side, each many times: still two draws against two."""
    runs = [("CPU", s) for s in (0, 1) for _ in range(9)]
    runs += [("METAL", s) for s in (2, 3) for _ in range(9)]
    (found,) = _effects(runs)
    assert found.yardstick == "seeds"
    assert found.floor == pytest.approx(np.sqrt(2), rel=0.3)
    assert not found.real


def test_group_and_seed_are_not_confused():
    runs = [("CPU", 1)] * 3 + [("METAL", 2)] * 3
    (found,) = _effects(runs)
    assert found.confounded
    assert not found.real
    assert found.distance == pytest.approx(np.sqrt(2), rel=0.3)


def test_without_a_second_run_there_is_no_yardstick():
    (found,) = _effects([("CPU", 1), ("METAL", 1)], shift=1.0)
    assert found.yardstick is None
    assert np.isnan(found.ratio)
    assert not found.confounded
    assert not found.real


def test_bitwise_equal_repeats():
    runs = [(d, 1) for d in BOTH for _ in range(2)]
    (found,) = _effects(runs, shift=1e-6, repeats=0.0)
    assert np.isinf(found.ratio)
    assert found.real
    (found,) = _effects(runs, repeats=0.0)
    assert found.ratio == 1
    assert not found.real


def test_unknown_seeds_are_the_yardstick_of_runs():
    runs = [(d, None) for d in BOTH for _ in range(6)]
    (found,) = _effects(runs, shift=1.0, repeats=1.0)
    assert found.yardstick == "runs"
    assert found.real


def test_seeds_against_repeats():
    runs = [("CPU", s) for s in (1, 1, 1, 2, 2, 2, 3, 3, 3)]
    found = _effects(runs, by="seed")
    assert len(found) == 3
    assert all(e.yardstick == "repeats" and e.real for e in found)
    ratios = [e.ratio for e in found]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] == pytest.approx(10, rel=0.3)


@pytest.mark.parametrize(
    "runs",
    [
        [(d, 1) for d in BOTH for _ in range(3)],
        [(d, None) for d in BOTH for _ in range(5)],
        [(d, s) for d in BOTH for s in (1, 2) for _ in range(2)],
    ],
)
def test_chance_alone_seldom_makes_a_difference(runs):
    """At most 5 % of 300 draws, and what 300 draws leave open."""
    found = [_effects(runs, repeats=1.0, random=k)[0] for k in range(300)]
    assert np.mean([e.real for e in found]) < 0.05 + 2.5 * np.sqrt(0.05 / 300)


def test_a_distance_that_is_unknown_gives_no_probability():
    apart = np.full((4, 4), np.nan)
    side = np.array([False, False, True, True])
    infos = [{"device": BOTH[s], "seed": 1} for s in side.astype(int)]
    (found,) = compute_effects(apart, Grouping(infos, "device"), "device")
    assert np.isnan(found.ratio)
    assert not found.real
    assert _f_test(np.zeros((4, 4)), side, np.zeros(4)) is None


def _all_but(count, lost):
    apart = np.array(
        [[abs(a - b) * 0.01 for a in range(count)] for b in range(count)]
    )
    apart[lost] = apart[:, lost] = np.nan
    return apart


def test_a_run_without_a_distance_is_left_out():
    """The others have their effect, and its probability."""
    infos = [{"device": BOTH[k // 4], "seed": 1} for k in range(8)]
    related = Grouping(infos, "device")
    (found,) = compute_effects(_all_but(8, [2, 5]), related, "device")
    assert found.counts == (4, 4)
    assert found.yardstick == "repeats"
    assert found.probability is not None
    (found,) = compute_effects(_all_but(8, [4, 5, 6, 7]), related, "device")
    assert np.isnan(found.distance)
    assert not found.real


def test_repeats_without_a_distance_are_no_yardstick():
    """Seeds are, where there are some."""
    infos = [{"device": d, "seed": s} for d in BOTH for s in (0, 1, 2)]
    infos.append({"device": "METAL", "seed": 2})
    (found,) = compute_effects(
        _all_but(7, 6), Grouping(infos, "device"), "device"
    )
    assert found.yardstick == "seeds"
    assert np.isfinite(found.ratio)


def test_what_chance_makes_is_unknown_where_a_distance_is():
    """Repeats of which two share no step."""
    apart = _all_but(6, [])
    apart[0, 1] = apart[1, 0] = np.nan
    infos = [{"device": BOTH[k // 3], "seed": 1} for k in range(6)]
    (found,) = compute_effects(apart, Grouping(infos, "device"), "device")
    assert found.ratio > 1
    assert found.probability is None
    assert not found.real


def test_what_else_differs_is_said():
    """Metal on a Mac against a CPU elsewhere: is it the device?"""
    apart = np.ones((4, 4)) - np.eye(4)
    infos = [
        {"device": device, "machine": machine, "seed": 1, "optimizer": opt}
        for device, machine, opt in (
            ("CPU", "linux", {"lr": 0.1}),
            ("CPU", "linux", {"lr": 0.2}),
            ("METAL", "mac", {"lr": 0.2}),
            ("METAL", "mac", {"lr": 0.2}),
        )
    ]
    (found,) = compute_effects(apart, Grouping(infos, "device"), "device")
    assert found.besides == ["machine"]
    infos[1]["machine"] = "mac"
    (found,) = compute_effects(apart, Grouping(infos, "device"), "device")
    assert found.besides == []
