import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.factors import Patches, Windows, convolution_method
from keras_pergrad.factors.patches import METHODS
from keras_pergrad.factors.sampled import select

N, SIZES, KERNEL = 3, (5, 6), (3, 2)

# stride, dilation, groups, filters
GEOMETRIES = {
    "plain": (1, 1, 1, 8),
    "strided": (2, 1, 1, 8),
    "dilated": (1, 2, 1, 8),
    "groups": (1, 1, 2, 8),
    "depthwise": (2, 1, 4, 8),
    "depthwise, one filter a channel": (1, 1, 4, 4),
    "depthwise, two filters a channel": (1, 1, 4, 8),
    "depthwise, dilated": (1, 2, 4, 4),
}


def _build(geometry="plain", method=None, seed=0):
    stride, dilation, groups, filters = GEOMETRIES[geometry]
    windows = Windows.of(
        SIZES, KERNEL, (stride,) * 2, dilation=(dilation,) * 2, padding="same"
    )
    rng = np.random.default_rng(seed)
    big = tf.constant(rng.normal(size=(N, *SIZES, 4)))
    small = tf.constant(rng.normal(size=(N, *windows.positions, filters)))
    shape = (*KERNEL, 4 // groups, filters)
    return Patches(
        big, small, windows, shape=shape, groups=groups, method=method
    )


def _methods(geometry):
    return [m for m in METHODS if m in _build(geometry)._costs]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_methods_agree(geometry):
    """One of them is compared with the oracle layer by layer."""
    expected = _build(geometry).materialize().numpy()
    weights = np.array([0.3, 0.0, 1.7])
    for method in _methods(geometry):
        build = lambda m=method: _build(geometry, m)  # noqa: E731
        np.testing.assert_allclose(build().materialize(), expected, 1e-10)
        norms = np.square(expected).reshape(N, -1).sum(1)
        total = np.tensordot(weights, expected, 1)
        for factor in (build(), build().held(), build().held(pairs=True)):
            np.testing.assert_allclose(factor.squared_norms(), norms, 1e-10)
            found = factor.weighted_sum(weights)
            np.testing.assert_allclose(found, total, rtol=1e-10, atol=1e-12)
            dots = np.tensordot(expected, total, total.ndim)
            np.testing.assert_allclose(factor.dot(total), dots, rtol=1e-10)
            squares = np.square(expected).sum(0)
            found = factor.sum_of_squares()
            np.testing.assert_allclose(found, squares, rtol=1e-10)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_windows_are_those_of_the_op(size, padding):
    rng = np.random.default_rng(0)
    big = tf.constant(rng.normal(size=(1, 7, 2)))
    kernel = tf.constant(rng.normal(size=(size, 2, 3)))
    for stride in (1, 2, 3):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            output = tf.nn.conv1d(big, kernel, stride, padding.upper())
        small = tf.constant(rng.normal(size=output.shape))
        right = tape.gradient(output, kernel, small)
        windows = Windows.of(
            (7,), (size,), (stride,), dilation=(1,), padding=padding
        )
        found = Patches(big, small, windows, shape=kernel.shape).materialize()
        np.testing.assert_allclose(found[0], right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 4])
