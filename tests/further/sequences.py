"""Nets for text, sound and series, as in keras.io's examples."""

import keras
import numpy as np
import tensorflow as tf

from tests.further.kinds import (
    classified,
    crossentropy,
    integers,
    kind,
    layers,
    normal,
    ops,
    perturbed,
)

WORDS, LENGTH, WIDTH = 11, 8, 6


def _text():
    ids = keras.Input((LENGTH,), dtype="int32")
    return ids, layers.Embedding(WORDS, WIDTH)(ids), integers(WORDS, LENGTH)


def _language_model(inputs, x, ids):
    model = perturbed(keras.Model(inputs, layers.Dense(WORDS)(x)))
    model.compile("sgd", crossentropy())
    return model, ids, integers(WORDS, LENGTH, seed=1)


@kind("lstm_language_model", "two recurrent layers with dropout", draws=True)
def lstm_language_model():
    inputs, x, ids = _text()
    x = layers.Dropout(0.3, seed=1)(x)
    for _ in range(2):
        x = layers.LSTM(5, return_sequences=True)(x)
    return _language_model(inputs, x, ids)


@kind("feedforward_language_model", "a few words before each word")
def feedforward():
    inputs, x, ids = _text()
    x = layers.Conv1D(6, 3, padding="causal", activation="tanh")(x)
    return _language_model(inputs, x, ids)


@kind("translation", "recurrent encoder and decoder with attention")
def translation():
    source, target = (keras.Input((LENGTH,), dtype="int32") for _ in range(2))
    x = layers.Bidirectional(layers.GRU(3, return_sequences=True))(
        layers.Embedding(WORDS, WIDTH)(source)
    )
    y = layers.GRU(6, return_sequences=True)(
        layers.Embedding(WORDS, WIDTH)(target), initial_state=x[:, -1]
    )
    y = layers.Concatenate()([y, layers.AdditiveAttention()([y, x])])
    ids = [integers(WORDS, LENGTH), integers(WORDS, LENGTH, seed=2)]
    return _language_model([source, target], y, ids)


def _feed(x, factor=0.5):
    y = layers.Dense(8, "swish")(layers.LayerNormalization()(x))
    return x + factor * layers.Dense(x.shape[-1])(y)


def _conformer(x):
    x = _feed(x)
    y = layers.LayerNormalization()(x)
    x += layers.MultiHeadAttention(2, 3)(y, y)
    y = layers.LayerNormalization()(x)
    y = ops.glu(layers.Conv1D(2 * x.shape[-1], 1)(y))
    y = layers.DepthwiseConv1D(3, padding="same")(y)
    y = ops.silu(layers.GroupNormalization(2)(y))
    x += layers.Conv1D(x.shape[-1], 1)(y)
    return layers.LayerNormalization()(_feed(x))


@kind("conformer_ctc", "speech to text by CTC", dtype="float32")
def conformer():
    inputs = keras.Input((12, 4))
    x = layers.Conv1D(WIDTH, 3, 2, "same", activation="relu")(inputs)
    logits = layers.Dense(5)(_conformer(x))
    model = perturbed(keras.Model(inputs, logits))
    model.compile("sgd", keras.losses.CTC())
    y = np.array([[1, 2, 0], [3, 0, 0], [4, 4, 1]], "int32")
    return model, normal(12, 4), y


@kind("handwriting_ctc", "images by an LSTM and CTC", dtype="float32")
def handwriting():
    inputs = keras.Input((8, 16, 1))
    x = layers.Conv2D(3, 3, padding="same", activation="relu")(inputs)
    x = layers.MaxPooling2D()(x)
    x = layers.Permute((2, 1, 3))(x)
    x = layers.Reshape((8, 12))(x)
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    model = perturbed(keras.Model(inputs, layers.Dense(6)(x)))
    model.compile("sgd", keras.losses.CTC())
    y = np.array([[1, 2, 5], [3, 0, 0], [4, 1, 0]], "int32")
    return model, normal(8, 16, 1), y


@kind("gmlp", "gates along the positions")
def gmlp():
    inputs, x, ids = _text()
    y = layers.Dense(8, "gelu")(layers.LayerNormalization()(x))
    u, v = ops.split(y, 2, -1)
    v = layers.Permute((2, 1))(layers.LayerNormalization()(v))
    v = layers.Permute((2, 1))(layers.Dense(LENGTH, bias_initializer="ones")(v))
    x += layers.Dense(WIDTH)(u * v)
    return classified(inputs, x, ids)


@kind("tcn", "dilated causal convolutions")
def tcn():
    inputs = keras.Input((LENGTH, 3))
    x = layers.Conv1D(4, 1)(inputs)
    for rate in (1, 2, 4):
        y = layers.Conv1D(
            4, 2, padding="causal", dilation_rate=rate, activation="relu"
        )(x)
        x += layers.LayerNormalization()(y)
    model = perturbed(keras.Model(inputs, layers.Dense(1)(x)))
    model.compile("sgd", keras.losses.Huber())
    return model, normal(LENGTH, 3), normal(LENGTH, 1)


