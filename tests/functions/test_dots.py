"""`per_sample_dots`: what may be a direction, and what may not.

Products are compared with the oracle's gradients in `test_functional.py`.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.uses import function_cache
from tests import oracle
from tests.models.making import compiled, integers, net, normal

layers = keras.layers
METHODS = ("vectorized", "per_sample")


def _direction(model, seed=4):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=v.shape) for v in model.trainable_variables]


def _products(gradients, direction):
    return [
        np.tensordot(np.reshape(g, (len(g), -1)), np.reshape(d, -1), 1)
        for g, d in zip(gradients, direction)
    ]


def _small(dtype=None):
    keras.utils.set_random_seed(3)
    model = net(
        layers.Embedding(7, 4, dtype=dtype),
        layers.Conv1D(5, 3, activation="tanh", dtype=dtype),
        layers.Flatten(dtype=dtype),
        layers.Dense(3, dtype=dtype),
        shape=(6,),
        dtype="int32",
        units=None,
    )
    return compiled(model), integers(7, 5, 6), normal(5, 3)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", METHODS)
def test_means_lists_slices_and_variables_are_directions(method):
    model, x, y = _small()

    def dots(direction, **how):
        how = {"method": method, **how}
        return kpg.per_sample_dots(model, x, y, direction=direction, **how)

    mean = oracle.batch_gradient(model, x, y)
    squared = sum(np.square(g).sum() for g in mean)
    np.testing.assert_allclose(np.mean(dots(mean)), squared, rtol=1e-10)
    # A variable that does not count.
    direction = _direction(model)
    whole = dots(direction, per_variable=True)
    direction[1] = None
    parts = dots(direction, per_variable=True)
    assert [p is None for p in parts] == [k == 1 for k in range(len(parts))]
    left = sum(part for k, part in enumerate(whole) if k != 1)
    np.testing.assert_allclose(dots(direction), left, rtol=1e-10)
    direction = list(model.trainable_variables)
    right = dots(direction)
    table = direction[0].value
    for shape in (None, tf.constant([7, 4])):
        direction[0] = tf.IndexedSlices(
            tf.concat([table, table], 0) / 2, [*range(7)] * 2, shape
        )
        np.testing.assert_allclose(dots(direction), right, rtol=1e-10)


@pytest.mark.usefixtures("float64")
def test_numbers_in_lists_are_not_rounded_and_no_rows_are_zeros():
    model = compiled(net(shape=(1,), units=1))
    x, y = np.array([[1.0]]), np.array([[3.0]])
    listed, arrays, none = (
        kpg.per_sample_dots(model, x, y, direction=[kernel, None])
        for kernel in ([[0.1]], np.array([[0.1]]), _slices(0, [], 1))
    )
    np.testing.assert_array_equal(listed, arrays)
    np.testing.assert_array_equal(none, [0])


@pytest.mark.parametrize("method", METHODS)
def test_batches_give_the_products_of_their_gradients(method):
    model, x, y = _small()
    direction = _direction(model)
    how = {"method": method, "batch_size": 2, "verbose": 0}
    gradients = kpg.per_sample_gradients(model, x, y, **how)
    found = kpg.per_sample_dots(model, x, y, direction=direction, **how)
    right = sum(_products(gradients, direction))
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
    found = kpg.per_sample_dots(model, data, direction=direction, **how)
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "policy", ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"]
)
def test_half_precision_is_widened(policy, method):
    model, x, y = _small(policy)
    direction = [1000 * d for d in _direction(model)]
    gradients = kpg.per_sample_gradients(model, x, y, method=method)
    gradients = [np.asarray(tf.cast(g, tf.float64)) for g in gradients]
    found = kpg.per_sample_dots(model, x, y, direction=direction, method=method)
    assert found.dtype == tf.float32
    right = np.array(_products(gradients, direction))
    digits = 2e-2 if policy.endswith("bfloat16") else 4e-3
    limit = digits * np.abs(right).max()
    np.testing.assert_allclose(found, right.sum(0), rtol=0, atol=limit)


@pytest.mark.quick
def test_another_direction_is_not_traced_again():
    model, x, y = _small()
    for seed in range(4):
        kpg.per_sample_dots(model, x, y, direction=_direction(model, seed))
    ((function, _),) = function_cache._TRACED[model].values()
    assert function.experimental_get_tracing_count() == 1


def _slices(rows, ids, width=4):
    return tf.IndexedSlices(
        np.ones((rows, width), "float32"), np.array(ids, int)
    )


def test_a_bad_direction_is_refused_before_anything_runs(monkeypatch):
    model, x, y = _small()
    monkeypatch.setattr(keras.Model, "__call__", None)

    def message(direction):
        with pytest.raises(ValueError) as error:
            kpg.per_sample_dots(model, x, y, direction=direction)
        return str(error.value)

    good = _direction(model)
    assert "a list of 5 gradients" in message(good[:4])
    assert "4 of them" in message(good[:4])
    assert "Received: ndarray" in message(good[0])
    assert "only None" in message([None] * 5)
    path = model.trainable_variables[2].path
    for wrong, said in (
        (good[2][:1], "variable's shape, (5,). Received: shape (1,)"),
        (good[2] * np.nan, "finite numbers. Received: NaN or infinity"),
        (good[2] * 1e300, "infinity, as float32"),
        (good[2] * 1j, "real numbers. Received: complex128"),
        (["a"] * 5, "real numbers. Received: string"),
    ):
        text = message([*good[:2], wrong, *good[3:]])
        assert path in text
        assert "direction" in text
        assert said in text
    for slices, said in (
        (_slices(2, [0, 1], 3), "(7, 4). Received: shape (7, 3)"),
        (_slices(1, [7]), "one of the 7 rows"),
        (_slices(1, [-1]), "one of the 7 rows"),
        (_slices(2, [0]), "one of the 7 rows"),
    ):
        assert said in message([slices, *good[1:]])


def test_a_model_without_variables_yet_is_refused():
    model = compiled(keras.Sequential([layers.Dense(3)]))
    with pytest.raises(ValueError, match="Expected a built model"):
        kpg.per_sample_dots(model, np.ones((2, 3)), np.ones(2), direction=[])
    with pytest.raises(TypeError, match=r"must be a keras\.Model"):
        kpg.per_sample_dots(len, np.ones((2, 3)), np.ones(2), direction=[])


@pytest.mark.parametrize("method", METHODS)
def test_a_loss_that_does_not_depend_on_a_variable(method):
    inputs = keras.Input((5,))
    outputs = [layers.Dense(2)(inputs), layers.Dense(3)(inputs)]
    model = compiled(keras.Model(inputs, outputs), loss=[None, "mse"])
    x, y = np.ones((3, 5), "float32"), [None, np.ones((3, 3), "float32")]
    gradients = kpg.per_sample_gradients(model, x, y, method=method)
    direction = _direction(model)
    how = {"method": method, "direction": direction}
    parts = kpg.per_sample_dots(model, x, y, per_variable=True, **how)
    for found in (gradients, parts):
        assert [p is None for p in found] == [True, True, False, False]
    direction[2:] = None, None
    with pytest.raises(ValueError, match="on which the loss of model"):
        kpg.per_sample_dots(model, x, y, **how)


@pytest.mark.parametrize("method", METHODS)
def test_samples_that_are_not_finite_are_named(method):
    model, x, y = _small()
    y[2] = np.nan
    with pytest.raises(ValueError, match="samples 2 are not finite"):
        kpg.per_sample_dots(
            model, x, y, direction=_direction(model), method=method
        )
