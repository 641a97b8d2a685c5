"""Slow pipelines, and the same ones after following an advice."""

import time

import tensorflow as tf

from tests.stalls.stall_truth import (
    BATCH,
    Loader,
    no_hidden_prefetch,
    of_generator,
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


def generated_plainly():
    return no_hidden_prefetch(of_generator(load, BATCHES))


def heavy(i):
    square = tf.ones((420, 420)) * tf.cast(i, tf.float32)
    total = tf.reduce_sum(tf.linalg.matmul(square, square))
    return i + tf.cast(tf.clip_by_value(total, 0.0, 0.0), tf.int64)


def computed():
    data = numbers().map(heavy).map(heavy).batch(4).map(as_batch)
    return data.prefetch(1)


def shuffled_batches():
    return serial_map().shuffle(BATCHES // 2)


def torch_loader():
    import torch.utils.data

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 4 * BATCHES

        def __getitem__(self, index):
            slow(index)
            return BATCH[0][0], BATCH[1][0]

    return torch.utils.data.DataLoader(Samples(), batch_size=4)


def py_dataset():
    return Loader(load, BATCHES)