@kind("wavenet", "gated convolutions of samples of sound")
def wavenet():
    inputs = keras.Input((16, 1))
    x, skips = layers.Conv1D(4, 2, padding="causal")(inputs), []
    for rate in (1, 2, 4):
        both = [
            layers.Conv1D(
                4, 2, padding="causal", dilation_rate=rate, activation=a
            )(x)
            for a in ("tanh", "sigmoid")
        ]
        y = layers.Conv1D(4, 1)(both[0] * both[1])
        skips.append(y)
        x += y
    logits = layers.Conv1D(8, 1)(ops.relu(sum(skips)))
    model = perturbed(keras.Model(inputs, logits))
    model.compile("sgd", crossentropy())
    return model, normal(16, 1), integers(8, 16)


@kind("speaker_recognition", "a Fourier transform of sound", dtype="float32")
def speaker():
    inputs = keras.Input((32,))
    real, imaginary = ops.rfft(inputs)
    x = ops.sqrt(real**2 + imaginary**2 + 1e-6)[..., None]
    for width in (3, 4):
        skip = layers.Conv1D(width, 1)(x)
        x = layers.Conv1D(width, 3, padding="same", activation="relu")(x)
        x = layers.Conv1D(width, 3, padding="same")(x) + skip
        x = layers.MaxPooling1D()(ops.relu(x))
    return classified(inputs, x, normal(32))


@kind("spectrogram_net", "a transform in mel bands", dtype="float32")
def spectrogram():
    inputs = keras.Input((64,))
    x = layers.MelSpectrogram(
        fft_length=16,
        sequence_stride=8,
        sequence_length=16,
        sampling_rate=64,
        num_mel_bins=6,
        min_freq=1,
        max_freq=30,
        # Decibels are told by the loudest of all samples.
        power_to_db=False,
    )(inputs)
    x = ops.log(x[..., None] + 1e-3)
    x = layers.Conv2D(3, 3, activation="relu")(x)
    return classified(inputs, x, normal(64))


@kind("stft_spectrogram", "a short-time transform as a trained layer")
def stft():
    inputs = keras.Input((32, 1))
    x = layers.STFTSpectrogram(
        mode="log", frame_length=8, frame_step=4, trainable=True
    )(inputs)
    return classified(inputs, layers.Conv1D(4, 3)(x), normal(32, 1))


@kind("memory_net", "questions to a story, in hops")
def memory():
    story, question = (keras.Input((k,), dtype="int32") for k in (LENGTH, 3))
    tables = [layers.Embedding(WORDS, WIDTH)(story) for _ in range(2)]
    u = ops.sum(layers.Embedding(WORDS, WIDTH)(question), 1)
    for _ in range(2):
        shares = ops.softmax(ops.einsum("ntd,nd->nt", tables[0], u))
        u += layers.Dense(WIDTH)(ops.einsum("nt,ntd->nd", shares, tables[1]))
    x = [integers(WORDS, LENGTH), integers(WORDS, 3)]
    return classified([story, question], u, x)


class StateSpace(layers.Layer):
    """A diagonal state space whose steps follow the input (Mamba)."""

    def build(self, shape):
        width = shape[-1]
        self.log_decay = self.add_weight((width, 3), name="log_decay")
        self.sizes = layers.Dense(width, "softplus")
        self.reads = layers.Dense(6)
        self.sizes.build(shape)
        self.reads.build(shape)

    def call(self, x):
        size = self.sizes(x)[..., None]
        into, out = ops.split(self.reads(x)[:, :, None], 2, -1)
        decay = ops.exp(-size * ops.exp(self.log_decay))
        given = size * into * x[..., None]

        # All positions at once, over twice as many steps each time.
        for step in (1, 2, 4):
            room = [[0, 0], [step, 0], [0, 0], [0, 0]]
            given += decay * ops.pad(given[:, :-step], room)
            decay *= ops.pad(decay[:, :-step], room)
        return ops.sum(given * out, -1)


@kind("state_space", "selective scan over positions")
def state_space():
    inputs, x, ids = _text()
    y = layers.Conv1D(WIDTH, 3, padding="causal", activation="silu")(x)
    y = StateSpace()(y) * ops.silu(layers.Dense(WIDTH)(x))
    return _language_model(inputs, x + layers.Dense(WIDTH)(y), ids)


class Retention(layers.Layer):
    """Linear attention as a recurrence: by `ops.scan` over positions."""

    def build(self, shape):
        self.dense = layers.Dense(12)
        self.dense.build(shape)

    def call(self, x):
        given = ops.transpose(self.dense(x), (1, 0, 2))

        def step(state, row):
            q, k, v = ops.split(row, 3, -1)
            state = 0.9 * state + k[:, :, None] * v[:, None]
            return state, state * q[:, :, None]

        start = ops.zeros_like(given[0, :, :4, None] * given[0, :, None, :4])
        _, found = ops.scan(step, start, given)
        return ops.transpose(ops.sum(found, 2), (1, 0, 2))

    def compute_output_shape(self, shape):
        return (*shape[:-1], 4)


@kind("linear_attention", "a recurrence by a scan over positions")
def linear_attention():
    inputs, x, ids = _text()
    return _language_model(inputs, Retention()(x), ids)


