"""Small gradients side by side: the same norms and sums in fewer ops."""

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.factors import Full, Held, Outer, Sum, together
from keras_pergrad.factors.sampled import select

N = 5
WEIGHTS = tf.constant([0.5, 1.0, 0.0, 2.0, 0.25], tf.float64)


def drawn(*shape, dtype="float64"):
    rng = np.random.default_rng(len(shape))
    return tf.constant(rng.normal(size=(N, *shape)), dtype)


def factors():
    return [
        Full(drawn(3)),
        None,
        Outer(drawn(4), drawn(6)),
        Sum(drawn(7, 2)),
        Full(drawn(2, 3)),
        Full(drawn(4, dtype="float32")),
        Full(drawn()),
        Full(drawn(5000)),
    ]


def test_norms_and_sums_are_those_of_each():
    fewer, apart = together([f and f.held() for f in factors()])
    assert len(fewer) == len(factors()) - 3
    squares = [tf.cast(f.squared_norms(), tf.float64) for f in fewer if f]
    right = [tf.cast(f.squared_norms(), tf.float64) for f in factors() if f]
    np.testing.assert_allclose(sum(squares), sum(right), rtol=1e-12)
    sums = apart([f and f.weighted_sum(WEIGHTS) for f in fewer])
    for found, factor in zip(sums, factors(), strict=True):
        if factor is None:
            assert found is None
        else:
            expected = factor.weighted_sum(WEIGHTS)
            assert found.shape == expected.shape
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def test_one_small_factor_stays():
    one = [Full(drawn(3)), Outer(drawn(4), drawn(6))]
    fewer, apart = together(one)
    assert fewer is one
    assert apart([1, 2]) == [1, 2]


@pytest.mark.parametrize("method", ["full", "gram"])
def test_a_broken_sample_is_left_out_of_what_the_sum_reads(method):
    x, dz = drawn(7, 4).numpy(), drawn(7, 6).numpy()
    x[2, 0, 0] = np.nan
    broken = Outer(tf.constant(x), tf.constant(dz), method=method).held()
    finite = tf.math.is_finite(broken.squared_norms())
    assert finite.numpy().tolist() == [True, True, False, True, True]
    (sound,) = select([broken], finite)
    x[2] = 0
    right = Outer(tf.constant(x), tf.constant(dz))
    np.testing.assert_allclose(
        sound.weighted_sum(WEIGHTS), right.weighted_sum(WEIGHTS), rtol=1e-12
    )
    assert isinstance(broken, Held) == (method == "full")
    assert np.isnan(broken.squared_norms()).any()
