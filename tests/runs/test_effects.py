import numpy as np
import pytest

from keras_pergrad.runs.effects import _f_test, compute_effects
from keras_pergrad.runs.grouping import Grouping

DIRECTIONS = 40


def _effects(runs, by="device", shift=0.0, *, seeds=1.0, repeats=0.1, random=0):
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


def _each(seeds, copies=1):
    return [(d, s) for d in BOTH for s in seeds for _ in range(copies)]


def _apart(seeds, others, copies=1):
    sides = zip(BOTH, (seeds, others))
    return [(d, s) for d, side in sides for s in side for _ in range(copies)]


# √(shift² + 2 · 0.1²) is 4 · √(2 · 0.1²)
FOUR = {"shift": 0.1 * np.sqrt(2 * 15)}
EQUAL = {"repeats": 0.0}
SMALL = EQUAL | {"shift": 0.3}
OTHERS = _apart(range(4), range(9, 13))
# Runs, how they differ, the reference, the ratio and its error, the answer.
EFFECTS = [
    (_each((1, 2, 3), 2), FOUR, "repeats", 4, 0.15, True),
    (_each((1, 2, 3), 4), FOUR, "repeats", 4, 0.15, True),
    # Three and three repeats of one seed are enough.
    (_each([1], 3), {"shift": 0.5}, "repeats", 3.7, 0.2, True),
    (_each([1], 3), {}, "repeats", 1, 0.1, False),
    (_each(range(4)), SMALL, "seeds", 0.3 / np.sqrt(2), 0.15, False),
    # With other seeds on each side a small shift drowns, too.
    (OTHERS, SMALL, "seeds", 1, 0.3, False),
    (OTHERS, EQUAL | {"shift": 9.0}, "seeds", 6.4, 0.3, True),
    # Two seeds a side, each many times: still two draws against two.
    (_apart((0, 1), (2, 3), 9), {}, "seeds", 1, 0.3, False),
    (_each([1], 2), EQUAL | {"shift": 1e-6}, "repeats", np.inf, 0, True),
    (_each([1], 2), EQUAL, "repeats", 1, 0, False),
    # Seeds that are not known.
    (_each([None], 6), {"shift": 1.0, "repeats": 1.0}, "runs", 1.2, 0.2, True),
]


@pytest.mark.parametrize(
    ("runs", "options", "reference", "ratio", "error", "real"), EFFECTS
)
def test_an_effect_is_judged_by_its_reference(
    runs, options, reference, *, ratio, error, real
):
    (found,) = _effects(runs, **options)
    assert found.reference == reference
    assert found.ratio == pytest.approx(ratio, rel=error)
    assert found.real == real
    sides = [[s for d, s in runs if d == device] for device in BOTH]
    assert found.counts == tuple(map(len, sides))
    assert found.paired == (sides[0] == sides[1] and sides[0][0] is not None)
    if reference == "seeds" and not found.paired:
        assert found.floor == pytest.approx(np.sqrt(2), rel=0.3)


def test_group_and_seed_are_not_confused():
    runs = [("CPU", 1)] * 3 + [("METAL", 2)] * 3
    (found,) = _effects(runs)
    assert found.confounded
    assert not found.real
    assert found.distance == pytest.approx(np.sqrt(2), rel=0.3)


def test_without_a_second_run_there_is_no_reference():
    (found,) = _effects([("CPU", 1), ("METAL", 1)], shift=1.0)
    assert found.reference is None
    assert np.isnan(found.ratio)
    assert not found.confounded
    assert not found.real


def test_seeds_against_repeats():
    runs = [("CPU", s) for s in (1, 1, 1, 2, 2, 2, 3, 3, 3)]
    found = _effects(runs, by="seed")
    assert len(found) == 3
    assert all(e.reference == "repeats" and e.real for e in found)
    ratios = [e.ratio for e in found]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] == pytest.approx(10, rel=0.3)


@pytest.mark.parametrize(
    "runs", [_each([1], 3), _each([None], 5), _each((1, 2), 2)]
)
def test_chance_alone_seldom_makes_a_difference(runs):
    """At most 5 % of 300 draws, and what 300 draws leave open."""
    found = [_effects(runs, repeats=1.0, random=k)[0] for k in range(300)]
    assert np.mean([e.real for e in found]) < 0.05 + 2.5 * np.sqrt(0.05 / 300)


def test_a_distance_that_is_unknown_gives_no_probability():
    infos = [{"device": device, "seed": 1} for device in BOTH for _ in "ab"]
    found = _effect_of(np.full((4, 4), np.nan), infos)
    assert np.isnan(found.ratio)
    assert not found.real
    side = np.array([False, False, True, True])
    assert _f_test(np.zeros((4, 4)), side, np.zeros(4)) is None


def _effect_of(apart, infos):
    (found,) = compute_effects(apart, Grouping(infos, "device"), "device")
    return found


def _all_but(count, lost):
    places = 0.01 * np.arange(count)
    apart = np.abs(places[:, None] - places)
    apart[lost] = apart[:, lost] = np.nan
    return apart


def test_a_run_without_a_distance_is_left_out():
    """The others have their effect, and its probability."""
    infos = [{"device": BOTH[k // 4], "seed": 1} for k in range(8)]
    found = _effect_of(_all_but(8, [2, 5]), infos)
    assert found.counts == (4, 4)
    assert found.reference == "repeats"
    assert found.probability is not None
    found = _effect_of(_all_but(8, [4, 5, 6, 7]), infos)
    assert np.isnan(found.distance)
    assert not found.real


def test_repeats_without_a_distance_are_no_reference():
    """Seeds are, where there are some."""
    infos = [{"device": d, "seed": s} for d in BOTH for s in (0, 1, 2)]
    infos.append({"device": "METAL", "seed": 2})
    found = _effect_of(_all_but(7, 6), infos)
    assert found.reference == "seeds"
    assert np.isfinite(found.ratio)


def test_what_chance_makes_is_unknown_where_a_distance_is():
    """Repeats of which two share no step."""
    apart = _all_but(6, [])
    apart[0, 1] = apart[1, 0] = np.nan
    infos = [{"device": BOTH[k // 3], "seed": 1} for k in range(6)]
    found = _effect_of(apart, infos)
    assert found.ratio > 1
    assert found.probability is None
    assert not found.real


def test_what_else_differs_is_said():
    """Metal on a Mac against a CPU elsewhere: is it the device?"""
    apart = np.ones((4, 4)) - np.eye(4)
    cpu = {"device": "CPU", "machine": "linux", "seed": 1, "optimizer": 0.1}
    metal = {**cpu, "device": "METAL", "machine": "mac", "optimizer": 0.2}
    infos = [cpu, cpu | {"optimizer": 0.2}, metal, metal]
    assert _effect_of(apart, infos).confounders == ["machine"]
    infos[1]["machine"] = "mac"
    assert _effect_of(apart, infos).confounders == []
