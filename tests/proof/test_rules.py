"""The rules' types, with motion as a witness."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.proof.tensor_types import At, Free, Mixed, Total
from tests.proof.motion import N, witness

layers = keras.layers
_rng = np.random.default_rng(6)
MATRIX = tf.constant(_rng.normal(size=(4, 4)))


def _data(*shape):
    return _rng.normal(size=(2 * N, *shape))


def at(axis=0, rows=1, lead=1):
    return axis, rows, lead


def _counts(x):
    """Indices (0 or 1, sample, column) for four entries of each sample."""
    rows = tf.range(tf.shape(x)[0])[:, None, None] * [0, 1, 0]
    return tf.add(rows, [[0, 0, 2], [1, 0, 2], [1, 0, 8], [0, 0, 0]])


FIRST = at()
#: name → (function, the place of samples or a type, shape of a sample if it
#: is not (4,)).
OPS = {
    "sin": (tf.sin, FIRST),
    "add_constant": (lambda x: x + MATRIX[0], FIRST),
    "add_other_axis": (lambda x: x[:, None] + x[None], Mixed),
    "shape": (tf.shape, Free),
    "zeros_like": (tf.zeros_like, None),
    "transpose": (tf.transpose, at(1)),
    "transpose_middle": (
        lambda x: tf.transpose(x, (1, 2, 0, 3)),
        at(2),
        (2, 4, 3),
    ),
    "merge_after": (lambda x: tf.reshape(x, (-1, 4)), at(0, 5), (5, 4)),
    "merge_before": (
        lambda x: tf.reshape(tf.transpose(x, (1, 0, 2)), (-1, 4)),
        at(0, 1, 5),
        (5, 4),
    ),
    "merge_both": (
        lambda x: tf.reshape(tf.transpose(x, (1, 0, 2)), (-1,)),
        at(0, 4, 5),
        (5, 4),
    ),
    "split_merged": (
        lambda x: tf.reshape(tf.reshape(x, (-1, 4)), (-1, 5, 4)),
        FIRST,
        (5, 4),
    ),
    "take_apart": (lambda x: tf.reshape(x, (4, -1)), Mixed),
    "expand": (lambda x: x[None], at(1)),
    "squeeze": (lambda x: tf.squeeze(x[None], 0), FIRST),
    "sum_samples": (lambda x: tf.reduce_sum(x, 0), Total),
    "mean_of_all": (tf.reduce_mean, Total),
    "total_times_free": (lambda x: tf.reduce_sum(x, 0) * MATRIX, Total),
    "total_of_totals": (
        lambda x: tf.reduce_sum(x, 0) + tf.reduce_sum(x[:, ::-1], 0),
        Total,
    ),
    "squared_total": (lambda x: tf.reduce_sum(x, 0) ** 2, Mixed),
    "total_times_total": (lambda x: tf.reduce_sum(x) * tf.reduce_sum(x), Mixed),
    "sum_features": (lambda x: tf.reduce_sum(x, 1), FIRST),
    "largest": (lambda x: tf.reduce_max(x, 0), Mixed),
    "matmul": (lambda x: tf.matmul(x, MATRIX), FIRST),
    "matmul_from_left": (
        lambda x: tf.matmul(MATRIX, x, transpose_b=True),
        at(1),
    ),
    "batched_matmul": (
        lambda x: tf.matmul(x, x, transpose_b=True),
        FIRST,
        (3, 4),
    ),
    "weight_gradient": (
        lambda x: tf.matmul(x, tf.ones_like(x), transpose_a=True),
        Total,
    ),
    "moments": (lambda x: tf.matmul(x, x, transpose_a=True), Total),
    "pairs": (lambda x: tf.matmul(x, x, transpose_b=True), Mixed),
    "einsum": (lambda x: tf.einsum("nij,kj->kni", x, MATRIX), at(1), (3, 4)),
    "einsum_total": (lambda x: tf.einsum("nij,nij->j", x, x), Total, (3, 4)),
    "einsum_pairs": (lambda x: tf.einsum("ni,mi->nm", x, x), Mixed),
    "concat": (lambda x: tf.concat([x, x], 1), FIRST),
    "concat_samples": (lambda x: tf.concat([x, x], 0), None),
    "stack": (lambda x: tf.stack([x, -x]), at(1)),
    "unstack": (lambda x: tf.unstack(x, axis=1)[1], FIRST, (3, 4)),
    "split": (lambda x: tf.split(x, 2, 1)[1], FIRST),
    "slice": (lambda x: x[:, 1:3], FIRST),
    "slice_samples": (lambda x: x[1:], Mixed),
    "pad": (lambda x: tf.pad(x, [[0, 0], [1, 1]]), FIRST),
    "tile": (lambda x: tf.tile(x, (1, 2)), FIRST),
    "repeat": (lambda x: tf.repeat(x, 3, 0), at(0, 3)),
    "tile_samples": (lambda x: tf.tile(x, (2, 1)), None),
    "gather_features": (lambda x: tf.gather(x, [2, 0], axis=1), FIRST),
    "gather_by_samples": (
        lambda x: tf.gather(MATRIX, tf.cast(abs(x), "int32") % 4),
        FIRST,
        (2,),
    ),
    "gather_own": (
        lambda x: tf.gather(x, tf.argsort(x, 1), axis=1, batch_dims=1),
        FIRST,
    ),
    "gather_samples": (lambda x: tf.gather(x, [1, 0, 2]), Mixed),
    "roll": (lambda x: tf.roll(x, 1, 1), FIRST),
    "roll_samples": (lambda x: tf.roll(x, 1, 0), Mixed),
    "sort": (lambda x: tf.sort(x, 1), FIRST),
    "top_k": (lambda x: tf.math.top_k(x, 2)[1], FIRST),
    "cumsum": (lambda x: tf.cumsum(x, 1), FIRST),
    "cumsum_samples": (lambda x: tf.cumsum(x, 0), Mixed),
    "softmax": (tf.nn.softmax, FIRST),
    "softmax_samples": (lambda x: tf.nn.softmax(x, 0), Mixed),
    "one_hot": (lambda x: tf.one_hot(tf.argmax(x, 1), 4, axis=0), at(1)),
    "where": (lambda x: tf.where(x > 0, x, 0.1 * x), FIRST),
    "convolution": (
        lambda x: tf.nn.conv1d(x, tf.ones((2, 4, 3), x.dtype), 1, "SAME"),
        FIRST,
        (5, 4),
    ),
    "pooling": (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), FIRST, (4, 4, 2)),
    "fourier": (
        lambda x: tf.abs(tf.signal.fft(tf.cast(x, "complex128"))),
        FIRST,
    ),
    "inverse": (lambda x: tf.linalg.inv(x + 9 * MATRIX), FIRST, (4, 4)),
    "diagonal": (tf.linalg.diag, FIRST),
    "segments": (
        lambda x: tf.math.unsorted_segment_sum(
            tf.transpose(x), [0, 1, 0, 1], 2
        ),
        at(1),
    ),
    "largest_of_segments": (
        lambda x: tf.math.unsorted_segment_max(
            tf.transpose(x), [0, 1, 0, 1], 2
        ),
        at(1),
    ),
    "largest_of_segments_of_samples": (
        lambda x: tf.math.unsorted_segment_max(x, tf.range(tf.shape(x)[0]), 9),
        None,
    ),
    "scatter_by_counts": (
        lambda x: tf.scatter_nd(_counts(x), x, [2, tf.shape(x)[0], 9]),
        at(1),
    ),
    "gather_by_counts": (
        lambda x: tf.gather_nd(tf.transpose(x, (1, 0, 2)), _counts(x)),
        FIRST,
        (2, 9),
    ),
    "depth_to_space": (lambda x: tf.nn.depth_to_space(x, 2), FIRST, (2, 2, 4)),
    "loop": (
        lambda x: tf.while_loop(
            lambda k, v: k < 3, lambda k, v: (k + 1, tf.sin(v)), (0, x)
        )[1],
        FIRST,
    ),
    "branch": (
        lambda x: tf.cond(MATRIX[0, 0] > 0, lambda: x, lambda: 2 * x),
        FIRST,
    ),
    "map_over_features": (lambda x: tf.map_fn(tf.sin, tf.transpose(x)), at(1)),
}


def _row(name):
    return (*OPS[name], (4,))[:3]


@pytest.mark.parametrize("name", OPS)
def test_types_agree_with_motion(name):
    function, expected, shape = _row(name)
    witness(function, _data(*shape)).assert_right(expected)


@pytest.mark.parametrize("name", OPS)
def test_types_of_gradients_agree_with_motion(name):
    function, expected, shape = _row(name)
    if not isinstance(expected, tuple) or "gather_by" in name:
        pytest.skip("nothing to pull back")

    def pulled(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = function(x)
            if not result.dtype.is_floating or name == "one_hot":
                return result
            value = tf.reduce_sum(tf.cast(result, x.dtype) ** 2)
        return tape.gradient(value, x)

    seen = witness(pulled, _data(*shape))
    assert not seen.faults()
    assert isinstance(seen.of_result(), At)


def test_the_witness_finds_a_wrong_type():
    seen = witness(lambda x: tf.transpose(tf.sin(x)), _data(N))
    seen.types[seen.result] = At(0)
    assert len(seen.faults()) == 1
    seen.types[seen.result] = Free()
    assert len(seen.faults()) == 1
    seen = witness(lambda x: tf.roll(x, 1, 0), _data(4))
    seen.types[seen.result] = At(0)
    assert "others move" in seen.faults()[0]
    seen = witness(lambda x: tf.reduce_sum(x, 0) ** 2, _data(4))
    seen.types[seen.result] = Total()
    assert "add up" in seen.faults()[0]


class Products(layers.Layer):
    """Products by einsum, with positions in front of the samples."""

    def build(self, shape):
        self.w = self.add_weight((2, shape[-1], 3))

    def call(self, x):
        x = keras.ops.einsum("bti,hio->htbo", x, self.w)
        return keras.ops.einsum("htbo,hsbo->bto", x, keras.ops.tanh(x))


def _transformer(x):
    mask = layers.Lambda(lambda t: t[:, None, :, 0] > -1.0)(x)
    normed = layers.LayerNormalization()(x)
    h = layers.MultiHeadAttention(2, 3)(normed, normed, attention_mask=mask)
    return x + layers.Dense(4, "gelu")(x + h)


def _masked(x):
    masked = layers.Masking(-9.0)(x)
    # Without it, Keras 3.8 takes each row of the mask for one of the scores.
    attention = layers.Attention(use_scale=True)
    return attention([masked, masked], use_causal_mask=True)


MODELS = {
    "transformer": (_transformer, (5, 4)),
    "attention_with_masks": (_masked, (5, 4)),
    "convolutions": (
        lambda x: layers.GlobalAveragePooling2D()(
            layers.SeparableConv2D(3, 2)(
                layers.MaxPooling2D()(layers.Conv2D(4, 3, padding="same")(x))
            )
        ),
        (6, 6, 2),
    ),
    "lstm": (lambda x: layers.LSTM(3)(x), (5, 4)),
    "gru_both_ways": (
        lambda x: layers.Bidirectional(
            layers.GRU(3, return_sequences=True, reset_after=False)
        )(x),
        (5, 4),
    ),
    "einsum": (lambda x: Products()(x), (5, 4)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("float64")
def test_types_of_whole_models_agree_with_motion(name):
    make, shape = MODELS[name]
    inputs = keras.Input(shape)
    model = keras.Model(inputs, layers.Dense(2)(make(inputs)))

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        return tape.gradient(loss, [x, *model.trainable_variables])[0]

    x = _data(*shape)
    x[0, -2:] = x[N, -1:] = -9.0
    seen = witness(step, x)
    assert not seen.faults()
    assert isinstance(seen.of_result(), At)
    assert seen.moved() > 15
    assert not any(isinstance(t, Mixed) for t in seen.types.values())
