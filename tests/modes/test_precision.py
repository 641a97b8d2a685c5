"""Half and mixed precision: norms that do not overflow, clipping that holds."""

import itertools
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.keras_internals.tensorflow import settings as tensor_float
from tests import oracle
from tests.models.making import assert_equal, compiled, net, trained

layers = keras.layers
POLICIES = ["float16", "bfloat16"]


def _model():
    keras.utils.set_random_seed(3)
    ids, x = keras.Input((3,), dtype="int32"), keras.Input((6, 4))
    table = layers.Embedding(5, 8)
    words = layers.GlobalAveragePooling1D()(table(ids) + table(ids))
    seen = layers.Flatten()(layers.Conv1D(3, 2, activation="relu")(x))
    both = layers.Concatenate()([words, seen])
    outputs = layers.Dense(4)(layers.Dense(8, "relu")(both))
    return keras.Model([ids, x], outputs)


def _batch(scale=1.0):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 5, (4, 3)).astype("int32")
    x = (scale * rng.normal(size=(4, 6, 4))).astype("float32")
    return [ids, x], np.full((4, 4), 8 * scale, "float32")


def _double(tensors):
    return [np.asarray(tf.cast(t, "float64")) for t in tensors]


def _lengths(gradients):
    """The norms over all gradients, one for each sample."""
    squares = [np.square(g).reshape(len(g), -1) for g in _double(gradients)]
    return np.sqrt(np.concatenate(squares, 1).sum(1))


def _assert_close(found, expected):
    """Each variable by itself, in its norm."""
    for one, other in zip(found, expected, strict=True):
        assert np.linalg.norm(one - other) <= 0.02 * np.linalg.norm(other)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_norms_whose_squares_overflow(policy, method):
    keras.config.set_dtype_policy(policy)
    model = compiled(_model())
    x, y = _batch(10.0)
    gradients = kpg.per_sample_gradients(model, x, y, method=method)
    assert all(g.dtype.name == policy for g in gradients)
    expected = _lengths(gradients)
    assert expected.min() > 256  # 256² is infinity in float16
    found = kpg.per_sample_norms(model, x, y, method=method)
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, expected, rtol=2e-2)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", [kpg.Vectorized, kpg.PerSample])
def test_no_sample_is_dropped_for_a_large_norm(policy, mode):
    keras.config.set_dtype_policy(policy)
    mode = mode(kpg.ClippedMean(8.0), statistics=True)
    model = compiled(_model(), mode, rate=1.0, jit_compile=False)
    x, y = _batch(10.0)
    gradients = kpg.per_sample_gradients(model, x, y)
    factors = 8 / _lengths(gradients) / 4
    before = _double(model.weights)
    logs = model.train_on_batch(x, y, return_dict=True)
    assert logs["clipped_fraction"] == 1
    assert np.isfinite(logs["gradient_variance"])
    moved = [a - b for a, b in zip(before, _double(model.weights))]
    steps = [np.tensordot(factors, g, 1) for g in _double(gradients)]
    assert_equal(moved, steps, rtol=1e-7, atol=0.04)


class Added(layers.Layer):
    """Its weight has two uses, of which one op has no rule."""

    def build(self, shape):
        self.w = self.add_weight(shape=shape[-1:])

    def call(self, x):
        w = tf.convert_to_tensor(self.w)
        return tf.add_n([x, tf.zeros_like(x) + w, x * w])


@pytest.mark.parametrize("policy", POLICIES)
def test_uses_of_different_kinds_are_added(policy):
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(3)
    model = compiled(net(Added(), shape=(4,), units=2))
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    y = np.ones((3, 2), "float32")
    norms = kpg.per_sample_norms(model, x, y)
    assert norms.dtype == tf.float32
    expected = _lengths(oracle.per_sample_gradients(model, x, y))
    np.testing.assert_allclose(norms, expected, rtol=2e-2)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_clipped_gradients_in_mixed_precision(policy):
    keras.config.set_dtype_policy(policy)
    x, y = _batch()
    mode = kpg.Vectorized(kpg.ClippedMean(27.0))
    model = compiled(_model(), mode, rate=1.0, jit_compile=False)
    gradients = oracle.per_sample_gradients(model, x, y, training=True)
    lengths = _lengths(gradients)
    assert lengths.min() < 27 < lengths.max()
    weights = np.minimum(1, 27 / lengths) / 4
    before = [v.numpy() for v in model.trainable_variables]
    model.train_on_batch(x, y)
    moved = [a - b for a, b in zip(before, model.trainable_variables)]
    _assert_close(moved, [np.tensordot(weights, g, 1) for g in gradients])


class Gradients(keras.optimizers.SGD):
    """The weights become the gradients, in the type in which they are kept."""

    def update_step(self, gradient, variable, learning_rate):
        gradient = tf.convert_to_tensor(gradient)
        assert gradient.dtype == tf.as_dtype(variable.dtype)
        variable.assign(gradient)


def _accumulated(aggregation, **settings):
    inner = kpg.Vectorized(aggregation)
    return kpg.Accumulated(microbatch_size=3, inner=inner, **settings)


