"""What only a GPU shows, and which tests need none."""

import fnmatch
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle
from tests.keras_internals.distribution.cluster import run_alone
from tests.marks import CPU_ONLY
from tests.privacy import test_replicas
from tests.uses.rules.exact import Unmasked

layers = keras.layers
HERE = pathlib.Path(__file__).parent


def test_every_file_that_needs_no_gpu_is_there():
    paths = [p.relative_to(HERE).as_posix() for p in HERE.rglob("*.py")]
    for pattern in CPU_ONLY:
        assert fnmatch.filter(paths, pattern), pattern


def _image_net():
    inputs = keras.Input((12, 12, 3))
    x = layers.Conv2D(8, 3, activation="tanh")(inputs)
    x = layers.GroupNormalization(2)(x)
    x = layers.Conv2D(8, 3, strides=2, activation="tanh")(x)
    return kpg.PerGradModel(inputs, layers.Dense(4)(layers.Flatten()(x)))


def _images(n=6):
    rng = np.random.default_rng(0)
    shapes = (n, 12, 12, 3), (n, 4)
    return [rng.normal(size=s).astype("float32") for s in shapes]


@pytest.mark.gpu
@pytest.mark.parametrize("jit_compile", ["auto", False])
def test_norms_are_those_of_single_samples(jit_compile):
    model = _image_net()
    model.compile("sgd", "mse", jit_compile=jit_compile)
    x, y = map(tf.constant, _images())
    found = kpg.per_sample_gradients(model, x, y)
    oracle.check(found, model, x, y=y)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:On this GPU:UserWarning")
@pytest.mark.usefixtures("ten_bits")
def test_the_ten_bits_of_products_are_no_fault():
    model = _image_net()
    modes = ["vectorized", "per_sample", kpg.Vectorized(kpg.ClippedMean(1.0))]
    model.compile("sgd", "mse")
    check = kpg.check_gradients(
        model, *_images(), gradient_modes=modes, repeats=1
    )
    assert check.ok, check


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:On this GPU:UserWarning")
@pytest.mark.usefixtures("ten_bits")
@pytest.mark.parametrize("jit_compile", [True, False])
@pytest.mark.parametrize("offset", [0, 1e2, 1e3])
def test_a_sample_keeps_as_much_of_the_clip_norm_as_is_said(
    offset, jit_compile
):
    """0.4 % more, with products of ten bits."""
    inputs = keras.Input((64, 32))
    x = layers.Conv1D(48, 3, use_bias=False)(inputs)
    x = layers.LayerNormalization(axis=1, center=False, scale=False)(x)
    x = layers.Flatten()(layers.Activation("tanh")(x))
    net = kpg.PerGradModel(inputs, layers.Dense(2, trainable=False)(x))
    mode = kpg.Vectorized(kpg.ClippedMean(0.1))
    optimizer = keras.optimizers.SGD(1.0)
    net.compile(optimizer, "mse", gradient_mode=mode, jit_compile=jit_compile)
    start, rng = net.get_weights(), np.random.default_rng(0)
    for _ in range(8):
        net.set_weights(start)
        x = offset + rng.normal(size=(1, 64, 32))
        net.train_on_batch(x.astype("float32"), rng.normal(size=(1, 2)))
        pairs = zip(net.get_weights(), start)
        moved = sum(np.square(a - b).sum(dtype="float64") for a, b in pairs)
        assert np.sqrt(moved) <= 0.1 * (1 + 0.004)


@pytest.mark.gpu
def test_a_card_split_in_two_trains_as_one():
    """XLA is off under a strategy; clipping counts the samples of both."""
    names = ["batch", "vectorized_clipped_with_statistics", "per_sample"]
    module = "tests.keras_internals.distribution.mirrored"
    results = run_alone(module, "GPU", *names)
    assert results == dict.fromkeys(names), results


@pytest.mark.gpu
def test_private_training_on_a_card_split_in_two():
    """A step is the sum of what both draw, clipped, with noise added once."""
    test_replicas.check(run_alone("tests.privacy.replicas", mirrored="GPU"))


MASKS = np.array(
    [[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]],
    bool,
)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["batch", "per_sample", "vectorized"])
@pytest.mark.parametrize("make", [layers.LSTM, layers.GRU])
def test_masks_train_as_on_a_cpu(make, mode):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(5, 4, 2)).astype("float32"), MASKS
    finals = []
    for use_cudnn in ("auto", False):
        keras.utils.set_random_seed(3)
        x, mask = keras.Input((4, 2)), keras.Input((4,), dtype="bool")
        layer = make(3, return_sequences=True, use_cudnn=use_cudnn)
        outputs = Unmasked()(layer(x, mask=mask))
        outputs = layers.Dense(2)(layers.Reshape((12,))(outputs))
        model = kpg.PerGradModel([x, mask], outputs)
        model.compile("sgd", "mse", gradient_mode=mode)
        model.fit(data, np.ones((5, 2)), epochs=3, verbose=0)
        finals.append(model.get_weights())
    for a, b in zip(*finals):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
