"""The peak memory of steps, and what fits into some memory.

A process of its own takes seconds, so few tests start one. What does not depend
on the process runs in this one, as on a GPU, with a counter in the place of
TensorFlow's.
"""

import os
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.common.arguments import parse_bytes
from keras_pergrad.explanation import step_memory as measuring
from tests.marks import few
from tests.models.making import assert_equal, compiled, net

MB = 1_000_000
WIDE = 20_000


@keras.saving.register_keras_serializable("tests")
class FromFive(keras.layers.Layer):
    """Passes on ids from 5; ends the process where the environment says so."""

    def call(self, ids):
        if "KERAS_PERGRAD_TEST_EXIT" in os.environ:
            os._exit(7)
        with tf.control_dependencies([tf.debugging.assert_greater(ids, 4)]):
            return tf.identity(ids)


class Unregistered(keras.layers.Identity):
    """Keras cannot load it."""


@keras.saving.register_keras_serializable("tests")
class Unsaved(keras.layers.Identity):
    def get_config(self):
        raise NotImplementedError


@keras.saving.register_keras_serializable("tests")
class OwnStep(keras.Model):
    def train_step(self, data):
        return {"rows": tf.shape(data[0])[0]}


def _net(*inside, **settings):
    settings = {"optimizer": "adam", **settings}
    return compiled(net(*inside, shape=(4,)), **settings)


def _fits(model, memory="1GB", gradient_mode="batch", **settings):
    settings |= {"memory": memory, "gradient_mode": gradient_mode}
    return kpg.diagnose.what_fits(model, **settings)


def _wide(jit_compile):
    """A net whose only large tensors are of `WIDE` numbers for a sample."""
    layers = keras.layers.Dense(WIDE), keras.layers.Activation("sigmoid")
    return _net(*layers, optimizer="sgd", jit_compile=jit_compile)


@pytest.fixture
def counter(monkeypatch):
    """A GPU of which 5 MB are held; a sample takes 1 MB, 100 MB are there."""
    sizes, fit = [], keras.Model.fit

    def watched(model, batches, **options):
        (x, *_) = next(iter(batches))
        sizes.append(tf.nest.flatten(x)[0].shape[0])
        if sizes[-1] > 95:
            raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
        return fit(model, batches, **options)

    def info(device):
        assert device == "GPU:0"
        size = sizes[-1] if sizes else 0
        return {"current": 5 * MB, "peak": (5 + size) * MB}

    monkeypatch.setattr(measuring, "cuda_device", lambda: "GPU:0")
    monkeypatch.setattr(keras.Model, "fit", watched)
    experimental = tf.config.experimental
    monkeypatch.setattr(experimental, "get_memory_info", info)
    monkeypatch.setattr(experimental, "reset_memory_stats", lambda device: None)
    return sizes


@pytest.mark.parametrize("jit_compile", few([False, True], [False]))
def test_a_step_takes_what_its_tensors_take(jit_compile):
    model = _wide(jit_compile)
    small, large = (kpg.explain(model, n).memory for n in (1000, 2000))
    # Keras's plain step holds one such tensor, at least.
    assert 2000 * WIDE * 4 < large.rise < 6 * 2000 * WIDE * 4
    assert large.rise == pytest.approx(2 * small.rise, rel=0.25)
    assert large.peak == large.rise + large.process
    assert "of 2000 samples, Vectorized(aggregation=Clipped" in str(large)


def test_rows_of_the_user_are_repeated_and_own_layers_loaded(monkeypatch):
    mean = keras.layers.GlobalAveragePooling1D()
    inside = FromFive(), keras.layers.Embedding(10, 4), mean
    model = net(*inside, shape=(3,), dtype="int32", units=None)
    ids = np.array([[5, 6, 7], [7, 8, 9]], "int32")
    compiled(model, loss="sparse_categorical_crossentropy")
    assert kpg.explain(model, 5, x=ids).memory.batch_size == 5
    monkeypatch.setenv("KERAS_PERGRAD_TEST_EXIT", "1")
    with pytest.raises(ValueError, match=r"'functional'.*ended with code 7"):
        kpg.diagnose.what_fits(model, memory="1GB", x=ids)


def test_a_copy_that_cannot_be_made_is_refused():
    with pytest.raises(ValueError, match=r"cannot be saved.* registered"):
        kpg.diagnose.what_fits(_net(Unsaved()), memory="1GB")
    with pytest.raises(ValueError, match=r"'Unregistered'(.|\n)* registered"):
        kpg.explain(_net(Unregistered()), 4).memory  # noqa: B018


def test_steps_beyond_the_free_memory_are_stopped(monkeypatch):
    monkeypatch.setattr(measuring, "free_bytes", lambda: 200 * MB)
    with pytest.raises(MemoryError, match=r"A step of 100000 samples"):
        kpg.explain(_wide(False), 100_000).memory  # noqa: B018


@pytest.mark.slow
def test_what_fits_finds_the_largest_batch():
    model = _wide(False)
    memory = kpg.explain(model, 2000).memory
    found = kpg.diagnose.what_fits(model, memory=memory.peak, at_most=10_000)
    assert found.size == pytest.approx(2000, rel=0.25)
    assert str(found).startswith(f"A batch of {found.size} fits into")
    assert f"Accumulated(microbatch_size={found.size})" in str(found)


def test_nothing_fits():
    found = kpg.diagnose.what_fits(_net(), memory="1MB")
    assert found.size is None
    assert found.step.batch_size == 1
    assert "Nothing fits into 1.0 MB: a batch of one sample" in str(found)


