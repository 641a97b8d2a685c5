"""Nets for text, sound and series, as in keras.io's examples."""

import keras
import numpy as np

from tests.further import tasks
from tests.further.kinds import Own, attended, kind, layers, normed, ops

WORDS, LENGTH, WIDTH = 11, 8, 6
TEXT = tasks.integers(WORDS, LENGTH)


def _words(ids):
    return layers.Embedding(WORDS, WIDTH)(ids)


def _next(x, words=WORDS):
    """For a language model."""
    return layers.Dense(words)(x), tasks.CROSSENTROPY()


@kind(TEXT, y=TEXT, draws=True)
def lstm_language_model(ids):
    """Two recurrent layers with dropout."""
    x = layers.Dropout(0.3, seed=1)(_words(ids))
    for _ in range(2):
        x = layers.LSTM(5, return_sequences=True)(x)
    return _next(x)


def _causal(x, filters, size, *, activation=None, rate=1):
    return layers.Conv1D(
        filters,
        size,
        padding="causal",
        dilation_rate=rate,
        activation=activation,
    )(x)


@kind(TEXT, y=TEXT)
def feedforward_language_model(ids):
    """A few words before each word."""
    return _next(_causal(_words(ids), 6, 3, activation="tanh"))


@kind(TEXT, TEXT, y=TEXT)
def translation(source, target):
    """Recurrent encoder and decoder with attention."""
    encoder = layers.Bidirectional(layers.GRU(3, return_sequences=True))
    x = encoder(_words(source))
    decoder = layers.GRU(6, return_sequences=True)
    y = decoder(_words(target), initial_state=x[:, -1])
    y = layers.Concatenate()([y, layers.AdditiveAttention()([y, x])])
    return _next(y)


def _feed(x):
    y = layers.Dense(8, "swish")(normed(x))
    return x + 0.5 * layers.Dense(x.shape[-1])(y)


def _conformer(x):
    x = _feed(x)
    x += attended(normed(x))
    y = ops.glu(layers.Conv1D(2 * x.shape[-1], 1)(normed(x)))
    y = layers.DepthwiseConv1D(3, padding="same")(y)
    y = ops.silu(layers.GroupNormalization(2)(y))
    x += layers.Conv1D(x.shape[-1], 1)(y)
    return normed(_feed(x))


@kind(
    (12, 4),
    y=tasks.given([[1, 2, 0], [3, 0, 0], [4, 4, 1]], "int32"),
    dtype="float32",
)
def conformer_ctc(inputs):
    """Speech to text by CTC."""
    x = layers.Conv1D(WIDTH, 3, 2, "same", activation="relu")(inputs)
    return layers.Dense(5)(_conformer(x)), keras.losses.CTC()


@kind(
    (8, 16, 1),
    y=tasks.given([[1, 2, 5], [3, 0, 0], [4, 1, 0]], "int32"),
    dtype="float32",
)
def handwriting_ctc(inputs):
    """Images by an LSTM and CTC."""
    x = layers.Conv2D(3, 3, padding="same", activation="relu")(inputs)
    x = layers.Permute((2, 1, 3))(layers.MaxPooling2D()(x))
    x = layers.Reshape((8, 12))(x)
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    return layers.Dense(6)(x), keras.losses.CTC()


@kind(TEXT)
def gmlp(ids):
    """Gates along the positions."""
    x = _words(ids)
    u, v = ops.split(layers.Dense(8, "gelu")(normed(x)), 2, -1)
    v = layers.Permute((2, 1))(normed(v))
    v = layers.Permute((2, 1))(layers.Dense(LENGTH, bias_initializer="ones")(v))
    return x + layers.Dense(WIDTH)(u * v)


@kind((LENGTH, 3), y=(LENGTH, 1))
def tcn(inputs):
    """Dilated causal convolutions."""
    x = layers.Conv1D(4, 1)(inputs)
    for rate in (1, 2, 4):
        x += normed(_causal(x, 4, 2, activation="relu", rate=rate))
    return layers.Dense(1)(x), keras.losses.Huber()