@kind("reversible", "two streams of a transformer")
def reversible():
    inputs, x, ids = _text()
    a, b = ops.split(x, 2, -1)
    for _ in range(2):
        y = layers.LayerNormalization()(b)
        a += layers.MultiHeadAttention(1, 3)(y, y, use_causal_mask=True)
        b += layers.Dense(3, "gelu")(layers.LayerNormalization()(a))
    return _language_model(inputs, layers.Concatenate()([a, b]), ids)


@kind("text_convolutions", "raw strings; several kernels", known=True)
def text_convolutions():
    inputs = keras.Input((), dtype="string")
    split = layers.TextVectorization(
        vocabulary=["a", "cat", "sat", "on", "mat"], output_sequence_length=6
    )
    x = layers.Embedding(7, WIDTH)(split(inputs))
    found = [
        layers.GlobalMaxPooling1D()(layers.Conv1D(4, k, activation="relu")(x))
        for k in (2, 3)
    ]
    text = tf.constant(["a cat sat", "on a mat", "the cat on mat"])
    return classified(inputs, layers.Concatenate()(found), text)


class Crf(keras.losses.Loss):
    """All paths of tags against the right one, with fixed transitions."""

    def call(self, y_true, y_pred):
        steps = np.eye(4) - 0.3
        steps = ops.cast(steps, y_pred.dtype)
        tags = ops.one_hot(ops.cast(y_true, "int32"), 4, dtype=y_pred.dtype)
        right = ops.sum(tags * y_pred, (1, 2))
        right += ops.einsum("nti,ntj,ij->n", tags[:, :-1], tags[:, 1:], steps)
        alpha = y_pred[:, 0]
        for t in range(1, y_pred.shape[1]):
            alpha = ops.logsumexp(alpha[:, :, None] + steps, 1) + y_pred[:, t]
        return ops.logsumexp(alpha, 1) - right


@kind("tagger_crf", "tags by all paths of a chain")
def tagger():
    inputs, x, ids = _text()
    x = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)
    model = perturbed(keras.Model(inputs, layers.Dense(4)(x)))
    model.compile("sgd", Crf())
    return model, ids, integers(4, LENGTH)


@kind("pointer_net", "positions of the input as classes")
def pointer():
    inputs = keras.Input((LENGTH, 2))
    x = layers.GRU(5, return_sequences=True)(inputs)
    keys, queries = layers.Dense(5)(x), layers.Dense(5)(x)
    pairs = ops.tanh(keys[:, None] + queries[:, :, None])
    scores = layers.Dense(1)(pairs)[..., 0]
    model = perturbed(keras.Model(inputs, scores))
    model.compile("sgd", crossentropy())
    return model, normal(LENGTH, 2), integers(LENGTH, LENGTH)


@kind("question_answering", "the first and the last word of a span")
def spans():
    inputs, x, ids = _text()
    x = _conformer(x)
    ends = [layers.Flatten()(layers.Dense(1)(x)) for _ in range(2)]
    model = perturbed(keras.Model(inputs, ends))
    model.compile("sgd", [crossentropy(), crossentropy()])
    return model, ids, [integers(LENGTH), integers(LENGTH, seed=1)]


class Legendre(layers.Layer):
    """A cell written by hand, run by `keras.layers.RNN`."""

    def __init__(self):
        super().__init__()
        self.state_size = [4, 3]
        self.output_size = 3

    def build(self, shape):
        self.w = self.add_weight((shape[-1] + 3, 4), name="w")
        self.u = self.add_weight((4, 3), name="u")

    def call(self, x, states):
        memory, hidden = states
        memory = 0.8 * memory + ops.matmul(
            ops.concatenate([x, hidden], -1), self.w
        )
        hidden = ops.tanh(ops.matmul(memory, self.u))
        return hidden, [memory, hidden]


@kind("own_recurrent_cell", "a cell written by hand")
def own_cell():
    inputs = keras.Input((LENGTH, 3))
    x = layers.RNN(Legendre(), return_sequences=True)(inputs)
    return classified(inputs, x, normal(LENGTH, 3))


@kind("autocorrelation", "decomposed series; delays by Fourier transforms")
def autoformer():
    inputs = keras.Input((LENGTH, 2))
    x = layers.Dense(4)(inputs)
    trend = layers.AveragePooling1D(3, 1, "same")(x)
    season = ops.transpose(x - trend, (0, 2, 1))
    real, imaginary = ops.rfft(season)
    power = real**2 + imaginary**2
    lags = ops.irfft((power, ops.zeros_like(power)))
    value, index = ops.top_k(ops.mean(lags, 1), 2)
    share = ops.softmax(value)
    rows = ops.arange(LENGTH)
    found = 0.0
    for k in range(2):
        places = (rows + index[:, k : k + 1]) % LENGTH
        rolled = ops.take_along_axis(x, places[..., None], 1)
        found += rolled * share[:, k : k + 1, None]
    model = perturbed(keras.Model(inputs, layers.Dense(1)(found + trend)))
    model.compile("sgd", "mse")
    return model, normal(LENGTH, 2), normal(LENGTH, 1)