def test_methods_agree_for_a_kernel_of_one_pixel(groups):
    windows = Windows.of(
        SIZES, (1, 1), (1, 1), dilation=(1, 1), padding="valid"
    )
    rng = np.random.default_rng(0)
    big, small = rng.normal(size=(2, N, *SIZES, 4))
    expected = np.einsum("nhwi,nhwo->nio", big, small)
    if groups == 4:
        expected = np.einsum("nhwi,nhwi->ni", big, small)[:, None]
    shape = (1, 1, 4 // groups, 4)
    tensors = tf.constant(big), tf.constant(small)
    for method in Patches(*tensors, windows, shape=shape, groups=groups)._costs:
        factor = Patches(
            *tensors, windows, shape=shape, groups=groups, method=method
        )
        norms = np.square(expected).sum((1, 2))
        np.testing.assert_allclose(factor.squared_norms(), norms, 1e-10)
        found = np.reshape(factor.materialize(), expected.shape)
        np.testing.assert_allclose(found, expected, 1e-10)
        found = np.reshape(factor.weighted_sum(None), expected.shape[1:])
        np.testing.assert_allclose(found, expected.sum(0), 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_a_sample_that_is_not_finite_can_be_left_out(method):
    sound = _build(method=method)
    assert sound.chosen_method() == method
    assert sound.norm_bytes(8) == 8 * sound.norm_bytes(1) > 0
    poison = tf.constant([1.0, np.nan, 1.0], tf.float64)[:, None, None, None]
    broken = sound.map(lambda t: t * poison if t is sound.big else t).held()
    norms = broken.squared_norms()
    np.testing.assert_array_equal(np.isfinite(norms), [True, False, True])
    (broken,) = select([broken], tf.constant([True, False, True]))
    weights = np.array([0.5, 0.0, 2.0])
    np.testing.assert_allclose(
        broken.weighted_sum(weights),
        _build().weighted_sum(weights),
        rtol=1e-10,
        atol=1e-12,
    )
    direction = _build().weighted_sum(weights)
    dots = broken.dot(direction)
    right = _build().dot(direction) * [1, 0, 1]
    np.testing.assert_allclose(dots, right, rtol=1e-10, atol=1e-12)
    assert np.isfinite(broken.sum_of_squares()).all()


def _chosen(sizes, channels, filters, kernel, stride, padding, groups=1):
    windows = Windows.of(
        sizes, (kernel,) * 2, (stride,) * 2, dilation=(1, 1), padding=padding
    )
    big = keras.ops.zeros((1, *sizes, channels))
    small = keras.ops.zeros((1, *windows.positions, filters))
    shape = (kernel, kernel, channels // groups, filters)
    return Patches(
        big, small, windows, shape=shape, groups=groups
    ).chosen_method()


def test_the_choice_follows_the_shapes():
    cases = {
        ((28, 28), 1, 16, 8, 2, "same"): "identity",
        ((13, 13), 16, 32, 4, 2, "valid"): "patch_gram",
        ((16, 16), 64, 64, 3, 1, "same"): "patches",
        ((32, 32), 32, 32, 3, 1, "same"): "taps",
        ((8, 8), 128, 128, 3, 1, "same"): "pixel_gram",
        ((32, 32), 3, 768, 16, 16, "valid"): "patch_gram",
        # A slice with a stride is slow, as in the shortcuts of ResNet.
        ((56, 56), 64, 64, 1, 1, "same"): "taps",
        ((56, 56), 64, 64, 1, 2, "same"): "patches",
        # So is TensorFlow's depthwise op, as in ConvNeXt and MobileNet.
        ((16, 16), 96, 96, 7, 1, "same", 96): "taps",
        ((2, 2), 768, 768, 7, 1, "same", 768): "taps",
        ((32, 32), 32, 32, 3, 2, "same", 32): "patches",
    }
    for shapes, method in cases.items():
        assert _chosen(*shapes) == method, shapes


def test_one_op_gives_all_taps_of_a_depthwise_kernel():
    with tf.Graph().as_default() as graph:
        _build("depthwise, two filters a channel", "taps").squared_norms()
    types = [op.type for op in graph.get_operations()]
    assert types.count("DepthwiseConv2dNative") == 1
    assert "Slice" not in types


@pytest.mark.parametrize(
    ("sizes", "kernel", "strides", "padding", "joined"),
    [
        ((9, 11), (8, 8), (2, 2), "same", 16),
        ((13, 16), (7, 5), (2, 3), "valid", 8),
        ((17, 40), (2, 17), (3, 4), "same", 5),
        ((41,), (19,), (4,), "causal", 5),
        ((7, 6, 8), (3, 3, 3), (2, 2, 3), "valid", 4),
        ((16, 16), (8, 8), (8, 8), "valid", 1),
    ],
)
def test_strides_join_many_taps_under_xla(
    sizes, kernel, strides, *, padding, joined
):
    """XLA takes seconds to compile a slice and a matmul for each of them."""
    windows = Windows.of(
        sizes, kernel, strides, dilation=(1,) * len(sizes), padding=padding
    )
    rng = np.random.default_rng(0)
    big = tf.constant(rng.normal(size=(N, *sizes, 3)))
    small = tf.constant(rng.normal(size=(N, *windows.positions, 4)))

    def gradients(big, small):
        factor = Patches(
            big, small, windows, shape=(*kernel, 3, 4), method="taps"
        )
        return factor.materialize()

    compiled = tf.function(gradients, jit_compile=True, autograph=False)
    np.testing.assert_allclose(
        compiled(big, small), gradients(big, small), 1e-10, 1e-12
    )
    ops = compiled.get_concrete_function(big, small).graph.get_operations()
    assert [op.type for op in ops].count("BatchMatMulV2") == joined


def test_the_choice_under_xla_follows_its_own_rates():
    """It copies slowly; of these, the loop was once taken for the third."""
    cases = {
        ((28, 28), 1, 16, 8, 2, "same"): "taps",
        ((32, 32), 32, 32, 3, 1, "same"): "identity",
        ((16, 16), 64, 64, 3, 1, "same"): "taps",
        ((8, 8), 64, 128, 3, 1, "same"): "pixel_gram",
        ((4, 4), 128, 256, 3, 1, "same"): "pixel_gram",
    }

    @tf.function(jit_compile=True, autograph=False)
    def choose():
        for shapes, method in cases.items():
            assert _chosen(*shapes) == method
        return tf.zeros([])

    choose.get_concrete_function()


def test_a_method_can_be_forced_for_a_while():
    free = _build().chosen_method()
    for method in METHODS:
        with convolution_method(method):
            assert _build().chosen_method() == method
    with pytest.raises(RuntimeError), convolution_method("loop"):
        raise RuntimeError
    assert _build().chosen_method() == free


def test_a_method_that_cannot_serve_is_refused_or_passed_over():
    with pytest.raises(ValueError, match=r"'loop' cannot serve .* dilation"):
        _build("dilated", "loop")
    with convolution_method("loop"):
        assert _build("dilated").chosen_method() != "loop"


def test_an_unknown_method_is_refused():
    message = r"expected one of .taps., .*Received: method='fast'"
    with pytest.raises(ValueError, match=message):
        _build(method="fast")
    with pytest.raises(ValueError, match=message), convolution_method("fast"):
        pass


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [(3, 3), (2, 4), (1, 5)])
@pytest.mark.parametrize("groups", [1, 2])
def test_an_op_adds_the_zeros_of_same_itself(kernel, stride, groups):
    windows = Windows.of(
        (7, 8), kernel, (stride,) * 2, dilation=(1, 1), padding="same"
    )
    # The same zeros, but written out: the input has them.
    padded = Windows.of(
        windows.padded_sizes,
        kernel,
        (stride,) * 2,
        dilation=(1, 1),
        padding="valid",
    )
    assert windows.has_same_padding
    rng = np.random.default_rng(0)
    big = tf.constant(rng.normal(size=(3, 7, 8, 2)))
    small = tf.constant(rng.normal(size=(3, windows.count, 4)))
    shape = [*kernel, 2 // groups, 4]
    direction = rng.normal(size=shape)
    weights = tf.constant([1.0, 0.5, 2.0], tf.float64)

    def answers(big, windows):
        factor = Patches(big, small, windows, shape=shape, groups=groups)
        return factor.weighted_sum(weights), factor.dot(direction)

    expected = answers(windows.pad(big), padded)
    for found, right in zip(answers(big, windows), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12)