@kind((16, 1), y=tasks.integers(8, 16))
def wavenet(inputs):
    """Gated convolutions of a waveform."""
    x, skips = _causal(inputs, 4, 2), []
    for rate in (1, 2, 4):
        values, gates = (
            _causal(x, 4, 2, activation=a, rate=rate)
            for a in ("tanh", "sigmoid")
        )
        y = layers.Conv1D(4, 1)(values * gates)
        skips.append(y)
        x += y
    return layers.Conv1D(8, 1)(ops.relu(sum(skips))), tasks.CROSSENTROPY()


@kind((32,), dtype="float32")
def speaker_recognition(inputs):
    """A Fourier transform of sound."""
    real, imaginary = ops.rfft(inputs)
    x = ops.sqrt(real**2 + imaginary**2 + 1e-6)[..., None]
    for width in (3, 4):
        skip = layers.Conv1D(width, 1)(x)
        x = layers.Conv1D(width, 3, padding="same", activation="relu")(x)
        x = layers.Conv1D(width, 3, padding="same")(x) + skip
        x = layers.MaxPooling1D()(ops.relu(x))
    return x


def mel_bands(inputs, **settings):
    """Power in mel bands, with an axis of one channel."""
    layer = layers.MelSpectrogram(
        fft_length=16,
        sequence_stride=8,
        sequence_length=16,
        sampling_rate=64,
        num_mel_bins=6,
        min_freq=1,
        max_freq=30,
        **settings,
    )
    return layer(inputs)[..., None]


@kind((64,), dtype="float32")
def spectrogram_net(inputs):
    # Decibels are told by the loudest of all samples.
    """A transform in mel bands."""
    x = ops.log(mel_bands(inputs, power_to_db=False) + 1e-3)
    return layers.Conv2D(3, 3, activation="relu")(x)


@kind((32, 1))
def stft_spectrogram(inputs):
    """A short-time transform as a trained layer."""
    x = layers.STFTSpectrogram(
        mode="log", frame_length=8, frame_step=4, trainable=True
    )(inputs)
    return layers.Conv1D(4, 3)(x)


@kind(TEXT, tasks.integers(WORDS, 3))
def memory_net(story, question):
    """Questions to a story, in hops."""
    tables = [_words(story), _words(story)]
    u = ops.sum(_words(question), 1)
    for _ in range(2):
        shares = ops.softmax(ops.einsum("ntd,nd->nt", tables[0], u))
        u += layers.Dense(WIDTH)(ops.einsum("nt,ntd->nd", shares, tables[1]))
    return u


def _scanned(x, size, reads, log_decay):
    """A diagonal state space whose steps follow the input (Mamba)."""
    into, out = ops.split(reads[:, :, None], 2, -1)
    decay = ops.exp(-size[..., None] * ops.exp(log_decay))
    found = size[..., None] * into * x[..., None]

    # All positions at once, over twice as many steps each time.
    for step in (1, 2, 4):
        room = [[0, 0], [step, 0], [0, 0], [0, 0]]
        found += decay * ops.pad(found[:, :-step], room)
        decay *= ops.pad(decay[:, :-step], room)
    return ops.sum(found * out, -1)


@kind(TEXT, y=TEXT)
def state_space(ids):
    """Selective scan over positions."""
    x = _words(ids)
    y = _causal(x, WIDTH, 3, activation="silu")
    size, reads = layers.Dense(WIDTH, "softplus")(y), layers.Dense(6)(y)
    y = Own(_scanned, (WIDTH, 3))([y, size, reads])
    y *= ops.silu(layers.Dense(WIDTH)(x))
    return _next(x + layers.Dense(WIDTH)(y))


def _retained(x):
    """Linear attention as a recurrence: by `ops.scan` over positions."""
    rows = ops.transpose(x, (1, 0, 2))

    def step(state, row):
        q, k, v = ops.split(row, 3, -1)
        state = 0.9 * state + k[:, :, None] * v[:, None]
        return state, state * q[:, :, None]

    start = ops.zeros_like(rows[0, :, :4, None] * rows[0, :, None, :4])
    _, found = ops.scan(step, start, rows)
    return ops.transpose(ops.sum(found, 2), (1, 0, 2))


