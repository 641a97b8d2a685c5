"""profile_pipeline measures, and leaves the model as it was."""

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.pipelines.profile import profile_pipeline
from tests.callbacks.stall_truth import BATCH, Clock, TimedStepModel
from tests.pipelines.slow_data import py_dataset, serial_map

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]


def built(optimizer="adam"):
    model = TimedStepModel(Clock(), 0.003)
    model.compile(optimizer, "mse", jit_compile=False)
    model(BATCH[0])
    return model


def test_a_dataset_and_its_changes_are_measured():
    model = built()
    model.fit(*BATCH, verbose=0)
    state = [*model.variables, *model.optimizer.variables]
    before = [np.array(variable) for variable in state]
    function = model.train_function
    profile = profile_pipeline(serial_map(), model, batches=10)
    for variable, value in zip(state, before):
        np.testing.assert_array_equal(np.array(variable), value)
    assert model.train_function is function
    assert profile.pipeline_batches_per_s < 1 / 0.016
    assert profile.model_batches_per_s < 1 / 0.003
    assert profile.slowest_stage[0] == "MapAndBatch"
    assert set(profile.what_if) == {"prefetch", "parallel map", "cache"}
    assert profile.what_if["cache"][1] < 0.5 * profile.wait_ms
    assert "parallel map" in str(profile)


@pytest.mark.timing
def test_parallel_maps_are_seen_to_help():
    profile = profile_pipeline(serial_map(), built(), batches=15)
    as_it_is = profile.together_batches_per_s
    assert profile.what_if["parallel map"][0] > 1.2 * as_it_is


def test_a_pydataset_is_tried_with_workers():
    data = py_dataset()
    profile = profile_pipeline(data, batches=15)
    assert profile.model_batches_per_s is None
    rate, wait = profile.what_if["4 workers"]
    assert rate > 1.2 * profile.together_batches_per_s
    assert wait < profile.wait_ms
    assert data.workers == 1


def test_arrays_are_measured():
    x = np.zeros((640, 3), "float32")
    profile = profile_pipeline((x, x[:, :1]), batches=10)
    assert profile.pipeline_batches_per_s > 0
    assert profile.what_if == {}


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"positive integer\. Received: 0"):
        profile_pipeline(tf.data.Dataset.range(3), batches=0)
    with pytest.raises(ValueError, match="read only once"):
        profile_pipeline(BATCH for _ in range(3))
    one = tf.data.Dataset.from_tensors(BATCH)
    with pytest.raises(ValueError, match="at least one more"):
        profile_pipeline(one)
    unbuilt = TimedStepModel(Clock(), 0)
    unbuilt.compile("sgd", "mse")
    with pytest.raises(ValueError, match="expected a built model"):
        profile_pipeline(one.repeat(4), unbuilt)
