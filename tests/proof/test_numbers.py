"""Sequences whose length is not declared: served for all lengths, or refused.

What is served trains as `keras.Model.fit` does on the same data. A number that
stands for a length, or for that of the samples, is no size and no constant.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.proof import numbers
from tests.models.making import assert_equal, compiled, integers, normal, trained, unchanged
from tests.proof.mixing_cases import Apply

L = keras.layers
MODES = {
    "batch": lambda: "batch",
    "vectorized": lambda: "vectorized",
    "per_sample": lambda: "per_sample",
    "accumulated": lambda: kpg.Accumulated(microbatch_size=4),
    "several batches": lambda: kpg.Accumulated(steps=2, microbatch_size=4),
    "clipped": lambda: kpg.Vectorized(kpg.ClippedMean(1e6)),
    "virtual": lambda: kpg.Accumulated(
        microbatch_size=4, inner=kpg.Vectorized(kpg.ClippedMean(1e6))
    ),
}


def _self(layer):
    return lambda x: layer(x, x)


#: Of (samples, steps, 3), all that `keras.layers` has for sequences.
ONE = {
    "AdditiveAttention": lambda: lambda x: L.AdditiveAttention()([x, x]),
    "Attention": lambda: lambda x: L.Attention(use_scale=True)([x, x]),
    "AveragePooling1D": lambda: L.AveragePooling1D(2),
    "BatchNormalization": lambda: L.BatchNormalization(trainable=False),
    "Bidirectional": lambda: L.Bidirectional(L.GRU(2, return_sequences=True)),
    "Conv1D": lambda: L.Conv1D(2, 3),
    "Conv1D, causal": lambda: L.Conv1D(2, 3, padding="causal", dilation_rate=2),
    "Conv1D, strides": lambda: L.Conv1D(2, 3, strides=2, padding="same"),
    "Conv1DTranspose": lambda: L.Conv1DTranspose(2, 3, strides=2),
    "ConvLSTM1D": lambda: lambda x: L.Reshape((-1, 6))(
        L.ConvLSTM1D(2, 1, return_sequences=True)(x[..., None])
    ),
    "Cropping1D": lambda: L.Cropping1D(1),
    "Dense": lambda: L.Dense(2, "tanh"),
    "DepthwiseConv1D": lambda: L.DepthwiseConv1D(2),
    "EinsumDense": lambda: L.EinsumDense("abc,cd->abd", (None, 2)),
    "GRU": lambda: L.GRU(2, return_sequences=True),
    "GlobalMaxPooling1D": lambda: lambda x: L.RepeatVector(2)(
        L.GlobalMaxPooling1D()(x)
    ),
    "GroupNormalization": lambda: L.GroupNormalization(3),
    "GroupQueryAttention": lambda: _self(L.GroupQueryAttention(2, 2, 1)),
    "LSTM": lambda: L.LSTM(2, return_sequences=True),
    "LayerNormalization": lambda: L.LayerNormalization(),
    "MaxPooling1D": lambda: L.MaxPooling1D(2),
    "MultiHeadAttention": lambda: _self(L.MultiHeadAttention(2, 2)),
    "PReLU": lambda: L.PReLU(shared_axes=[1]),
    "Permute": lambda: lambda x: L.Permute((2, 1))(L.Permute((2, 1))(x)),
    "RNN": lambda: L.RNN(L.GRUCell(2), return_sequences=True),
    "SeparableConv1D": lambda: L.SeparableConv1D(2, 2),
    "SimpleRNN": lambda: L.SimpleRNN(2, return_sequences=True),
    "StackedRNNCellsX": lambda: L.RNN(
        L.StackedRNNCells([L.LSTMCell(2), L.LSTMCell(2)]),
        return_sequences=True,
    ),
    "TimeDistributed": lambda: L.TimeDistributed(L.Dense(2)),
    "UpSampling1D": lambda: L.UpSampling1D(2),
    "ZeroPadding1D": lambda: L.ZeroPadding1D(1),
}
#: Of two sequences; the last is as long as the first, or not.
TWO = {
    "Add": (lambda: L.Add(), True),
    "Concatenate": (lambda: L.Concatenate(), True),
    "Maximum": (lambda: L.Maximum(), True),
    "Multiply": (lambda: L.Multiply(), True),
    "Subtract": (lambda: L.Subtract(), True),
    "Concatenate, steps": (lambda: L.Concatenate(axis=1), False),
    "AdditiveAttention": (lambda: L.AdditiveAttention(), False),
    "Attention": (lambda: L.Attention(use_scale=True), False),
    "Dot": (lambda: lambda xs: keras.ops.mean(L.Dot(2)(xs), 2, True), False),
    "MultiHeadAttention": (
        lambda: lambda xs: L.MultiHeadAttention(2, 2)(*xs),
        False,
    ),
    "GroupQueryAttention": (
        lambda: lambda xs: L.GroupQueryAttention(2, 2, 1)(*xs),
        False,
    ),
    "states": (lambda: lambda xs: _decoded(*xs), False),
}


def _decoded(source, target):
    _, *states = L.LSTM(3, return_state=True)(source)
    return L.LSTM(3, return_sequences=True)(target, initial_state=states)


def _pooled(sequence):
    return L.Dense(2)(L.GlobalAveragePooling1D()(sequence))


def _one(*names):
    """A model of one sequence, with some layers beside each other."""
    x = keras.Input((None, 3))
    hidden = L.Dense(3)(x)
    parts = [_pooled(ONE[name]()(hidden)) for name in names]
    return keras.Model(x, parts[0] if len(parts) == 1 else L.Add()(parts))


def _two(*names):
    """A model of two or three sequences."""
    inputs = [keras.Input((None, 3)) for _ in range(3)]
    hidden = [L.Dense(3)(x) for x in inputs]
    parts = []
    for name in names:
        make, are_equal = TWO[name]
        pair = hidden[:2] if are_equal else [hidden[0], hidden[2]]
        parts.append(_pooled(make()(pair)))
    parts.append(_pooled(hidden[1]))
    parts.append(_pooled(hidden[2]))
    return keras.Model(inputs, L.Add()(parts))


def _sequences(*lengths, size=6):
    return tuple(normal(size, k, 3, seed=k + 10 * i) for i, k in enumerate(lengths))


def _data(*batches):
    """A data set that declares no length: all axes but the last are open."""

    def open_spec(part):
        shape = [None] * max(part.ndim - 1, 1) + list(part.shape[2:])
        if part.ndim == 2:
            shape = [None, None]
        return tf.TensorSpec(shape, part.dtype)

    signature = tf.nest.map_structure(open_spec, batches[0])
    return tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=signature
    )


def _check(make, data, mode, loss="mse"):
    """Assert that a mode trains as `keras.Model` does on two batches."""
    steps = 2 if mode == "several batches" else None
    plain, found = (
        compiled(
            _seeded(make),
            by_mode,
            loss,
            optimizer=keras.optimizers.SGD(
                0.1, gradient_accumulation_steps=accumulated
            ),
        )
        for by_mode, accumulated in ((None, steps), (MODES[mode](), None))
    )
    for model in (plain, found):
        trained(model, data, steps_per_epoch=2)
    assert_equal(found.get_weights(), plain.get_weights(), rtol=1e-4, atol=1e-5)


def _seeded(make):
    keras.utils.set_random_seed(0)
    return make()


def _one_sequence():
    return _data(
        *((*_sequences(k), normal(6, 2, seed=k)) for k in (7, 5))
    )


def _two_sequences():
    return _data(
        *((_sequences(k, k, m), normal(6, 2, seed=k)) for k, m in ((7, 5), (5, 6)))
    )


@pytest.mark.parametrize("mode", MODES)
def test_layers_of_one_sequence_train_as_in_keras(mode):
    _check(lambda: _one(*[k for k in ONE if k != "StackedRNNCellsX"]), _one_sequence(), mode)


@pytest.mark.parametrize("mode", MODES)
def test_layers_of_several_sequences_train_as_in_keras(mode):
    _check(lambda: _two(*TWO), _two_sequences(), mode)