@kind(TEXT, y=TEXT)
def linear_attention(ids):
    """A recurrence by a scan over positions."""
    return _next(Own(_retained)(layers.Dense(12)(_words(ids))))


@kind(TEXT, y=TEXT)
def reversible(ids):
    """Two streams of a transformer."""
    a, b = ops.split(_words(ids), 2, -1)
    for _ in range(2):
        a += attended(normed(b), None, 1, size=3, use_causal_mask=True)
        b += layers.Dense(3, "gelu")(normed(a))
    return _next(layers.Concatenate()([a, b]))


@kind(
    tasks.given(["a cat sat", "on a mat", "the cat on mat"], "string"),
    known=True,
)
def text_convolutions(text):
    """Raw strings; several kernels."""
    split = layers.TextVectorization(
        vocabulary=["a", "cat", "sat", "on", "mat"], output_sequence_length=6
    )
    x = layers.Embedding(7, WIDTH)(split(text))
    found = [layers.Conv1D(4, k, activation="relu")(x) for k in (2, 3)]
    return ops.concatenate([layers.GlobalMaxPooling1D()(y) for y in found], 1)


class Crf(keras.losses.Loss):
    """All paths of tags against the right one, with fixed transitions."""

    def call(self, y_true, y_pred):
        steps = ops.cast(np.eye(4) - 0.3, y_pred.dtype)
        tags = ops.one_hot(ops.cast(y_true, "int32"), 4, dtype=y_pred.dtype)
        right = ops.sum(tags * y_pred, (1, 2))
        right += ops.einsum("nti,ntj,ij->n", tags[:, :-1], tags[:, 1:], steps)
        alpha = y_pred[:, 0]
        for t in range(1, y_pred.shape[1]):
            alpha = ops.logsumexp(alpha[:, :, None] + steps, 1) + y_pred[:, t]
        return ops.logsumexp(alpha, 1) - right


@kind(TEXT, y=tasks.integers(4, LENGTH))
def tagger_crf(ids):
    """Tags by all paths of a chain."""
    x = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(_words(ids))
    return layers.Dense(4)(x), Crf()


@kind((LENGTH, 2), y=tasks.integers(LENGTH, LENGTH))
def pointer_net(inputs):
    """Positions of the input as classes."""
    x = layers.GRU(5, return_sequences=True)(inputs)
    keys, queries = layers.Dense(5)(x), layers.Dense(5)(x)
    pairs = ops.tanh(keys[:, None] + queries[:, :, None])
    return layers.Dense(1)(pairs)[..., 0], tasks.CROSSENTROPY()


@kind(TEXT, y=[tasks.integers(LENGTH), tasks.integers(LENGTH)])
def question_answering(ids):
    """The first and the last word of a span."""
    x = _conformer(_words(ids))
    ends = [layers.Flatten()(layers.Dense(1)(x)) for _ in range(2)]
    return ends, [tasks.CROSSENTROPY(), tasks.CROSSENTROPY()]


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
        both = ops.concatenate([x, hidden], -1)
        memory = 0.8 * memory + ops.matmul(both, self.w)
        hidden = ops.tanh(ops.matmul(memory, self.u))
        return hidden, [memory, hidden]


@kind((LENGTH, 3))
def own_recurrent_cell(inputs):
    """A cell written by hand."""
    return layers.RNN(Legendre(), return_sequences=True)(inputs)


@kind((LENGTH, 2), y=(LENGTH, 1))
def autocorrelation(inputs):
    """Decomposed series; delays by Fourier transforms."""
    x = layers.Dense(4)(inputs)
    trend = layers.AveragePooling1D(3, 1, "same")(x)
    season = ops.transpose(x - trend, (0, 2, 1))
    real, imaginary = ops.rfft(season)
    power = real**2 + imaginary**2
    lags = ops.irfft((power, ops.zeros_like(power)))
    value, index = ops.top_k(ops.mean(lags, 1), 2)
    share = ops.softmax(value)
    found = trend
    for k in range(2):
        places = (ops.arange(LENGTH) + index[:, k : k + 1]) % LENGTH
        rolled = ops.take_along_axis(x, places[..., None], 1)
        found += rolled * share[:, k : k + 1, None]
    return layers.Dense(1)(found), "mse"
