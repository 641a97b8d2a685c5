"""`ByTask` of microbatches and of several batches: that of the whole batch."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.marks import few
from tests.models import making
from tests.modes import big_batch
from tests.multitask.task_networks import (
    CASES,
    ENGINES,
    OwnLoss,
    compiled,
    data,
    trained,
)

pytestmark = pytest.mark.usefixtures("float64")

EAGER = [(case, "eager") for case in CASES]
SLOW = [("add_loss", "graph"), ("kinds", "xla")]


@pytest.mark.parametrize(("case", "engine"), few(EAGER + SLOW, EAGER, SLOW[:1]))
def test_microbatches_are_the_batch(case, engine):
    """Microbatches of 4, the last of a batch smaller."""
    mode = CASES[case].mode
    parts = kpg.Accumulated(microbatch_size=4, inner=mode())
    whole = trained(case, mode(), **ENGINES[engine])
    assert max(whole[1][n][0] for n in whole[1] if "task_weight" in n) > 1.01
    big_batch.assert_same(trained(case, parts, **ENGINES[engine]), whole)


@pytest.mark.parametrize(
    ("case", "engine"),
    few([*EAGER, ("masked", "graph"), *SLOW], [*EAGER, ("masked", "graph")]),
)
def test_steps_are_one_batch(case, engine):
    """Batches of 9, 3 and 8; then 2 and 1 are what is left of the epoch."""
    mode, how = CASES[case].mode, ENGINES[engine]
    steps = kpg.Accumulated(steps=3, microbatch_size=4, inner=mode())
    weights, logs = trained(case, mode(), (20, 3), **how)
    found, found_logs = trained(case, steps, (9, 3, 8, 2, 1), **how)
    by_task = [name for name in logs if name.startswith("task")]
    big_batch.assert_same(
        (found, {name: found_logs[name] for name in by_task}),
        (weights, {name: logs[name] for name in by_task}),
    )


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("overflows", [False, True])
def test_an_overflow_in_one_microbatch_makes_no_update(steps, overflows):
    """Half precision: the target of one sample is too large for it."""
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("mixed_float16")
    x, y = big_batch.X[:6].astype("float32"), big_batch.TWO["score"][:6]
    y = {"a": y.astype("float32"), "b": -y.astype("float32")}
    y["b"][4] = 1e9 if overflows else 1.0
    parts = kpg.Accumulated(steps=steps, microbatch_size=2, inner="by_task")
    moved, cases = [], [(kpg.ByTask(), 6, False), (parts, 6 // steps, True)]
    for mode, size, eager in cases:
        keras.utils.set_random_seed(0)
        inputs = keras.Input((5,))
        trunk = keras.layers.Dense(4, "tanh")(inputs)
        heads = {
            n: keras.layers.Dense(1, name=n, dtype="float32")(trunk)
            for n in "ab"
        }
        model = kpg.PerGradModel(inputs, heads)
        sgd = keras.optimizers.SGD(0.1)
        scaled = keras.optimizers.LossScaleOptimizer(sgd, 2.0**10)
        model = making.compiled(
            model, mode, optimizer=scaled, run_eagerly=eager
        )
        before = model.get_weights()
        making.trained(model, x, y, batch_size=size)
        moved.append([a - b for a, b in zip(before, model.get_weights())])
    for step in moved[0]:
        assert np.isfinite(step).all()
        assert overflows == (not np.any(step))
    making.assert_equal(moved[1], moved[0], rtol=2e-3, atol=1e-5)


def test_what_waits_is_saved_by_task(tmp_path):
    def mode(steps):
        inner = CASES["add_loss"].mode()
        return kpg.Accumulated(steps=steps, tail="keep", inner=inner)

    x, y = data("add_loss")
    first, second = big_batch.Batches((x, y), [10, 13])
    model = compiled("add_loss", mode(2), run_eagerly=True)
    model.train_on_batch(*first)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(
        tmp_path / "m.keras", {"Added": big_batch.Added}
    )
    again.run_eagerly = True
    whole = compiled("add_loss", mode(1), run_eagerly=True)
    whole.train_on_batch(x, y)
    again.train_on_batch(*second)
    limits = {"rtol": 1e-10, "atol": 1e-10}
    making.assert_equal(again.get_weights(), whole.get_weights(), **limits)


@pytest.mark.parametrize(
    ("losses", "cls", "match"),
    [
        (["score", "add_loss/flat"], kpg.PerGradModel, "gave nothing"),
        (["score", "other"], kpg.PerGradModel, "names 'other'"),
        (None, OwnLoss, "overrides compute_loss"),
    ],
)
def test_what_is_refused_of_microbatches(losses, cls, match):
    inner = kpg.ByTask(losses=losses)
    mode = kpg.Accumulated(steps=2, microbatch_size=4, inner=inner)
    model = compiled("add_loss", mode, cls=cls)
    with making.unchanged(model), pytest.raises(ValueError, match=match):
        model.fit(*data("add_loss"), verbose=0)


def test_logs_of_what_an_epoch_leaves_are_kept_over_validation():
    inner = CASES["add_loss"].mode
    logs = []
    for validation in (None, data("add_loss")):
        mode = kpg.Accumulated(steps=3, inner=inner())
        model = compiled("add_loss", mode, run_eagerly=True)
        given = {"batch_size": 12, "validation_data": validation}
        making.trained(model, *data("add_loss"), **given)
        history = model.history.history
        logs.append([history[n] for n in history if n.startswith("task")])
    assert np.isfinite(logs).all()
    np.testing.assert_array_equal(*logs)


class Halved(kpg.ByTask):
    """Changes what `ByTask` gives for a whole batch."""

    def partial_sums(self, model, part):
        sums = super().partial_sums(model, part)
        sums.gradients = [g / 2 for g in sums.gradients]
        return sums


def test_partial_sums_that_are_overridden_are_not_left_out():
    mode = kpg.Accumulated(microbatch_size=4, inner=Halved())
    model = compiled("add_loss", mode, run_eagerly=True)
    with pytest.raises(ValueError, match="expected the whole batch"):
        model.fit(*data("add_loss"), verbose=0)
