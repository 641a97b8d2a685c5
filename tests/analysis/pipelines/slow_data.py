"""Slow pipelines, and the same ones after following an advice."""

import time

import tensorflow as tf

from tests.callbacks.stall_truth import (
    BATCH,
    SPEC,
    Loader,
    no_hidden_prefetch,
)

BATCHES = 16
PIECE = 0.004  # seconds to load one of the four samples of a batch
PARALLEL = {"num_parallel_calls": 4}


def slow(i):
    time.sleep(PIECE)
    return i


def load(i):
    time.sleep(4 * PIECE)
    return BATCH


def as_batch(x):
    x = tf.ensure_shape(tf.cast(x, tf.float32), (None,))
    return tf.stack([x, x, x], 1), x[:, None]


def python_map(function, data, **settings):
    def call(i):
        return tf.numpy_function(function, [i], tf.int64)

    return data.map(call, **settings)


def numbers():
    return tf.data.Dataset.range(4 * BATCHES)


def serial_map():
    return python_map(slow, numbers()).batch(4).map(as_batch)


def parallel_map():
    return python_map(slow, numbers(), **PARALLEL).batch(4).map(as_batch)


def generated():
    return tf.data.Dataset.from_generator(
        lambda: map(load, range(BATCHES)), output_signature=SPEC
    )


def generated_plainly():
    return no_hidden_prefetch(generated())


def loaded_by_number():
    def call(i):
        x, y = tf.numpy_function(load, [i], (tf.float32, tf.float32))
        return tf.ensure_shape(x, (None, 3)), tf.ensure_shape(y, (None, 1))

    return tf.data.Dataset.range(BATCHES).map(call, **PARALLEL)


def heavy(i):
    square = tf.ones((420, 420)) * tf.cast(i, tf.float32)
    total = tf.reduce_sum(tf.linalg.matmul(square, square))
    return i + tf.cast(tf.clip_by_value(total, 0.0, 0.0), tf.int64)


def computed():
    data = numbers().map(heavy).map(heavy).batch(4).map(as_batch)
    return data.prefetch(1)


def in_bursts(deterministic):
    def loading(i):
        time.sleep(0.06 if i % 16 == 0 else 0.001)
        return i

    data = tf.data.Dataset.range(12 * BATCHES)
    data = python_map(loading, data, **PARALLEL)
    data = data.shuffle(4).batch(4).map(as_batch)
    options = tf.data.Options()
    options.deterministic = deterministic
    return data.prefetch(2).with_options(options)


def shuffled(late):
    data = python_map(slow, numbers())
    if late:
        return data.batch(4).map(as_batch).shuffle(BATCHES // 2)
    return data.shuffle(BATCHES // 2).batch(4).map(as_batch)


def read_lines(folder, **settings):
    """128 lines of 1 KB a batch."""
    path = folder / "lines.txt"
    path.write_text(("x" * 1023 + "\n") * 128 * BATCHES)
    data = tf.data.TextLineDataset([str(path)], **settings).batch(128)
    return data.map(lambda lines: as_batch(tf.strings.length(lines)))


def torch_loader(**settings):
    import torch.utils.data

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 4 * BATCHES

        def __getitem__(self, index):
            slow(index)
            return BATCH[0][0], BATCH[1][0]

    return torch.utils.data.DataLoader(Samples(), batch_size=4, **settings)


def py_dataset(**settings):
    return Loader(load, BATCHES, **settings)


def python_generator():
    return (load(i) for i in range(BATCHES))
