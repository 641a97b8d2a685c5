"""Each advice: a pipeline that calls for it, and what following it brings."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.callbacks import DataStall
from keras_pergrad.pipelines.advice import advise
from keras_pergrad.pipelines.facts import gather
from tests.callbacks.stall_truth import (
    BATCH,
    SPEC,
    Clock,
    Loader,
    TimedStepModel,
    no_hidden_prefetch,
)

# Times depend on what else the machine does: `make test-timing`.
pytestmark = pytest.mark.timing

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]
N = 96
PARALLEL = {"num_parallel_calls": 4}


def slow(i):
    import time

    time.sleep(0.004)
    return i


def slow_map(i):
    return tf.numpy_function(slow, [i], tf.int64)


def as_batch(x):
    x = tf.ensure_shape(tf.cast(x, tf.float32), (None,))
    return tf.stack([x, x, x], 1), x[:, None]


def heavy(i):
    square = tf.ones((420, 420)) * tf.cast(i, tf.float32)
    total = tf.reduce_sum(tf.linalg.matmul(square, square))
    return i + tf.cast(tf.clip_by_value(total, 0.0, 0.0), tf.int64)


def numbers():
    return tf.data.Dataset.range(N)


def serial_map():
    return numbers().map(slow_map).batch(4).map(as_batch)


def parallel_map():
    return numbers().map(slow_map, **PARALLEL).batch(4).map(as_batch)


def generated():
    def batches():
        for i in range(24):
            slow(i)
            slow(i)
            yield BATCH

    return tf.data.Dataset.from_generator(batches, output_signature=SPEC)


def generated_names():
    def load(i):
        slow(i)
        slow(i)
        return BATCH

    def call(i):
        x, y = tf.numpy_function(load, [i], [tf.float32] * 2)
        return tf.ensure_shape(x, (None, 3)), tf.ensure_shape(y, (None, 1))

    return tf.data.Dataset.range(24).map(call, **PARALLEL)


def computed():
    data = numbers().map(heavy).map(heavy).batch(4).map(as_batch)
    return data.prefetch(1)


CASES = {
    "prefetch": (
        lambda: no_hidden_prefetch(generated()),
        lambda: no_hidden_prefetch(generated()).prefetch(2),
    ),
    "parallel map": (serial_map, parallel_map),
    "from_generator": (generated, generated_names),
    "workers": (
        lambda: Loader(lambda i: (slow(i), slow(i), BATCH)[2], 24),
        lambda: Loader(lambda i: (slow(i), slow(i), BATCH)[2], 24, workers=3),
    ),
    "cache": (computed, lambda: computed().cache()),
}


def fit(data, epochs=2):
    model = TimedStepModel(Clock(), 0.003)
    model.compile("sgd", "mse", jit_compile=False)
    stall = DataStall()
    model.fit(data, epochs=epochs, verbose=0, callbacks=[stall])
    return stall


@pytest.mark.parametrize("name", CASES)
def test_advice_is_given_and_helps(name, capsys):
    before, after = CASES[name]
    stall = fit(before())
    assert stall.message is not None, stall.reports
    assert f"\n{stall.message}" in capsys.readouterr().out
    facts = gather(before(), None, 10.0, 3.0)
    keys = {"prefetch": "prefetch(tf", "parallel map": "num_parallel_calls"}
    keys |= {"from_generator": "one Python thread", "workers": "workers=4"}
    keys |= {"cache": "dataset.cache()"}
    assert keys[name] in stall.message, (stall.message, facts)
    followed = fit(after())
    assert followed.reports[1].wait_ms < 0.8 * stall.reports[1].wait_ms


def test_shuffle_after_batch_costs_the_first_batch():
    late = numbers().map(slow_map).batch(4).map(as_batch).shuffle(20)
    early = numbers().map(slow_map).shuffle(20).batch(4).map(as_batch)
    given = [a.name for a in advise(gather(late, None, 10.0, 3.0))]
    assert "shuffle after batch" in given
    given = [a.name for a in advise(gather(early, None, 10.0, 3.0))]
    assert "shuffle after batch" not in given
    slow_start = fit(late, 1).reports[0].first_batch_s
    assert fit(early, 1).reports[0].first_batch_s < 0.6 * slow_start


def test_tiny_reads_are_named(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("line\n" * 10)
    tiny = tf.data.TextLineDataset([str(path)], buffer_size=16)
    given = [a.name for a in advise(gather(tiny, None, 1.0, 1.0))]
    assert "tiny reads" in given
    fine = tf.data.TextLineDataset([str(path)])
    given = [a.name for a in advise(gather(fine, None, 1.0, 1.0))]
    assert "tiny reads" not in given


def test_float64_arrays_are_named_and_float32_are_not():
    x = np.zeros((4, 3))
    assert [a.name for a in advise(gather(x, None, 1.0, 1.0))] == ["dtype"]
    x = x.astype("float32")
    assert advise(gather(x, None, 1.0, 1.0)) == []


def test_unordered_needs_bursts_and_a_shuffle():
    data = numbers().shuffle(8).map(slow_map, **PARALLEL).batch(4).prefetch(2)

    def names(data, burst):
        return [a.name for a in advise(gather(data, None, 5.0, 1.0, burst))]

    assert "unordered" in names(data, 4.0)
    assert "unordered" not in names(data, 0.1)
    options = tf.data.Options()
    options.deterministic = False
    assert "unordered" not in names(data.with_options(options), 4.0)


def test_no_prefetch_advice_where_it_would_hide_nothing():
    data = no_hidden_prefetch(numbers().batch(4))
    names = [a.name for a in advise(gather(data, None, 100.0, 1.0))]
    assert "prefetch" not in names


def test_a_pipeline_that_is_fine_gets_no_message():
    data = numbers().batch(4).map(as_batch, **PARALLEL).prefetch(4)
    model = TimedStepModel(Clock(), 0.01)
    model.compile("sgd", "mse", jit_compile=False)
    stall = DataStall(warn_above=0.2)
    model.fit(data, verbose=0, callbacks=[stall])
    assert stall.message is None
    assert advise(gather(data, None, 0.1, 10.0)) == []


def test_a_slow_pipeline_is_told_what_it_must_reach():
    stall = fit(generated().prefetch(2), 1)
    assert "the pipeline must give" in stall.message
    assert "prefetch(tf" not in stall.message
    assert isinstance(stall, keras.callbacks.Callback)
