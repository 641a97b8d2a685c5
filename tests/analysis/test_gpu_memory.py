"""The memory of a step on a GPU, with a counter in the place of TensorFlow's.

On a GPU the last test reads the real one.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.analysis.explain import gpu_memory

MB = 1_000_000


@pytest.fixture
def counter(monkeypatch):
    """A GPU of which 5 MB are held; a sample takes 1 MB, 100 MB are there."""
    steps = []
    traced = gpu_memory.assigned_variables

    def watched(concrete):
        ((x, _),), _ = concrete.structured_input_signature
        steps.append(x.shape[0])
        if steps[-1] > 95:
            raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
        return traced(concrete)

    def info(device):
        assert device == "GPU:0"
        size = steps[-1] if steps else 0
        return {"current": 5 * MB, "peak": (5 + size) * MB}

    monkeypatch.setattr(gpu_memory, "assigned_variables", watched)
    monkeypatch.setattr(gpu_memory, "cuda_device", lambda: "GPU:0")
    monkeypatch.setattr(
        "keras_pergrad.analysis.explain.memory_prediction.cuda_device",
        lambda: "GPU:0",
    )
    experimental = tf.config.experimental
    monkeypatch.setattr(experimental, "get_memory_info", info)
    monkeypatch.setattr(experimental, "reset_memory_stats", lambda device: None)
    return steps


def _net(**inputs):
    keras.utils.set_random_seed(0)
    net = keras.Sequential(
        [
            keras.Input(**inputs),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3),
        ]
    )
    net.compile(keras.optimizers.Adam(), "mse")
    return net


@pytest.mark.parametrize("jit_compile", [False, True])
def test_memory_is_the_counters_rise_and_nothing_changes(counter, jit_compile):
    net = _net(shape=(4,))
    net.jit_compile = jit_compile
    net.fit(np.ones((4, 4)), np.ones((4, 3)), verbose=0)
    variables = [*net.variables, *net.optimizer.variables]
    before = [np.array(v) for v in variables]
    memory = kpg.explain(net, 7).memory
    assert counter == [7]
    assert (memory.device, memory.rise) == ("GPU:0", 7 * MB)
    assert memory.peak == 12 * MB
    assert "measured on GPU:0" in str(memory)
    for variable, value in zip(variables, before):
        np.testing.assert_array_equal(np.array(variable), value)


def test_slots_that_are_not_made_yet_are_added(counter):
    memory = kpg.explain(_net(shape=(4,)), 7).memory
    # Two moments of 15 numbers; the step's count and the rate.
    assert memory.slots == 2 * 15 * 4 + 8 + 4
    assert memory.peak == 12 * MB + memory.slots


def test_what_fits_looks_for_the_largest_size(counter):
    found = kpg.what_fits(_net(shape=(4,)), "55MB", mode="batch", at_most=90)
    assert 48 <= found.size <= 50
    assert found.prediction.device == "GPU:0"


def test_a_size_that_the_gpu_refuses_is_too_large(counter):
    found = kpg.what_fits(_net(shape=(4,)), "8GB", mode="batch")
    assert 91 <= found.size <= 95
    assert max(counter) > 95


def test_unknown_lengths_are_refused(counter):
    net = _net(shape=(None, 4))
    with pytest.raises(ValueError, match=r"unknown length.*Pass a batch"):
        kpg.explain(net, 7).memory  # noqa: B018
    assert counter == []


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_batches_of_zeros_have_the_kind_of_the_inputs(kind):
    spec = {
        "sparse": tf.SparseTensorSpec([3, 4], tf.float32),
        "ragged": tf.RaggedTensorSpec([3, 4], tf.float32, 1),
    }[kind]
    assert spec.is_compatible_with(gpu_memory._zeros(spec))


@pytest.mark.gpu
def test_the_real_counter():
    net = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(1024)])
    net.compile("sgd", "mse")
    memory = kpg.explain(net, 4096).memory
    # At least the outputs, their gradient and the kernel's.
    assert memory.rise > 2 * 4096 * 1024 * 4
