"""Batch sizes compared: the figures are those of plans made with them."""

import keras
import numpy as np
import pytest

from keras_pergrad.privacy.clipping_variants import AdaptiveClippedMean
from tests.privacy.tiny import N, Y, fitted, noise_of, private, sgd, words

SIZES = [10, 20]
decay = keras.optimizers.schedules.ExponentialDecay(2.0, 10, 0.5)
BUDGET = {"target_epsilon": 1.0, "epochs": 2, "noise_multiplier": None}
CORRELATED = {"noise": "correlated", "sampling": "ordered"}
DECAYING = {"noise_multiplier": decay, "sampling": "shuffled"}
USERS = {"user_ids": np.arange(N) // 4, "samples_per_user": 4}
PLANS = {
    "budget": BUDGET,
    "noise": {"epochs": 2},
    "steps": {"steps": 6},
    "schedule": {**DECAYING, "epochs": 2},
    "fixed": {"sampling": "fixed", "epochs": 2},
    "users": {**USERS, "epochs": 2},
    "adaptive": {**BUDGET, "clipping": AdaptiveClippedMean(0.5)},
    "correlated": {**BUDGET, **CORRELATED, "target_epsilon": 2.0, "epochs": 4},
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_with_that_batch_size_has_the_same_figures(name):
    arguments = PLANS[name]
    compared = private(**arguments).compare(batch_sizes=SIZES)
    assert [row.batch_size for row in compared.rows] == SIZES
    for row in compared.rows:
        plan = private(**arguments, batch_size=row.batch_size)
        assert row.steps == plan.steps
        assert row.epochs == plan.steps / plan.steps_per_epoch
        assert row.epsilon == plan.epsilon()
        noise = plan.mechanism.noise(0, plan.steps)
        expected = np.sqrt(np.mean(noise**2))
        assert row.noise_multiplier == pytest.approx(expected, rel=1e-12)


def test_what_was_spent_before_counts_and_the_model_is_not_asked_again():
    net = fitted(private())
    after = private(continue_from=net, target_epsilon=9.0, epochs=1)
    before = after.compare([10])
    assert before.rows[0].epsilon == after.epsilon() > private().epsilon(4)
    after_more = private(continue_from=fitted(after), epochs=1)
    assert after.compare([10]) == before
    assert after_more.compare([10]).rows[0].epsilon > after.epsilon()


@pytest.mark.parametrize("name", ["noise", "schedule", "correlated"])
def test_the_noise_in_the_mean_is_what_a_fit_adds(name):
    arguments = {**PLANS[name], "epochs": 4, "clip_norm": 0.5}
    training = private(**arguments)
    (row,) = training.compare([10]).rows
    no_data = np.zeros((N, 2000), "float32"), Y, np.zeros(N)
    net = sgd(training, shape=(2000,))
    added = noise_of(net, training, no_data, epochs=4)
    assert added.shape == (16, 2001)
    deviation = np.sqrt(np.mean((added / 10) ** 2)) / 0.5
    assert deviation == pytest.approx(row.mean_noise, rel=0.03)


def test_the_noise_of_adaptive_clipping_is_that_of_its_gradients():
    training = private(**PLANS["adaptive"])
    (row,) = training.compare([10]).rows
    assert row.mean_noise == training.clipping.gradient_noise / 10
    assert row.mean_noise > row.noise_multiplier / 10


def test_it_prints_a_table():
    text = str(private(epochs=2).compare([5, 10]))
    title, head, _, *rows = [line.split() for line in text.splitlines()]
    assert " ".join(title).endswith("delta 0.01")
    assert " ".join(head) == (
        "batch size epochs steps noise multiplier noise in the mean epsilon"
    )
    assert [row[:5] for row in rows[:2]] == [
        ["5", "2", "16", "2", "0.4"],
        ["10", "2", "8", "2", "0.2"],
    ]
    assert "in units of the clip norm" in words(text)


@pytest.mark.parametrize(
    ("sizes", "error"),
    [
        (64, "`batch_sizes` must be a list"),
        ([], "`batch_sizes` must be a list"),
        ("64", "`batch_sizes` must be a list"),
        ([[10]], "`batch_sizes` must be a list"),
        ([10, 0], "`batch_size` expected a positive integer"),
        ([10.0], "`batch_size` expected a positive integer"),
        ([10, N + 1], "at most the number of examples"),
    ],
)
def test_bad_sizes_are_refused(sizes, error):
    with pytest.raises(ValueError, match=error):
        private(epochs=2).compare(sizes)


def test_what_is_not_planned_is_not_compared():
    with pytest.raises(ValueError, match="`epochs` or `steps`"):
        private().compare([10])
