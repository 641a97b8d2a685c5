"""Batches are drawn as the accounting assumes."""

import numpy as np
import pytest
from scipy import stats

from keras_pergrad.privacy.draws import draw_batch, make_key
from keras_pergrad.privacy.mechanism import Mechanism
from keras_pergrad.privacy.selections import poisson_sample
from keras_pergrad.privacy.users import Users

KEY = make_key(1)
STEPS = 3000


def mechanism(sampling="poisson", examples=20, batch_size=5):
    return Mechanism(sampling, examples, batch_size, noise_multiplier=1.0)


def chi_square(counts, rate, total):
    """The p-value of counts, each binomial with the same rate."""
    variance = total * rate * (1 - rate)
    statistic = ((counts - total * rate) ** 2 / variance).sum()
    return stats.chi2.sf(statistic, np.size(counts))


@pytest.mark.parametrize("rate", [0.02, 0.25, 0.9])
def test_poisson(rate):
    """Which of 20 examples are in each of many batches is independent."""
    now, found = mechanism(batch_size=20 * rate), np.zeros((STEPS, 20), bool)
    for step in range(STEPS):
        found[step, draw_batch(now, KEY, step)] = True
    assert chi_square(found.sum(0), rate, STEPS) > 1e-4
    # Pairs in one batch, and sizes of batches, which are binomial.
    first, second = np.triu_indices(20, 1)
    together = (found[:, first] & found[:, second]).sum(0)
    assert chi_square(together, rate**2, STEPS) > 1e-4
    sizes = np.bincount(found.sum(1), minlength=21)
    expected = STEPS * stats.binom.pmf(np.arange(21), 20, rate)
    seen = expected > 5
    rest = STEPS - expected[seen].sum()
    observed = [*sizes[seen], sizes[~seen].sum()]
    assert stats.chisquare(observed, [*expected[seen], rest]).pvalue > 1e-4
    # Neighbouring pairs of steps overlap, which widens the spread.
    again, total = (found[1:] & found[:-1]).sum(0), STEPS - 1
    variance = total * rate**2 * (1 + 2 * rate - 3 * rate**2)
    statistic = ((again - total * rate**2) ** 2 / variance).sum()
    assert stats.chi2.sf(statistic, 20) > 1e-4


def test_a_step_is_drawn_alike_and_others_are_not():
    now = mechanism()
    same = [draw_batch(now, KEY, 7) for _ in range(2)]
    np.testing.assert_array_equal(*same)
    different = [
        tuple(draw_batch(now, key, step, phase=phase))
        for key in (KEY, make_key(2))
        for step in (7, 8)
        for phase in (0, 1)
    ]
    assert len(set(different)) == len(different)
    assert make_key(None) != make_key(None)


def test_all_and_none():
    assert len(poisson_sample(np.random.default_rng(0), 9, 1.0)) == 9
    now = mechanism(batch_size=1)
    assert 0 in {len(draw_batch(now, KEY, step)) for step in range(50)}


def test_fixed():
    now = mechanism("fixed")
    rows = [draw_batch(now, KEY, step) for step in range(STEPS)]
    assert {len(set(batch)) for batch in rows} == {5}
    counts = np.bincount(np.concatenate(rows), minlength=20)
    assert chi_square(counts, 0.25, STEPS) > 1e-4


@pytest.mark.parametrize("sampling", ["shuffled", "ordered"])
def test_epochs_have_every_example_once(sampling):
    """In a new order, or in batches that are always the same."""
    now = mechanism(sampling, 22, 5)
    assert now.steps_per_epoch == 5
    batches = [list(draw_batch(now, KEY, step)) for step in range(10)]
    first, second = batches[:5], batches[5:]
    for epoch in (first, second):
        assert sorted(np.concatenate(epoch)) == list(range(22))
    assert (first == second) == (sampling == "ordered")


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "shuffled"])
def test_workers_draw_from_parts_of_their_own(sampling):
    now = mechanism(sampling, 20, 10)
    counts = np.zeros(20)
    for step in range(400):
        parts = [draw_batch(now, KEY, step, part=k, parts=2) for k in range(2)]
        assert all((rows % 2 == k).all() for k, rows in enumerate(parts))
        counts[np.concatenate(parts)] += 1
    np.testing.assert_allclose(counts / 400, 0.5, atol=0.13)


def test_fixed_batches_that_cannot_be_shared_are_refused():
    with pytest.raises(ValueError, match="multiples of 2, the number of"):
        draw_batch(mechanism("fixed", 21, 10), KEY, 0, parts=2)


def test_users_have_at_most_so_many_examples():
    ids = np.array(list("aaaaabbc"))
    users = Users(ids, 2)
    rows = users.rows(KEY)
    assert sorted(ids[rows]) == list("aabbc")
    assert list(rows) == sorted(rows)
    others = {tuple(users.rows(make_key(k))) for k in range(20)}
    assert len(others) > 3
