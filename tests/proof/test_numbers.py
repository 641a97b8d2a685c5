"""Sequences whose length is not declared: served for all lengths, or refused.

What is served trains as `keras.Model.fit` does on the same data. A number that
stands for a length, or for that of the samples, is no size and no constant.
"""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.proof import numbers
from keras_pergrad.uses import TracedStep, refusals
from tests.marks import few
from tests.models.making import (
    assert_equal,
    compiled,
    integers,
    normal,
    trained,
    unchanged,
)
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


#: Of (samples, steps, 3), what `keras.layers` has for sequences. A cell without
#: a rule (StackedRNNCells) is refused behind a trained layer. In Keras itself,
#: TimeDistributed of an open length takes as many steps as there are samples.
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
    "ConvLSTM1D": lambda: (
        lambda x: L.Reshape((-1, 6))(
            L.ConvLSTM1D(2, 1, return_sequences=True)(x[..., None])
        )
    ),
    "Cropping1D": lambda: L.Cropping1D(1),
    "Dense": lambda: L.Dense(2, "tanh"),
    "DepthwiseConv1D": lambda: L.DepthwiseConv1D(2),
    "EinsumDense": lambda: L.EinsumDense("abc,cd->abd", (None, 2)),
    "GRU": lambda: L.GRU(2, return_sequences=True),
    "GlobalMaxPooling1D": lambda: (
        lambda x: L.RepeatVector(2)(L.GlobalMaxPooling1D()(x))
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
    return tuple(
        normal(size, k, 3, seed=k + 10 * i) for i, k in enumerate(lengths)
    )


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


def _check(make, data, mode, *, loss="mse"):
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
    return _data(*((*_sequences(k), normal(6, 2, seed=k)) for k in (7, 5)))


def _two_sequences():
    return _data(
        *(
            (_sequences(k, k, m), normal(6, 2, seed=k))
            for k, m in ((7, 5), (5, 6))
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("mode", ["vectorized", "per_sample", "accumulated"])
def test_layers_of_one_sequence_train_as_in_keras(name, mode):
    _check(lambda: _one(name), _one_sequence(), mode)


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("mode", ["vectorized", "per_sample", "accumulated"])
def test_layers_of_several_sequences_train_as_in_keras(name, mode):
    _check(lambda: _two(name), _two_sequences(), mode)


def _refusals(model, x, y=(None, 2), *, loss="mse"):
    """Why a model for batches of these shapes is refused, texts."""
    batch = (
        tf.nest.map_structure(lambda s: tf.TensorSpec(s.shape, s.dtype), x),
        tf.TensorSpec(y),
        None,
    )
    step = TracedStep(compiled(model, "vectorized", loss), batch)
    return [str(e) for e in refusals(step)]


@pytest.mark.parametrize("targets", [(None, 2), (None, None)])
@pytest.mark.parametrize("name", few(ONE, ["Conv1D", "Dense", "LSTM"]))
def test_layers_of_one_sequence_are_served(name, targets):
    model = _one(name)
    assert _refusals(model, model.input, targets) == []


@pytest.mark.parametrize("targets", [(None, 2), (None, None)])
@pytest.mark.parametrize(
    "name", few(TWO, ["Attention", "Concatenate", "Multiply", "states"])
)
def test_layers_of_several_sequences_are_served(name, targets):
    model = _two(name)
    assert _refusals(model, model.input, targets) == []


def _words(*lengths):
    return [integers(8, k, seed=k) + 1 for k in lengths]


WORDS, OTHERS = _words(3, 7, 5, 4, 6, 3), _words(4, 2, 6, 3, 5, 6)
LABELS = integers(4, 6)
ONE_WORD, NUMBER = tf.TensorSpec((None,), "int32"), tf.TensorSpec((), "int32")


def _ids(name):
    return keras.Input((None,), dtype="int32", name=name)


def ids_and_mask():
    ids, mask = _ids("ids"), _ids("mask")
    hidden = L.GRU(3, return_sequences=True)(L.Embedding(9, 3)(ids))
    shares = keras.ops.cast(mask, "float32")[..., None]
    mean = keras.ops.sum(hidden * shares, 1) / keras.ops.sum(shares, 1)
    return keras.Model({"ids": ids, "mask": mask}, L.Dense(4)(mean))


def translator():
    source, target = _ids("source"), _ids("target")
    hidden = _decoded(L.Embedding(9, 3)(source), L.Embedding(9, 3)(target))
    inputs = {"source": source, "target": target}
    return keras.Model(inputs, L.Dense(9)(hidden))


def siamese():
    source, target = _ids("source"), _ids("target")
    embedding, reader = L.Embedding(9, 3, mask_zero=True), L.LSTM(4)
    one, other = (reader(embedding(x)) for x in (source, target))
    difference = keras.ops.abs(one - other)
    inputs = {"source": source, "target": target}
    return keras.Model(inputs, L.Dense(4)(difference))


def tagger():
    ids = _ids("ids")
    hidden = L.LSTM(3, return_sequences=True)(
        L.Embedding(9, 3, mask_zero=True)(ids)
    )
    return keras.Model(ids, L.Dense(9)(hidden))


def segments():
    """Five parts that are as long as each other, all declared open."""
    inputs = [_ids(f"input{k}") for k in range(5)]
    hidden = L.Add()([L.Embedding(9, 3)(x) for x in inputs])
    return keras.Model(inputs, L.Dense(9)(hidden))


#: Models of words, and what a data set of them yields.
TEXTS = {
    "ids_and_mask": (
        ids_and_mask,
        [
            ({"ids": w, "mask": np.ones_like(w)}, label)
            for w, label in zip(WORDS, LABELS)
        ],
    ),
    "translator": (
        translator,
        [({"source": w, "target": o}, o) for w, o in zip(WORDS, OTHERS)],
    ),
    "siamese": (
        siamese,
        [
            ({"source": w, "target": o}, label)
            for w, o, label in zip(WORDS, OTHERS, LABELS)
        ],
    ),
    "tagger": (tagger, [(w, w) for w in WORDS]),
    "segments": (segments, [((w,) * 5, w) for w in WORDS]),
}


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, "vectorized") for name in TEXTS if name != "siamese"),
        *(
            pytest.param(name, mode, marks=pytest.mark.slow)
            for name in TEXTS
            for mode in MODES
            if mode not in ("batch", "several batches")
            and (name == "siamese" or mode != "vectorized")
        ),
    ],
)
def test_padded_batches_of_words_train_as_in_keras(name, mode):
    make, rows = TEXTS[name]
    signature = tf.nest.map_structure(
        lambda part: ONE_WORD if part.ndim else NUMBER, rows[0]
    )
    data = tf.data.Dataset.from_generator(
        lambda: iter(rows), output_signature=signature
    ).padded_batch(3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    _check(make, data, mode, loss=loss)


@pytest.mark.parametrize(
    "mode", ["accumulated", "several batches", "per_sample", "virtual"]
)
def test_batches_of_two_lengths_train_as_in_keras(mode):
    """A kernel's gradient has its shape, though no graph tells it."""
    _check(lambda: _one("Dense"), _one_sequence(), mode)


def _in_blocks_of(k):
    """Sums over blocks of k steps, which have parts of several samples."""

    def function(x):
        blocks = tf.cumsum(tf.reshape(x, [-1, k, 3]), 1)
        return tf.reshape(blocks, tf.shape(x))

    return function


def _of_one(function):
    x = keras.Input((None, 3))
    return keras.Model(x, _pooled(Apply(function)(L.Dense(3)(x))))


@pytest.mark.parametrize("k", [13, 16, 60, 61, 67, 71, 73, 211])
def test_a_constant_is_no_length(k):
    (text, *_) = [*_refused(_of_one(_in_blocks_of(k))), ""]
    assert "axis 1 of x" in text
    assert "eclare the length" in text


def _refused(model):
    """Why a model is refused, be its sizes known or not."""
    try:
        return _refusals(model, model.input)
    except ValueError as error:
        return [str(error)]


@pytest.mark.parametrize("k", [61, 210, 211, 223])
@pytest.mark.parametrize("is_sum", [False, True])
def test_a_constant_is_no_number_of_samples(k, is_sum):
    def function(x):
        end = tf.constant(k - 1) + 1 if is_sum else k
        return x - tf.reduce_mean(tf.pad(x[:end], [[0, 0]] * 3), 1, True)

    assert _refused(_of_one(function))


def _with_arange(x):
    return x + tf.cast(tf.gather(tf.range(128), [3, 61, 67]), x.dtype)


def _with_buckets(x):
    table = tf.constant(np.arange(2000) // 3)
    return x + tf.cast(tf.gather(table, tf.cast(tf.abs(x), "int32")), x.dtype)


def _with_taken_primes(x):
    return x + tf.cast(tf.reduce_sum([61, 67, 71, 73, 211, 223]), x.dtype)


@pytest.mark.parametrize(
    "function", [_with_arange, _with_buckets, _with_taken_primes]
)
def test_constants_that_are_data_refuse_nothing(function):
    model = _of_one(function)
    assert _refusals(model, model.input) == []


def test_numbers_that_are_taken_are_not_chosen():
    number, primes = numbers.free_primes({61 * 2, 67, 211, 223 * 3})
    assert number == 227
    assert [p for p in primes if p > 60][:2] == [71, 73]
    with pytest.raises(numbers.ShapesUnknown, match="leave no number"):
        numbers.free_primes({math.prod(numbers.free_primes(())[1]) * 211})


def test_four_axes_have_four_lengths():
    axes = [("x", k) for k in range(1, 5)]
    lengths = next(
        numbers.lengths_that_may_fit(axes, numbers.free_primes(())[1])
    )
    assert lengths.is_distinct
    assert len(set(lengths.axes.values())) == 4


class _Like(L.Layer):
    """Blocks of one sequence as long as another one."""

    def call(self, pair):
        first, second = pair
        blocks = tf.reshape(first, [-1, tf.shape(second)[1], 3])
        blocks *= tf.reduce_mean(blocks, 1, keepdims=True)
        return tf.reshape(blocks, tf.shape(first))

    def compute_output_shape(self, shapes):
        return shapes[0]


def test_lengths_that_are_broadcast_may_differ():
    """Their product tells that they are equal, or that one of them is 1."""
    inputs = [keras.Input((None, 3)) for _ in range(2)]
    hidden = [L.Dense(3)(x) for x in inputs]
    parts = [_pooled(_Like()(hidden)), _pooled(L.Multiply()(hidden))]
    model = keras.Model(inputs, L.Add()(parts))
    (text,) = _refused(model)[:1]
    assert "axis 1 of x[0] and axis 1 of x[1]" in text


def test_an_open_length_of_targets_may_be_broadcast():
    """Of length 1, pairs of them would be of two samples."""

    def loss(y, y_pred):
        pairs = tf.reshape(y, [-1, 2])
        pairs = tf.reshape(tf.cumsum(pairs, 1), tf.shape(y))
        return tf.reduce_mean((pairs - y_pred) ** 2, 1)

    model = _one("Dense")
    with unchanged(model):
        texts = _refusals(model, model.input, (None, None), loss=loss)
    assert texts
    assert "axis 1 of y" in texts[0]
    assert _refusals(_one("Dense"), model.input, (None, 2), loss=loss) == []
