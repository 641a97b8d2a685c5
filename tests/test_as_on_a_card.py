"""What a CPU can tell of a step on a card.

Under XLA with sizes that are open while it is traced, without XLA by the
methods that a card chooses, and with products of ten bits.
"""

import functools
import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle
from tests.marks import few
from tests.models.making import assert_equal, compiled, integers, normal
from tests.tensor_float import short_products
from tests.uses.rules.test_cudnn import as_documented

layers = keras.layers
CLIP, RATE = 0.3, 0.5
CLASSES = 30
#: Those that train as Keras does.
MEANS = {
    "batch": "batch",
    "per_sample": "per_sample",
    "vectorized": kpg.Vectorized(statistics=True),
    "microbatches": kpg.Accumulated(microbatch_size=3),
    "steps": kpg.Accumulated(steps=2),
}
CLIPPED = {
    "clipped": kpg.Vectorized(kpg.ClippedMean(CLIP)),
    "per_sample, clipped": kpg.PerSample(kpg.ClippedMean(CLIP)),
}
#: Compared with what they give without XLA.
OTHERS = {
    "noise": kpg.Vectorized(
        kpg.ClippedMean(CLIP, noise_multiplier=0.1, seed=2)
    ),
    "by_task": kpg.ByTask("pcgrad"),
    "upgrad": kpg.Vectorized("upgrad"),
    "clipped steps": kpg.Accumulated(steps=2, inner=CLIPPED["clipped"]),
}
MODES = {**MEANS, **CLIPPED, **OTHERS}


def _pooled(h):
    return layers.Dense(4, "tanh")(h)


def _recurrent(h):
    h = layers.GRU(4, return_sequences=True, use_cudnn=False)(h)
    return _attentive(h)


def _attentive(h):
    h = layers.LayerNormalization()(layers.MultiHeadAttention(2, 2)(h, h))
    return layers.Conv1D(3, 3, padding="same")(h)


def _of_many_kernels(h):
    h = layers.LSTM(4, return_sequences=True)(h)
    return layers.SeparableConv1D(3, 3, padding="same")(h)


def _model(parts, cls=keras.Model, length=None):
    """Two numbers of a sequence of ids, the same weights each time."""
    keras.utils.set_random_seed(3)
    ids = keras.Input((length,), dtype="int32")
    h = parts(layers.Embedding(CLASSES, 4)(ids))
    h = layers.GlobalAveragePooling1D()(h)
    return cls(ids, {name: layers.Dense(1, name=name)(h) for name in "ab"})


def _batches(mode, *lengths):
    """Two batches, of different sizes unless they make one update."""
    sizes = (4, 4) if "steps" in mode else (4, 3)
    return [
        (
            integers(CLASSES // 3, n, length, seed=n + length),
            {name: normal(n, 1, seed=n + length) for name in "ab"},
        )
        for n, length in zip(sizes, lengths)
    ]


def _weights(make, mode, batches, *, jit_compile, steps=None):
    """What an epoch makes of the weights, from batches of open sizes."""
    model = make(keras.Model if mode is None else kpg.PerGradModel)
    sgd = keras.optimizers.SGD(RATE, gradient_accumulation_steps=steps)
    compiled(model, mode, optimizer=sgd, jit_compile=jit_compile)
    length = model.input.shape[1]
    signature = tf.nest.map_structure(
        lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), batches[0]
    )
    signature = tf.TensorSpec([None, length], "int32"), signature[1]
    data = tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=signature
    )
    model.fit(data, steps_per_epoch=len(batches), verbose=0, shuffle=False)
    return model.get_weights()


def _by_single_samples(make, batches):
    """The same by clipped gradients of the oracle."""
    model = compiled(make(keras.Model), rate=RATE)
    for x, y in batches:
        x, y = tf.constant(x), tf.nest.map_structure(tf.constant, y)
        gradients = oracle.per_sample_gradients(model, x, y)
        scale = np.minimum(1, CLIP / _norms(gradients))
        assert min(scale) < 1
        weights = zip(model.get_weights(), gradients, strict=True)
        model.set_weights(
            [w - RATE * np.tensordot(scale, g, 1) / len(g) for w, g in weights]
        )
    return model.get_weights()


