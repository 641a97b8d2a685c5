"""Segments, and indices that count the samples: mixing beside sound."""

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import function

from tests.proof.mixing_cases import by_axis, layer_pair, transposed, varied

_PAIRS, _NODES = [0, 0, 1, 1], 2


def _columns(reduce):
    """A reduction over columns that have the same number, for each row."""
    return lambda h: tf.concat([tf.transpose(reduce(tf.transpose(h)))] * 2, 1)


def _rows(reduce):
    return lambda h: tf.concat([reduce(h)] * 2, 0)


def _sorted(reduce, t):
    shape = [_NODES, *t.shape[1:]]
    return tf.ensure_shape(reduce(t, tf.constant(_PAIRS)), shape)


_MATH = tf.math
for _name, _reduce in {
    "max": lambda t: _MATH.unsorted_segment_max(t, _PAIRS, _NODES),
    "min": lambda t: _MATH.unsorted_segment_min(t, _PAIRS, _NODES),
    "prod": lambda t: _MATH.unsorted_segment_prod(t, _PAIRS, _NODES),
    "sorted_max": lambda t: _sorted(_MATH.segment_max, t),
    "sorted_mean": lambda t: _sorted(_MATH.segment_mean, t),
}.items():
    layer_pair(f"segments_{_name}", _rows(_reduce), _columns(_reduce))


def _own_numbers(h, step):
    """The largest of each sample's own entries, or of one and the next."""
    n = tf.shape(h)[0]
    ids = tf.range(n)[:, None] + tf.constant([0, 0, 0, step])
    found = tf.math.unsorted_segment_max(h, ids % n, n)
    return h + found[:, None]


layer_pair("segments_of_own_numbers", *varied(_own_numbers, 1, 0))


def _places(h, step):
    """Indices (sample, column), or of the next sample."""
    n = tf.shape(h)[0]
    sample = (tf.range(n) + step) % n
    columns = tf.tile(tf.constant([[3, 1, 0, 2]]), [n, 1])
    rows = tf.zeros_like(columns) + sample[:, None]
    return tf.stack([rows, columns], -1)


def _index_pair(name, act):
    layer_pair(name, *varied(lambda h, step: act(h, _places(h, step)), 1, 0))


_index_pair("scatter_by_counts", lambda h, p: tf.scatter_nd(p, h, tf.shape(h)))
_index_pair("gather_by_counts", lambda h, p: tf.gather_nd(h, p))
for _name in ("add", "sub", "max", "min", "update"):
    _act = getattr(tf, f"tensor_scatter_nd_{_name}")
    _index_pair(
        f"scatter_{_name}_by_counts",
        lambda h, p, act=_act: act(0.3 * h, p, tf.sin(h)),
    )
layer_pair(
    "scatter_into_some",
    lambda h: tf.tensor_scatter_nd_update(h, [[1]], tf.sin(h[:1])),
    lambda h: tf.transpose(
        tf.tensor_scatter_nd_update(
            tf.transpose(h), [[1]], tf.sin(tf.transpose(h)[:1])
        )
    ),
)


def _called(axis):
    """A function that is called by an op of its own name, as in a CTC loss."""

    @function.Defun(tf.float64, func_name=f"largest_along_{axis}")
    def largest(h):
        return tf.reduce_max(h * h, axis, keepdims=True)

    def act(h):
        if tf.executing_eagerly():
            kept = tf.stop_gradient(h * h)
            return h / (1.0 + tf.reduce_max(kept, axis, keepdims=True))
        found = largest(tf.stop_gradient(h))
        shape = h.shape.as_list()
        shape[axis] = 1
        found.set_shape(shape)
        return h / (1.0 + found)

    return act


layer_pair("function_called_by_name", _called(0), _called(1))


def _crops(h, step):
    """Two boxes of each image, or of the next image."""
    n = tf.shape(h)[0]
    images = tf.reshape(tf.cast(h, "float32"), (-1, 2, 2, 1))
    boxes = tf.tile([[0.0, 0.1, 0.9, 1.0], [0.2, 0.0, 1.0, 0.7]], [n, 1])
    boxes += 0.1 * tf.reshape(images, (-1, 2))[:, :1]
    numbers = (tf.repeat(tf.range(n), 2) + step) % n
    found = tf.image.crop_and_resize(images, boxes, numbers, (2, 2))
    found = tf.reduce_sum(tf.reshape(found, (-1, 2, 4)), 1)
    return tf.cast(found, h.dtype)


