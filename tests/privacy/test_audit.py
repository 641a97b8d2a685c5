"""The lower bound of an audit holds, and is as good as it can be."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.privacy.audit import epsilon_lower_bound, p_value
from keras_pergrad.privacy.phase_noise import PhaseNoise
from tests.models import making
from tests.privacy.tiny import X, Y, compile_privately, model, private


def test_the_bound_of_so_many_right_guesses():
    # 100 of 100: e^eps / (1 + e^eps) to the 100 must be above 5 %.
    rate = 0.05 ** (1 / 100)
    exact = {"delta": 0.0, "confidence": 0.95}
    found = epsilon_lower_bound(100, 100, 100, **exact)
    assert found == pytest.approx(np.log(rate / (1 - rate)), abs=1e-4)
    # Delta weakens it.
    bounds = [
        epsilon_lower_bound(100, 100, 90, delta=delta, confidence=0.95)
        for delta in (0.0, 1e-5, 1e-3)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[2] > 0
    # Guessing at random shows nothing.
    assert epsilon_lower_bound(100, 100, 52, **exact) == 0
    assert p_value(100, 100, 0, epsilon=1.0, delta=1e-5) == 1


def test_the_bound_holds_as_often_as_it_says():
    """Randomised response with a known epsilon, which is the worst case."""
    rng = np.random.default_rng(0)
    epsilon = 1.0
    rate = 1 / (1 + np.exp(-epsilon))
    right = rng.binomial(200, rate, size=400)
    bounds = {
        v: epsilon_lower_bound(200, 200, int(v), delta=0.0, confidence=0.9)
        for v in set(right)
    }
    found = np.array([bounds[v] for v in right])
    assert np.mean(found > epsilon) <= 0.1 + 0.045
    assert found.mean() > 0.5


def audited(noise):
    """An audit on examples that a linear model learns one by one.

    Of ten seeds, of the plan and of the audit alike, all pass what is asked
    below: the bounds are 2.2 to 3.0 with little noise, 2.4 to 3.7 with none.
    """
    count = 200
    targets = np.random.default_rng(1).choice([-1.0, 1.0], (count, 1))
    plan = {"samples": count, "batch_size": 100, "delta": 1e-5, "seed": 0}
    clipping = kpg.privacy.AutomaticClippedMean(1.0)
    training = private(noise_multiplier=noise, clipping=clipping, **plan)

    def make_model():
        dense = keras.layers.Dense(1, use_bias=False)
        net = making.net(
            dense, shape=(count,), units=None, cls=kpg.PerGradModel
        )
        sgd = keras.optimizers.SGD(1.0)
        return compile_privately(net, training, sgd, loss="mse")

    data = np.eye(count, dtype="float32"), targets
    given = {"canaries": np.arange(count), "epochs": 4, "seed": 0}
    return kpg.privacy.audit_privacy(make_model, training, *data, **given)


def test_an_audit_finds_missing_noise(monkeypatch):
    found = audited(noise=6.0)
    assert found.ok, str(found)
    assert set(found.by_score) == {"loss", "gradient"}
    monkeypatch.setattr(PhaseNoise, "draw", lambda self, *given: 0 * given[1])
    broken = audited(noise=6.0)
    assert not broken.ok, str(broken)
    assert broken.lower_bound > 2 * broken.claimed
    assert "REFUTED" in str(broken)
    assert broken.claimed == found.claimed


@pytest.mark.slow
def test_an_audit_sees_through_little_noise():
    """Where little is promised, what leaks is seen, and within the claim."""
    found = audited(noise=0.5)
    assert 1.5 < found.lower_bound < found.claimed


def test_refusals():
    training, fixed = private(), private(sampling="fixed")
    stateless = model(training)
    stateless.aggregation_state = None
    defaults = {
        "make_model": lambda: model(training),
        "private": training,
        "canaries": range(10),
    }
    same = {"make_model": lambda: stateless}
    for error, match, given in (
        (ValueError, "at least 10 different rows", {"canaries": range(3)}),
        (ValueError, "`confidence` expected", {"confidence": 95}),
        (ValueError, "sampling='fixed' protects", {"private": fixed}),
        (ValueError, "`make_model` must return a new", same),
        (TypeError, "must be a function", {"make_model": stateless}),
    ):
        with pytest.raises(error, match=match):
            kpg.privacy.audit_privacy(
                x=X, y=Y, epochs=1, **{**defaults, **given}
            )