def _norms(gradients):
    flat = [np.reshape(g, (len(g), -1)) for g in gradients]
    return np.linalg.norm(np.concatenate(flat, 1).astype("float64"), axis=1)


def _expected(make, mode, batches):
    if mode in CLIPPED:
        return _by_single_samples(make, batches)
    steps = 2 if mode == "steps" else None
    given = OTHERS.get(mode)
    return _weights(make, given, batches, jit_compile=False, steps=steps)


# XLA draws other noise: see privacy/test_replay.py.
XLA = few(
    [(_pooled, mode) for mode in MODES if mode != "noise"],
    [(_pooled, "clipped")],
)
XLA += few([(_recurrent, m) for m in ("per_sample", "clipped")], [])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("parts", "mode"), XLA)
def test_xla_serves_batches_of_any_size_and_length(parts, mode):
    make, batches = functools.partial(_model, parts), _batches(mode, 5, 3)
    found = _weights(make, MODES[mode], batches, jit_compile=True)
    expected = _expected(make, mode, batches)
    assert_equal(found, expected, rtol=1e-10, atol=1e-10)


@pytest.fixture
def card(monkeypatch):
    """TensorFlow lists an NVIDIA card, and cuDNN's op has a stand-in."""
    details = {"compute_capability": (7, 0)}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [None])
    experimental = tf.config.experimental
    monkeypatch.setattr(experimental, "get_device_details", lambda _: details)
    rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")
    monkeypatch.setattr(rnn, "_is_gpu_available", lambda: True)
    monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", as_documented)


@pytest.mark.cpu_only
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("mode", few(MODES, ["clipped"]))
def test_without_xla_the_methods_of_a_card_are_exact(mode, request):
    make = functools.partial(_model, _of_many_kernels, length=6)
    batches = _batches(mode, 6, 6)
    expected = _expected(make, mode, batches)
    request.getfixturevalue("card")
    found = _weights(make, MODES[mode], batches, jit_compile=False)
    assert_equal(found, expected, rtol=1e-10, atol=1e-10)


def kept_norms(parts, x):
    """What samples keep of the clip norm, each alone in a step."""
    net = _model(parts, kpg.PerGradModel, length=6)
    mode = kpg.Vectorized(kpg.ClippedMean(CLIP))
    compiled(net, mode, rate=1.0, jit_compile=False)
    before, kept = net.get_weights(), []
    y = {name: np.full((1, 1), 9.0, "float32") for name in "ab"}
    for sample in x:
        net.set_weights(before)
        net.train_on_batch(sample[None], y)
        moved = [(a - b)[None] for a, b in zip(before, net.get_weights())]
        kept.append(_norms(moved)[0] / CLIP)
    return np.array(kept)


@pytest.mark.cpu_only
@pytest.mark.parametrize(
    ("parts", "nearest"),
    few(
        [(p, nearest) for p in (_pooled, _attentive) for nearest in (1, 0)],
        [(_pooled, True)],
    ),
)
def test_products_of_ten_bits(parts, nearest):
    """As docs/gpu.md says: of gradients, norms, and what clipping lets pass."""
    x, y = integers(CLASSES, 5, 6), {name: 5 + normal(5, 1) for name in "ab"}
    model = compiled(_model(parts, length=6), jit_compile=False)
    right = oracle.per_sample_gradients(
        model, *tf.nest.map_structure(tf.constant, (x, y))
    )
    with short_products(nearest):
        norms = kpg.per_sample_norms(model, x, y, training=False)
        found = kpg.per_sample_gradients(model, x, y, training=False)
        kept = kept_norms(parts, x)
    differences = [a - b for a, b in zip(found, right)]
    off = _norms(differences) / _norms(right)
    assert 1e-4 < max(off) < 0.004
    np.testing.assert_allclose(norms, _norms(found), rtol=0.004)
    np.testing.assert_allclose(kept, 1, rtol=0.004)
