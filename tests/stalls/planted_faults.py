"""Pipelines with one fault each, and what following an advice needs."""

import dataclasses
import time

import numpy as np
import tensorflow as tf

from tests.stalls import slow_data
from tests.stalls.plain_python import compute
from tests.stalls.slow_data import as_batch, generated_plainly
from tests.stalls.stall_truth import BATCH, Loader

BATCHES = 24


def sleeping(seconds):
    def slow(i):
        time.sleep(seconds)
        return i

    return slow


def in_python(function):
    def decode(i):
        return tf.ensure_shape(tf.numpy_function(function, [i], tf.int64), ())

    return decode


@dataclasses.dataclass
class Fault:
    """A pipeline, and how it is made again with an advice followed.

    Attributes:
        data: What `fit` gets.
        advice: The name of the advice that must come first.
        names: The names that the printed code uses; it makes `dataset`.
        finish: If not None, applied to `dataset` after the printed code.
        step: Seconds of a step.
        epochs: Epochs of a `fit`; the last one is looked at.
    """

    data: object
    advice: str
    names: dict
    finish: object = None
    step: float = 0.003
    epochs: int = 1


def _batched(data):
    return data.batch(4).map(as_batch).prefetch(2)


def _as_batches(data):
    return data.map(as_batch)


def _of_a_map(advice, function, change=None, *, step=0.003):
    """A map of single numbers, and a change of what it gives."""
    source = tf.data.Dataset.range(4 * BATCHES)
    data = source.map(function)
    names = {"dataset": source, function.__name__: function}
    data = _batched(change(data) if change else data)
    return Fault(data, advice, names, finish=_batched, step=step)


def slow_read():
    return _of_a_map("parallel map", in_python(sleeping(0.004)))


def slow_decode_in_python():
    source = tf.data.Dataset.range(4 * BATCHES)
    names = {"dataset": source, "python_function": compute}
    # As the comment in the code says: the function in the map is exchanged.
    names["decode"] = lambda i: in_python(names["in_process"])(i)
    data = _batched(source.map(in_python(compute)))
    return Fault(data, "python map", names, finish=_batched)


def too_large_a_shuffle_buffer():
    def shuffle(data):
        return data.shuffle(4 * BATCHES)

    decode = in_python(sleeping(0.002))
    return _of_a_map("shuffle buffer", decode, shuffle, step=0.02)


def no_prefetch():
    plain = generated_plainly()
    return Fault(plain, "prefetch", {"dataset": plain}, step=0.025)


def interleave_missing():
    def read(shard):
        inside = tf.data.Dataset.range(24)
        return inside.map(in_python(sleeping(0.003)))

    shards = tf.data.Dataset.range(4)
    data, names = shards.flat_map(read), {"files": shards, "read": read}
    return Fault(_batched(data), "interleave", names, finish=_batched)


def cache_after_random_augmentation():
    def augment(i):
        return i + tf.random.uniform((), 0, 2, tf.int64)

    advice = "cache after random augmentation"
    return _of_a_map(advice, augment, lambda data: data.cache())


def batch_after_a_cheap_map():
    def twice(i):
        return 2 * i

    source = tf.data.Dataset.range(2048 * BATCHES)
    data = _as_batches(source.map(twice).batch(2048))
    names = {"dataset": source, "twice": twice}
    return Fault(data, "batch first", names, finish=_as_batches, step=0)


def _loading(function):
    def load(i):
        function(i)
        return BATCH

    return load


def one_worker():
    data = Loader(_loading(sleeping(0.015)), BATCHES)
    return Fault(data, "few workers", {"dataset": data})


#: What the issue of every stalled training begins with.
FAULTS = (
    slow_read,
    slow_decode_in_python,
    too_large_a_shuffle_buffer,
    no_prefetch,
    interleave_missing,
    cache_after_random_augmentation,
    batch_after_a_cheap_map,
    one_worker,
)


def a_generator_with_integer_labels():
    def load(i):
        time.sleep(0.015)
        return np.full((4, 3), i, np.float64), [[int(i)]] * 4

    spec = (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1), tf.int32))
    generated = tf.data.Dataset.from_generator(
        lambda: map(load, range(BATCHES)), output_signature=spec
    )
    names = {"dataset": generated, "load": load, "count": BATCHES}
    return Fault(generated, "from_generator", names)


def parallel_calls_that_sleep():
    source = tf.data.Dataset.range(16 * BATCHES)
    decode = in_python(sleeping(0.004))

    def finish(data):
        return data.batch(16).map(lambda x: as_batch(x[:4])).prefetch(2)

    data = finish(source.map(decode, num_parallel_calls=tf.data.AUTOTUNE))
    names = {"dataset": source, "decode": decode}
    return Fault(data, "parallel map", names, finish=finish)


def the_same_work_every_epoch():
    data = slow_data.computed()
    return Fault(data, "cache", {"dataset": data}, step=0, epochs=2)


def a_shuffle_of_batches():
    source = slow_data.python_map(slow_data.slow, slow_data.numbers())
    data, names = slow_data.shuffled_batches(), {"dataset": source}
    return Fault(data, "shuffle buffer", names, finish=_as_batches, step=0)


def a_few_threads_that_compute():
    data = Loader(_loading(compute), 60, workers=3)
    names = {"dataset": data}
    return Fault(data, "threads that compute", names, step=0)


#: More faults; other advice may come before theirs.
OTHERS = (
    a_generator_with_integer_labels,
    parallel_calls_that_sleep,
    the_same_work_every_epoch,
    a_shuffle_of_batches,
    a_few_threads_that_compute,
)
