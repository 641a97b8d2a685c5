"""Every way to the norms and sums of outer products, against plain NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.factors import Outer


def _parts(n, positions, i, o):
    rng = np.random.default_rng(0)
    between = [] if positions is None else [positions]
    return rng.normal(size=(n, *between, i)), rng.normal(size=(n, *between, o))


def _gradients(x, dz):
    n, i, o = x.shape[0], x.shape[-1], dz.shape[-1]
    x, dz = x.reshape(n, -1, i), dz.reshape(n, -1, o)
    return np.einsum("nti,nto->nio", x, dz)


@pytest.mark.parametrize("is_held", [False, True], ids=["new", "held"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "xla"])
@pytest.mark.parametrize("method", ["gram", "full", None])
@pytest.mark.parametrize(
    "shape", [(1, None, 3, 2), (3, 1, 2, 4), (2, 2, 5, 3), (5, 7, 2, 3)]
)
def test_every_method_agrees(shape, method, compiled, *, is_held):
    x, dz = _parts(*shape)
    gradients = _gradients(x, dz)
    weights = np.linspace(0, 2, len(x))

    @tf.function(jit_compile=compiled)
    def answers():
        factor = Outer(tf.constant(x), tf.constant(dz), method=method)
        if is_held:
            factor = factor.held()
        norms = factor.squared_norms()
        return norms, factor.weighted_sum(weights), factor.weighted_sum(None)

    norms, weighted, total = answers()
    np.testing.assert_allclose(
        norms, np.square(gradients).sum((1, 2)), rtol=1e-12
    )
    expected = np.einsum("n,nio->io", weights, gradients)
    np.testing.assert_allclose(weighted, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(total, gradients.sum(0), rtol=1e-10)
    factor = Outer(tf.constant(x), tf.constant(dz), method=method)
    np.testing.assert_allclose(factor.materialize(), gradients, rtol=1e-12)


def _cancelling(positions, offset, i=48, *, o=24, n=16):
    """Positions with much in common, whose gradients nearly cancel."""
    x, dz = _parts(n, positions, i, o=o)
    dz -= dz.mean(1, keepdims=True)
    x = (x + offset).astype("float32")
    dz = dz.astype("float32")
    exact = _gradients(x.astype("float64"), dz.astype("float64"))
    return x, dz, np.square(exact).sum((1, 2))


def _squares(x, dz, compiled):
    @tf.function(jit_compile=compiled)
    def squares():
        factor = Outer(tf.constant(x), tf.constant(dz), method="gram")
        return factor.squared_norms()

    return squares().numpy()


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("offset", [0, 1e2, 1e3, 1e4, 1e5])
@pytest.mark.parametrize("positions", [2, 4, 32, 200])
def test_rounding_makes_no_norm_too_small(positions, offset, compiled):
    x, dz, exact = _cancelling(positions, offset)
    found = _squares(x, dz, compiled)
    if not offset:  # Nothing cancels.
        np.testing.assert_allclose(found, exact, rtol=5e-6)
        return
    assert (found >= exact * (1 - 1e-6)).all()
    single = np.square(x).sum(2, "float64") * np.square(dz).sum(2, "float64")
    assert (found <= exact + 40 * 2**-23 * single.sum(1)).all()


@pytest.mark.parametrize(
    ("positions", "i", "o", "method"),
    [
        (1, 784, 50, "product"),
        # Few positions under wide kernels: no gradient is held.
        (16, 256, 256, "gram"),
        (64, 4096, 4096, "gram"),
        # As in a transformer block: held once, they serve the sum, too.
        (64, 128, 128, "full"),
        (64, 128, 512, "full"),
        # Many positions: the Gram matrices would be the larger ones.
        (256, 100, 400, "full"),
        (1024, 1024, 1024, "full"),
    ],
)
def test_the_choice_follows_the_shapes(positions, i, o, *, method):
    assert _zeros(positions, i, o).chosen_method() == method


def _zeros(positions, i, o, *, method=None):
    x, dz = tf.zeros((1, positions, i)), tf.zeros((1, positions, o))
    return Outer(x, dz, method=method)


def test_the_choice_under_xla_follows_its_own_rates():
    """To hold gradients costs it more."""

    @tf.function(jit_compile=True, autograph=False)
    def choose():
        assert _zeros(64, 128, 128).chosen_method() == "gram"
        assert _zeros(64, 128, 512).chosen_method() == "gram"
        assert _zeros(256, 64, 64).chosen_method() == "full"
        assert _zeros(1024, 1024, 1024).chosen_method() == "full"
        return tf.zeros([])

    choose.get_concrete_function()


def test_a_forced_method_is_kept():
    assert _zeros(64, 128, 128, method="gram").chosen_method() == "gram"
    assert _zeros(64, 128, 128, method="gram").sum_method() == "matmul"
    assert _zeros(64, 128, 128, method="full").sum_method() == "held"