#: A mode, the clip norm, the number of samples.
CLIPPED = {
    "vectorized": (kpg.Vectorized, 100.0, 4),
    "per_sample": (kpg.PerSample, 1e-4, 4),
    "updates": (lambda a: kpg.PerSample(a, updates="sample"), 100.0, 1),
    "microbatches": (_accumulated, 1e-4, 4),
    "steps": (lambda a: _accumulated(a, steps=2), 1e-4, 4),
}


@pytest.mark.parametrize(
    ("case", "policy"),
    [
        *itertools.product(CLIPPED, ["bfloat16", "mixed_float16"]),
        ("vectorized", "mixed_bfloat16"),
        *itertools.product(
            ["vectorized", "per_sample"], ["float16", "float32"]
        ),
    ],
)
def test_what_a_sample_keeps_is_rounded_once(case, policy):
    """One sample has a gradient; the others have the weight zero."""
    keras.config.set_dtype_policy(policy)
    make, clip, n = CLIPPED[case]
    optimizer = Gradients(1.0)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(
            optimizer, initial_scale=8.0
        )
    mode = make(kpg.ClippedMean(clip))
    how = {"optimizer": optimizer, "jit_compile": False}
    model = compiled(_model(), mode, **how)
    start, steps = model.get_weights(), getattr(mode, "steps", 1)
    count = sum(map(np.size, start))
    for seed in range(3):
        model.set_weights(start)
        rng = np.random.default_rng(seed)
        for step in range(steps):
            x = [rng.integers(0, 5, (n, 3)), rng.normal(size=(n, 6, 4))]
            y = 3 * clip * rng.normal(size=(n, 4))
            weights = np.eye(n)[0] * (step == 0)
            model.train_on_batch(x, y, sample_weight=weights)
        kept = _double(model.trainable_variables)
        norm = np.sqrt(sum(np.square(g).sum() for g in kept))
        norm *= n * steps  # Of a mean.
        # To the nearest, where variables are of half precision.
        room = {"bfloat16": 2**-9, "float16": 2**-12}.get(policy, 0.0)
        if policy == "float16":  # The distance of its smallest numbers.
            room += n * steps * np.sqrt(count) * 2**-25 / clip
        assert (1 - room - 1e-5) * clip <= norm <= (1 + room) * clip


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_an_output_in_float32_is_served_one_by_one(policy):
    """Inside, a sample alone is rounded otherwise than in its batch."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(64, 20)), rng.normal(size=(64, 3))
    moved = []
    for mode in (kpg.Vectorized, kpg.PerSample):
        keras.utils.set_random_seed(1)
        hidden = [layers.Dense(64, "gelu", dtype=policy) for _ in range(2)]
        model = net(*hidden, shape=(20,))
        model = compiled(model, mode(kpg.ClippedMean(1.0)))
        start = model.get_weights()
        trained(model, *data, batch_size=16)
        moved.append([a - b for a, b in zip(model.get_weights(), start)])
    _assert_close(*moved)


def _cut(tensor):
    """Return float32 numbers with the ten bits that TF32 keeps."""
    bits = tf.bitcast(tf.convert_to_tensor(tensor), tf.int32)
    cut = tf.bitcast(tf.bitwise.bitwise_and(bits, -8192), tf.float32)
    return tensor + tf.stop_gradient(cut - tensor)


@pytest.fixture
def tf32(monkeypatch):
    """Dense layers whose products are of ten bits, but for a sample alone.

    So on a GPU, where the sizes of a product choose its algorithm.
    """
    operations = sys.modules[layers.Dense.__module__].ops
    exact = operations.matmul

    def matmul(a, b):
        return exact(a, b) if a.shape[0] == 1 else exact(_cut(a), _cut(b))

    monkeypatch.setattr(operations, "matmul", matmul)
    monkeypatch.setattr(tensor_float, "may_use_tf32", lambda: True)
    return monkeypatch


def _trained_coarsely(mode):
    keras.utils.set_random_seed(1)
    # All that is cut off adds up: 0.2 % of the output.
    ones = keras.initializers.Constant(1 + 2**-10 - 2**-20)
    dense = layers.Dense(1, kernel_initializer=ones)
    model = net(dense, shape=(8,), units=None)
    model = compiled(model, mode, rate=0.01, jit_compile=False)
    x = np.full((4, 8), 1 + 2**-10 - 2**-20, "float32")
    logs = model.train_on_batch(x, np.ones((4, 1)), return_dict=True)
    return model.get_weights(), logs


@pytest.mark.parametrize("aggregation", ["mean", kpg.ClippedMean(0.5)])
def test_a_sample_alone_is_not_rounded_to_ten_bits(aggregation, tf32):
    found, logs = _trained_coarsely(kpg.PerSample(aggregation))
    tf32.undo()
    right, _ = _trained_coarsely(kpg.Vectorized(aggregation))
    assert_equal(found, right, rtol=1e-5)
    assert logs.get("nonfinite_samples", 0) == 0
