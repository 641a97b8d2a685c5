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

layers = keras.layers
POLICIES = ["float16", "bfloat16"]


def _model(cls=keras.Model):
    keras.utils.set_random_seed(3)
    ids, x = keras.Input((3,), dtype="int32"), keras.Input((6, 4))
    table = layers.Embedding(5, 8)
    words = layers.GlobalAveragePooling1D()(table(ids) + table(ids))
    seen = layers.Flatten()(layers.Conv1D(3, 2, activation="relu")(x))
    both = layers.Concatenate()([words, seen])
    return cls([ids, x], layers.Dense(4)(layers.Dense(8, "relu")(both)))


def _batch(scale=1.0):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 5, (4, 3)).astype("int32")
    x = (scale * rng.normal(size=(4, 6, 4))).astype("float32")
    return [ids, x], np.full((4, 4), 8 * scale, "float32")


def _lengths(gradients):
    rows = [np.asarray(tf.cast(g, "float64")) for g in gradients]
    return np.sqrt(sum(np.square(g).reshape(4, -1).sum(1) for g in rows))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_norms_whose_squares_overflow(policy, method):
    keras.config.set_dtype_policy(policy)
    model = _model()
    model.compile("sgd", "mse")
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
    model = _model(kpg.PerGradModel)
    mode = mode(kpg.ClippedMean(8.0), statistics=True)
    model.compile(
        keras.optimizers.SGD(1.0), "mse", gradient_mode=mode, jit_compile=False
    )
    x, y = _batch(10.0)
    gradients = kpg.per_sample_gradients(model, x, y)
    lengths = _lengths(gradients)
    before = [np.asarray(tf.cast(v, "float64")) for v in model.weights]
    logs = model.train_on_batch(x, y, return_dict=True)
    assert logs["clipped_fraction"] == 1
    assert np.isfinite(logs["gradient_variance"])
    for variable, old, gradient in zip(model.weights, before, gradients):
        gradient = np.asarray(tf.cast(gradient, "float64"))
        step = np.tensordot(8 / lengths / 4, gradient, 1)
        new = np.asarray(tf.cast(variable, "float64"))
        np.testing.assert_allclose(old - new, step, atol=0.04)


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
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(2)(Added()(inputs)))
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    y = np.ones((3, 2), "float32")
    norms = kpg.per_sample_norms(model, x, y)
    assert norms.dtype == tf.float32
    gradients = oracle.per_sample_gradients(model, x, y)
    squares = [np.float64(g).reshape(3, -1) ** 2 for g in gradients]
    expected = np.sqrt(np.concatenate(squares, 1).sum(1))
    np.testing.assert_allclose(norms, expected, rtol=2e-2)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_clipped_gradients_in_mixed_precision(policy):
    keras.config.set_dtype_policy(policy)
    model = _model(kpg.PerGradModel)
    x, y = _batch()
    model.compile(
        keras.optimizers.SGD(1.0),
        "mse",
        gradient_mode=kpg.Vectorized(kpg.ClippedMean(27.0)),
        jit_compile=False,
    )
    gradients = oracle.per_sample_gradients(model, x, y, training=True)
    lengths = _lengths(gradients)
    assert lengths.min() < 27 < lengths.max()
    weights = np.minimum(1, 27 / lengths) / 4
    before = [v.numpy() for v in model.trainable_variables]
    model.train_on_batch(x, y)
    for variable, old, gradient in zip(
        model.trainable_variables, before, gradients
    ):
        step = np.tensordot(weights, gradient, 1)
        error = np.linalg.norm(old - variable - step)
        assert error <= 0.02 * np.linalg.norm(step)


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
def test_no_rounding_lets_a_sample_keep_more(case, policy):
    """One sample has a gradient; the others have the weight zero."""
    keras.config.set_dtype_policy(policy)
    make, clip, n = CLIPPED[case]
    model, optimizer = _model(kpg.PerGradModel), Gradients(1.0)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(
            optimizer, initial_scale=8.0
        )
    mode = make(kpg.ClippedMean(clip))
    model.compile(optimizer, "mse", gradient_mode=mode, jit_compile=False)
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
        kept = [
            np.float64(tf.cast(v, "float64")) for v in model.trainable_variables
        ]
        norm = np.sqrt(sum(np.square(g).sum() for g in kept))
        norm *= n * steps  # Of a mean.
        least = 1 - 2**-7 if "b" in policy else 1 - 2**-10
        if policy == "float16":  # The distance of its smallest numbers.
            least -= n * steps * np.sqrt(count) * 2**-24 / clip
        assert least * clip <= norm <= clip


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_an_output_in_float32_is_served_one_by_one(policy):
    """Inside, a sample alone is rounded otherwise than in its batch."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((20,))
    x = layers.Dense(64, "gelu", dtype=policy)(inputs)
    x = layers.Dense(64, "gelu", dtype=policy)(x)
    model = kpg.PerGradModel(inputs, layers.Dense(3, dtype="float32")(x))
    mode = kpg.PerSample(kpg.ClippedMean(1.0))
    model.compile(keras.optimizers.SGD(0.1), "mse", gradient_mode=mode)
    start, rng = model.get_weights(), np.random.default_rng(0)
    data = rng.normal(size=(64, 20)), rng.normal(size=(64, 3))
    model.fit(*data, batch_size=16, shuffle=False, verbose=0)
    one_by_one = [a - b for a, b in zip(model.get_weights(), start)]
    model.set_weights(start)
    mode = kpg.Vectorized(kpg.ClippedMean(1.0))
    model.compile(keras.optimizers.SGD(0.1), "mse", gradient_mode=mode)
    model.fit(*data, batch_size=16, shuffle=False, verbose=0)
    for found, new, old in zip(one_by_one, model.get_weights(), start):
        error = np.linalg.norm(found - (new - old))
        assert error <= 0.02 * np.linalg.norm(found)


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
    inputs = keras.Input((8,))
    # All that is cut off adds up: 0.2 % of the output.
    ones = keras.initializers.Constant(1 + 2**-10 - 2**-20)
    dense = layers.Dense(1, kernel_initializer=ones)
    model = kpg.PerGradModel(inputs, dense(inputs))
    model.compile("sgd", "mse", gradient_mode=mode, jit_compile=False)
    x = np.full((4, 8), 1 + 2**-10 - 2**-20, "float32")
    logs = model.train_on_batch(x, np.ones((4, 1)), return_dict=True)
    return model.get_weights(), logs


@pytest.mark.parametrize("aggregation", ["mean", kpg.ClippedMean(0.5)])
def test_a_sample_alone_is_not_rounded_to_ten_bits(aggregation, tf32):
    found, logs = _trained_coarsely(kpg.PerSample(aggregation))
    # Norms are not rounded up where nothing rounds so.
    tf32.setattr(tensor_float, "may_use_tf32", lambda: False)
    right, _ = _trained_coarsely(kpg.Vectorized(aggregation))
    for one, other in zip(found, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3)
    assert logs.get("nonfinite_samples", 0) == 0
    # Where no device rounds so, such an output is not the sample's.
    with pytest.raises(tf.errors.InvalidArgumentError, match="gives another"):
        _trained_coarsely(kpg.PerSample(aggregation))


def test_mixed_samples_are_no_rounding(tf32):
    inputs = keras.Input((8,))
    mixed = layers.Lambda(
        lambda x: tf.ensure_shape(
            tf.py_function(lambda x: x - tf.reduce_mean(x, 0), [x], x.dtype),
            (None, 8),
        ),
        output_shape=(8,),
    )
    model = kpg.PerGradModel(inputs, layers.Dense(1)(mixed(inputs)))
    settings = {"gradient_mode": "per_sample", "vouched": ["EagerPyFunc"]}
    model.compile("sgd", "mse", **settings, jit_compile=False)
    x = np.random.default_rng(0).normal(size=(4, 8))
    with pytest.raises(tf.errors.InvalidArgumentError, match="gives another"):
        model.train_on_batch(x, np.ones((4, 1)))