layer_pair("crops", *varied(_crops, 1, 0))


def _sampled(h, step=0, before=0):
    """Entries at places that follow the values, clipped to each sample's own.

    As in deformable attention: the images of a batch are one table, and
    `take` counts negative places from its end.
    """
    n, columns = tf.shape(h)[0], 4
    places = tf.cast(tf.floor(columns * tf.sin(tf.stop_gradient(h))), "int32")
    places = keras.ops.clip(places, 0, columns - 1) - before
    begins = (tf.range(n) + step) % n * columns
    table = tf.reshape(h, [-1])
    return h + keras.ops.take(table, places + begins[:, None], axis=0)


layer_pair("taken_of_the_next", lambda h: _sampled(h, step=1), _sampled)
layer_pair("taken_before_its_own", lambda h: _sampled(h, before=1), _sampled)


def _places_among(h):
    """Each entry beside how many of its row are smaller."""
    kept = tf.stop_gradient(h)
    found = tf.searchsorted(tf.sort(kept, -1), kept + 0.1)
    return h * tf.cast(found, h.dtype)


def _counted(h, among):
    """Each sample by how many numbers are smaller than its first entry."""
    kept = tf.stop_gradient(h)
    found = tf.searchsorted(among(kept[:, 0]), kept[:, 0])
    return h * tf.cast(found, h.dtype)[:, None]


layer_pair(
    "sought_among_constants",
    lambda h: _counted(h, tf.sort),
    lambda h: _counted(h, lambda _: tf.constant([-0.5, 0, 0.5], h.dtype)),
)


def _by_sparse(h, transposes):
    """A product with a sparse matrix of constants, one entry above another."""
    dense = np.eye(4, k=1) + np.eye(4)
    matrix = tf.cast(tf.sparse.from_dense(dense), h.dtype)
    if not transposes:
        return tf.sparse.sparse_dense_matmul(matrix, h)
    found = tf.sparse.sparse_dense_matmul(matrix, h, adjoint_b=True)
    return tf.transpose(found)


layer_pair("constant_sparse_matrix", *varied(_by_sparse, False, True))
layer_pair("sought_among_sorted", transposed(_places_among), _places_among)


def _grown(images):
    """The largest of neighbours, with a bias for each."""
    bias = tf.constant([[0.1, -0.2], [0.3, 0.0]], images.dtype)[..., None]
    return tf.nn.dilation2d(images, bias, [1] * 4, "SAME", "NHWC", [1] * 4)


layer_pair(
    "dilation",
    lambda h: tf.reshape(_grown(h[None, :, :, None]), (-1, 4)),
    lambda h: tf.reshape(_grown(tf.reshape(h, (-1, 2, 2, 1))), (-1, 4)),
)


def _in_regions(images):
    """Means and maxima over regions that are drawn."""
    sizes = [1.0, 1.3, 1.3, 1.0]
    most = tf.nn.fractional_max_pool(images, sizes, seed=3)[0]
    mean = tf.nn.fractional_avg_pool(images, sizes, seed=3)[0]
    return most + mean


def _regions(h, images):
    found = _in_regions(images)
    total = tf.reduce_sum(found, (1, 2, 3))
    return h * (1 + total[:, None])


layer_pair(
    "fractional_pools",
    lambda h: _regions(h, tf.reshape(h, (1, -1, 4, 1))),
    lambda h: _regions(h, tf.repeat(h[:, None, :, None], 4, 1)),
)
layer_pair(
    "recomputed",
    *by_axis(
        lambda h, axis: (
            h + tf.recompute_grad(lambda t: tf.nn.softmax(t, axis))(h)
        )
    ),
)
layer_pair(
    "compared_with_itself",
    lambda h: h * tf.cast(tf.equal(h[:1], h), h.dtype),
    lambda h: h * tf.cast(tf.equal(h > 0, h > 0), h.dtype),
)