def test_the_model_is_left_as_it_is(counter):
    model = _net(keras.layers.Dropout(0.5), metrics=["mae"])
    before = model.get_weights()
    states = random.getstate(), np.random.get_state()[1].tolist()
    table = kpg.explain(model, 7)
    assert counter == []  # only when it is asked for
    assert table.memory is table.memory
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    assert not model.optimizer.built
    assert not model._compile_loss.built
    assert_equal(before, model.get_weights())
    assert counter == [7]
    assert (table.memory.device, table.memory.rise) == ("GPU:0", 7 * MB)
    assert table.memory.peak == 12 * MB
    assert "measured on GPU:0" in str(table.memory)


def _private():
    private = kpg.PrivateTraining(
        noise_multiplier=1.0, batch_size=4, epochs=1, samples=64, delta=1e-3
    )
    return private.gradient_mode


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        ("batch", "Vectorized(aggregation=ClippedMean(clip_norm=1.0))"),
        (kpg.PerSample(), "PerSample"),
        (kpg.Accumulated(microbatch_size=4), "Accumulated(steps=1"),
        ("private", "PrivateMean"),
    ],
    ids=lambda value: str(value)[:9],
)
def test_the_compiled_mode_is_measured(counter, mode, found):
    model = kpg.PerGradModel.from_model(_net())
    mode = _private() if mode == "private" else mode
    model.compile("sgd", "mse", gradient_mode=mode, jit_compile=False)
    assert found in str(kpg.explain(model, 8).memory)
    assert counter == [8]


@pytest.mark.quick
def test_a_train_step_of_its_own_is_measured(counter):
    own = compiled(net(shape=(4,), units=1, cls=OwnStep))
    assert kpg.explain(own, 3).memory.rise == 3 * MB


def test_a_size_that_fits_is_found(counter):
    found = _fits(_net(), "55MB", at_most=90)
    assert 46 <= found.size <= 50
    assert found.step.rise == found.size * MB
    assert found.limit == "the memory of the step"
    # A GPU that is smaller.
    found = _fits(_net(), "8GB")
    assert 88 <= found.size <= 95
    assert max(counter) > 95
    found = _fits(_net(), "8GB", at_most=9)
    assert (found.size, found.step.batch_size) == (9, 9)
    assert "limited by at_most=9, beyond which none was tried." in str(found)


def test_a_size_of_microbatches_is_found(counter):
    mode = kpg.Accumulated(inner=kpg.Vectorized(kpg.ClippedMean(1.0)))
    found = _fits(_net(), gradient_mode=mode, batch_size=16)
    assert (found.size, found.step.batch_size) == (16, 16)
    assert found.microbatch
    assert str(found).startswith("A microbatch of 16 fits")
    assert "limited by batch_size=16, which is all samples." in str(found)


def test_batches_have_the_structure_of_the_rows(counter):
    inputs = keras.Input((4,), name="a")
    outputs = {"one": keras.layers.Dense(2, name="one")(inputs)}
    model = keras.Model({"a": inputs}, outputs)
    model.compile("sgd", {"one": "mse"})
    x = {"a": np.eye(3, 4, dtype="float32")}
    assert _fits(model, x=x, at_most=4).size == 4


@pytest.mark.parametrize("is_given", [False, True])
def test_sparse_inputs_are_refused(is_given):
    model = compiled(net(keras.layers.Dense(2), shape=(4,)))
    x = tf.sparse.from_dense(np.eye(3, 4, dtype="float32"))
    if not is_given:
        inputs = keras.Input((4,), sparse=True)
        model, x = keras.Model(inputs, keras.layers.Dense(2)(inputs)), None
    with pytest.raises(ValueError, match="Received sparse or ragged ones"):
        _fits(model, x=x)


def test_unknown_lengths_are_refused():
    model = compiled(net(shape=(None, 4)))
    with pytest.raises(ValueError, match=r"unknown length.*Pass a batch"):
        kpg.explain(model, 7).memory  # noqa: B018


@pytest.mark.quick
def test_a_model_that_the_mode_refuses(counter):
    mixing = _net(keras.layers.BatchNormalization())
    with pytest.raises(ValueError, match="batch_normalization"):
        _fits(mixing, "1TB", "vectorized", at_most=4)
    # In the same process, afterwards.
    assert _fits(mixing, "1TB", at_most=4).size == 4


def test_bad_input_is_refused_by_name():
    model = _net()
    wrong = "8", "GB", "8 apples", "-8GB", 0, -1, True, None, 8.5, "0MB"
    no_memory = "`memory` expected a positive"
    for settings, said in (
        *(({"memory": memory}, no_memory) for memory in wrong),
        ({"at_most": 0}, "`at_most` expected a positive"),
        ({"batch_size": 0}, "`batch_size` expected a positive"),
        ({"gradient_mode": "no such mode"}, "gradient mode"),
    ):
        with pytest.raises(ValueError, match=said):
            _fits(model, **settings)
    with pytest.raises(TypeError, match=r"must be a keras\.Model"):
        _fits(keras.layers.Dense(1))


def test_amounts_of_memory():
    assert parse_bytes("memory", "8GB") == 8 * 10**9
    assert parse_bytes("memory", "8 GiB") == 8 * 2**30
    assert parse_bytes("memory", "1.5mb") == 1_500_000
    assert parse_bytes("memory", 12_345) == 12_345
