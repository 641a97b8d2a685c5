"""The statement says what holds, on what assumptions, and what does not."""

import pytest

from tests.privacy.tiny import N, private


def test_a_plan():
    training = private(target_epsilon=3.0, epochs=2)
    statement = training.statement()
    assert statement["planned"]
    assert statement["epsilon"] == training.epsilon() < 3
    text = str(statement)
    for words in (
        f"({training.epsilon():.4g}, 0.01)-differentially private",
        "The weights would be",
        "one example more or one example less",
        "with probability 0.25",
        "the seeds of noise and batches",
        "floating-point",
        "hyper-parameters",
        "evaluated on these examples",
        "preprocessing that saw",
        "clipped_fraction",
        "plain keras.Model",
    ):
        assert words in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sampling": "shuffled"}, "no amplification by sampling"),
        ({"sampling": "fixed"}, "one example exchanged for another"),
        ({"user_ids": None}, "else a person has less"),
        (
            {"user_ids": [k // 4 for k in range(N)], "examples_per_user": 2},
            "one user more or one user less",
        ),
    ],
)
def test_kinds(arguments, words):
    statement = private(steps=1, **arguments).statement()
    assert words in " ".join(str(statement).split())


def test_it_is_a_dict():
    statement = private(steps=4).statement()
    assert statement["phases"][0]["noise_multiplier"] == (2.0, 2.0)
    assert statement["accountant"] == "PLD"
    assert dict(statement)["unit"] == "example"
