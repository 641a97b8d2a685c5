"""`ByTask` of microbatches and of several batches: that of the whole batch."""

import keras
import pytest

import keras_pergrad as kpg
from tests.modes import big_batch
from tests.modes.task_networks import CASES, trained

ENGINES = {
    "eager": {"run_eagerly": True},
    "graph": {"jit_compile": False},
    "xla": {"jit_compile": True},
}
RUNS = [
    *((case, "eager") for case in CASES),
    ("masked", "graph"),
    pytest.param("add_loss", "graph", marks=pytest.mark.slow),
    pytest.param("kinds", "xla", marks=pytest.mark.slow),
]


@pytest.fixture(autouse=True)
def _double():
    before = keras.config.dtype_policy(), keras.config.floatx()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy(before[0])
    keras.config.set_floatx(before[1])


@pytest.mark.parametrize(("case", "engine"), RUNS)
def test_microbatches_are_the_batch(case, engine):
    """Microbatches of 4, the last of a batch smaller."""
    mode = CASES[case].mode
    parts = kpg.Accumulated(microbatch_size=4, inner=mode())
    whole = trained(case, mode(), **ENGINES[engine])
    assert max(whole[1][n][0] for n in whole[1] if "task_weight" in n) > 1.01
    big_batch.assert_same(trained(case, parts, **ENGINES[engine]), whole)


@pytest.mark.parametrize(("case", "engine"), RUNS)
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
