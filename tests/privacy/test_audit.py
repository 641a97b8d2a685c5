"""The lower bound of an audit holds, and is as good as it can be."""

import numpy as np
import pytest

from keras_pergrad.privacy.audit import (
    audit_privacy,
    epsilon_lower_bound,
    p_value,
)
from tests.privacy.tiny import X, Y, model, private


def test_all_guesses_right():
    # 100 of 100: e^eps / (1 + e^eps) to the 100 must be above 5 %.
    rate = 0.05 ** (1 / 100)
    expected = np.log(rate / (1 - rate))
    found = epsilon_lower_bound(100, 100, 100, 0.0, 0.95)
    assert found == pytest.approx(expected, abs=1e-4)


def test_delta_weakens_the_bound():
    bounds = [
        epsilon_lower_bound(100, 100, 90, delta, 0.95)
        for delta in (0.0, 1e-5, 1e-3)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[2] > 0


def test_guessing_at_random_shows_nothing():
    assert epsilon_lower_bound(100, 100, 52, 1e-5, 0.95) == 0
    assert p_value(100, 100, 0, 1.0, 1e-5) == 1


def test_the_bound_holds_as_often_as_it_says():
    """Randomised response with a known epsilon, which is the worst case."""
    rng = np.random.default_rng(0)
    epsilon = 1.0
    rate = 1 / (1 + np.exp(-epsilon))
    right = rng.binomial(200, rate, size=400)
    bounds = {
        v: epsilon_lower_bound(200, 200, int(v), 0.0, 0.9) for v in set(right)
    }
    found = np.array([bounds[v] for v in right])
    assert np.mean(found > epsilon) <= 0.1 + 0.045
    assert found.mean() > 0.5


def test_refusals():
    training = private()
    drawn = {"canaries": range(10), "epochs": 1}

    def make():
        return model(training)

    with pytest.raises(ValueError, match="at least 10 different rows"):
        audit_privacy(make, training, X, Y, canaries=range(3), epochs=1)
    with pytest.raises(ValueError, match="`confidence` must be"):
        audit_privacy(make, training, X, Y, **drawn, confidence=95)
    fixed = private(sampling="fixed")
    with pytest.raises(ValueError, match="sampling='fixed' protects"):
        audit_privacy(make, fixed, X, Y, **drawn)
    net = make()
    net.aggregation_state = None
    with pytest.raises(ValueError, match="`make_model` must return a new"):
        audit_privacy(lambda: net, training, X, Y, **drawn)
    with pytest.raises(TypeError, match="must be a function"):
        audit_privacy(net, training, X, Y, **drawn)
