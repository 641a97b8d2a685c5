"""profile_pipeline measures, and leaves the model as it was."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator

import keras_pergrad as kpg
from keras_pergrad.callbacks import DataStall
from keras_pergrad.stalls.accounting import StallReport
from keras_pergrad.stalls.measuring import (
    Measurement,
    measure,
    temporary_step,
    try_workers,
)
from keras_pergrad.stalls.profile import profile_pipeline
from keras_pergrad.stalls.wait_log import CAPACITY
from tests.models.making import (
    assert_equal,
    compiled,
    net,
    normal,
    trained,
    weights,
)
from tests.stalls import recorded_stalls
from tests.stalls.slow_data import py_dataset, serial_map
from tests.stalls.stall_truth import (
    BATCH,
    QUIET,
    Clock,
    TimedStepModel,
    batches,
    timed,
)

pytestmark = QUIET


def small(*parts, inputs=3):
    model = net(*parts, shape=(inputs,), units=1)
    return compiled(model, jit_compile=False)


def test_a_dataset_and_its_changes_are_measured():
    model = timed(0.003, optimizer="adam")
    trained(model, *BATCH)
    before, function = weights(model), model.train_function
    profile = profile_pipeline(serial_map(), model, batches=10)
    assert_equal(model, before)
    assert model.train_function is function
    # A step that sleeps may take longer on a busy machine, but no less.
    assert profile.model_batches_per_s < 1 / 0.003
    assert profile.slowest_stage[0] in [row.name for row in profile.stages]
    assert set(profile.what_if) == {"prefetch", "cache"}
    assert "cache" in str(profile)


@pytest.mark.timing
def test_a_cache_is_seen_to_help():
    model = timed(0.003, built=True)
    profile = profile_pipeline(serial_map(), model, batches=10)
    assert profile.pipeline_batches_per_s < 1 / 0.016
    assert profile.what_if["cache"][1] < 0.5 * profile.wait_ms
    assert profile.slowest_stage[0] == "map(call) + batch"


@pytest.mark.parametrize(
    ("make", "tried"),
    [
        (py_dataset, {"4 workers"}),
        (lambda: (np.zeros((640, 3)), np.zeros((640, 1))), set()),
    ],
)
def test_data_of_other_kinds_is_measured(make, tried):
    data = make()
    profile = profile_pipeline(data, batches=np.int64(10))
    assert profile.pipeline_batches_per_s > 0
    assert profile.model_batches_per_s is None
    assert set(profile.what_if) == tried
    assert all(rate > 0 <= wait for rate, wait in profile.what_if.values())
    assert getattr(data, "workers", 1) == 1


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "message"),
    [
        *(
            ([1], {"batches": bad}, ValueError, f"positive integer.*={bad}")
            for bad in (0, 2.5)
        ),
        *(
            (
                [py_dataset()],
                {"workers": bad},
                ValueError,
                r"integers of at least 0.*Received",
            )
            for bad in (-1, 1.5, True, "two", (1, -1))
        ),
        ([batches(4)], {"workers": 2}, ValueError, r"can be changed\. Received"),
        ([iter([BATCH])], {}, ValueError, "read only once"),
        ([batches(1)], {}, ValueError, "at least one more"),
        ([batches(4), timed()], {}, ValueError, "expected a built model"),
        ([BATCH, net(shape=(3,))], {}, ValueError, "is not compiled"),
        (
            [timed(), batches(4)],
            {},
            TypeError,
            r"profile_pipeline\(data, model\)",
        ),
        ([*BATCH], {}, TypeError, "an object of type ndarray$"),
    ],
)
def test_bad_input_is_refused(arguments, settings, error, message):
    with pytest.raises(error, match=message):
        profile_pipeline(*arguments, **settings)
