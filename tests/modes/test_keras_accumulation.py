"""What `gradient_accumulation_steps` of Keras does otherwise than a big batch.

Each test shows the defect there and the same thing right here. When Keras
mends one of them the test says so, by failing in its first half.
"""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.models.making import (
    assert_equal,
    compiled,
    net,
    trained,
    unchanged,
)

pytestmark = pytest.mark.usefixtures("float64")

_rng = np.random.default_rng(2)
X, Y = _rng.normal(size=(12, 4)), _rng.normal(size=(12, 2))


class Shrinking(keras.constraints.Constraint):
    """Halves what it constrains, so that its calls can be counted."""

    def __call__(self, value):
        return value * 0.5


def model(kind, steps=3, constraint=None, **optimizer):
    """A linear model: "keras" or "ours" accumulates, "big" does not."""
    keras.utils.set_random_seed(1)
    layer = keras.layers.Dense(2, kernel_constraint=constraint)
    if kind == "keras":
        optimizer["gradient_accumulation_steps"] = steps
    mode = kpg.Accumulated(steps=steps) if kind == "ours" else None
    optimizer = keras.optimizers.SGD(**{"learning_rate": 0.1, **optimizer})
    parts = net(layer, shape=(4,), units=None)
    return compiled(parts, mode, optimizer=optimizer)


def feed(model, *sizes):
    """One batch after the other, of these sizes."""
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        model.train_on_batch(X[rows], Y[rows])
        start = rows.stop
    return model


def distance(a, b):
    """The largest difference between the kernels of two models."""
    return np.abs(_kernel(a) - _kernel(b)).max()


def _kernel(model):
    return model.layers[-1].get_weights()[0]


def schedule():
    return keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)


@pytest.mark.parametrize(
    ("settings", "big", "parts", "off"),
    [
        (dict, (10,), (4, 4, 2), 1e-4),
        (lambda: {"constraint": Shrinking()}, (12,), (4, 4, 4), 1e-2),
        (lambda: {"learning_rate": schedule()}, (6, 6), (2,) * 6, 1e-3),
    ],
    ids=["uneven batches", "constraints", "schedules"],
)
def test_one_update_is_that_of_the_big_batch(settings, big, parts, *, off):
    """A constraint and a schedule are called once an update."""
    whole = feed(model("big", **settings()), *big)
    assert distance(feed(model("keras", **settings()), *parts), whole) > off
    assert distance(feed(model("ours", **settings()), *parts), whole) < 1e-10


def fit(model, epochs=1):
    """Four batches of three an epoch: with steps=3 one is left over."""
    return trained(model, X, Y, batch_size=3, epochs=epochs)


def test_tail_is_not_applied():
    big = feed(model("big"), 9, 3)
    without = feed(model("big"), 9)
    assert distance(fit(model("keras")), without) < 1e-10
    assert distance(fit(model("ours")), without) > 1e-4
    assert distance(fit(model("ours")), big) < 1e-10


@pytest.mark.parametrize("how", ["next epoch", "next fit"])
def test_tail_leaks(how):
    def twice(model):
        return fit(model, 2) if how == "next epoch" else fit(fit(model))

    big = feed(feed(model("big"), 9, 3), 9, 3)
    leaked = feed(model("big"), 9)
    # The tail's old gradient comes with two batches of the new epoch.
    old = kpg.per_sample_gradients(leaked, X[9:], Y[9:])
    new = kpg.per_sample_gradients(leaked, X[:6], Y[:6])
    step = (np.sum(old[0], 0) + np.sum(new[0], 0)) / 9
    expected = _kernel(leaked) - 0.1 * step
    assert np.abs(_kernel(twice(model("keras"))) - expected).max() < 1e-10
    assert np.abs(_kernel(big) - expected).max() > 1e-4
    assert distance(twice(model("ours")), big) < 1e-10


def _average(model):
    variables = model.optimizer._model_variables_moving_average
    return variables[0].numpy()


def test_moving_averages_drift():
    arguments = {"use_ema": True, "ema_momentum": 0.9}
    # From the third update on: an average begins with the first value.
    big = _average(feed(model("big", **arguments), 3, 3, 3, 3))
    keras_own = _average(feed(model("keras", **arguments), *(1,) * 12))
    ours = _average(feed(model("ours", **arguments), *(1,) * 12))
    assert np.abs(keras_own - big).max() > 1e-4
    np.testing.assert_allclose(ours, big, rtol=1e-10)


def test_clipping_and_weight_decay_are_right_in_both():
    arguments = {"global_clipnorm": 0.1, "weight_decay": 0.1}
    big = feed(model("big", **arguments), 6, 6)
    for kind in ("keras", "ours"):
        found = feed(model(kind, **arguments), *(2,) * 6)
        assert distance(found, big) < 1e-10
        assert int(found.optimizer.iterations) == 2


needs_multi_optimizer = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"),
    reason="MultiOptimizer is new in Keras 3.13",
)


def of_parts(**arguments):
    """An optimizer for the biases, with these arguments, and one for others."""
    bias = keras.optimizers.SGD(0.1, **arguments)
    others = keras.optimizers.SGD(0.1)
    chosen = keras.optimizers.OptimizerMap(others, {".*bias": bias})
    return keras.optimizers.MultiOptimizer(chosen)


@pytest.mark.parametrize(
    ("optimizer", "match"),
    [
        (keras.optimizers.SGD, "accumulates gradients on its own"),
        pytest.param(
            of_parts, r"accumulates .*steps=2\)", marks=needs_multi_optimizer
        ),
    ],
)
def test_both_at_once_are_refused(optimizer, match):
    found = model("ours")
    optimizer = optimizer(gradient_accumulation_steps=2)
    found.compile(optimizer, "mse", gradient_mode=kpg.Accumulated(steps=2))
    with unchanged(found), pytest.raises(ValueError, match=match):
        found.train_on_batch(X, Y)


@needs_multi_optimizer
def test_optimizers_of_parts_are_served():
    weights = []
    for optimizer in (of_parts(), keras.optimizers.SGD(0.1)):
        found = model("ours")
        mode = kpg.Accumulated(steps=2, microbatch_size=2)
        found.compile(optimizer, "mse", gradient_mode=mode)
        for _ in range(2):
            found.train_on_batch(X, Y)
        weights.append(found.get_weights())
    assert_equal(*weights, rtol=1e-10)
