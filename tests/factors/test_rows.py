import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.factors import Rows
from keras_pergrad.factors.rows import METHODS


def _factor(n, positions, method):
    rng = np.random.default_rng(0)
    ids = tf.constant(rng.integers(0, 4, (n, positions)), tf.int32)
    return Rows(
        ids, tf.constant(rng.normal(size=(n, positions, 3))), (4, 3), method
    )


@pytest.mark.parametrize("method", [*METHODS, None])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7)])
def test_every_method_sums_equal_ids_before_squaring(method, shape):
    factor = _factor(*shape, method)
    table = np.asarray(factor.materialize()).reshape(shape[0], -1)
    expected = np.square(table).sum(1)
    np.testing.assert_allclose(factor.squared_norms(), expected, rtol=1e-12)


@pytest.mark.parametrize("method", ["compare", "sort", None])
def test_xla_gives_the_same_norms(method):
    @tf.function(jit_compile=True)
    def norms():
        factor = _factor(3, 7, method)
        assert factor.chosen_method() != "unique"
        return factor.squared_norms()

    expected = _factor(3, 7, "sort").squared_norms()
    np.testing.assert_allclose(norms(), expected, rtol=1e-12)
