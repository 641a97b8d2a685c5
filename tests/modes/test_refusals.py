"""Inputs and layers whose samples cannot be told apart are refused by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import compiled, trained, unchanged

layers = keras.layers


def _sparse():
    inputs = keras.Input((4,), sparse=True)
    model = keras.Model(inputs, layers.Dense(2, name="first")(inputs))
    return model, tf.sparse.from_dense(np.eye(3, 4, dtype="float32"))


def _ragged():
    try:
        inputs = keras.Input((None,), dtype="int32", ragged=True)
    except TypeError:
        pytest.skip("this Keras has no ragged inputs")
    x = layers.Embedding(7, 3, name="first")(inputs)
    model = keras.Model(inputs, layers.Dense(2)(keras.ops.sum(x, 1)))
    return model, tf.ragged.constant([[1, 2], [3, 4, 5], [6]])


@pytest.mark.parametrize("make", [_sparse, _ragged])
def test_sparse_and_ragged_inputs(make):
    model, x = make()
    y = tf.ones((3, 2))
    match = "batch has a sparse or ragged tensor"
    net = compiled(model, "vectorized")
    with pytest.raises(ValueError, match=match):
        net.train_on_batch(x, y)
    with pytest.raises(ValueError, match=match):
        kpg.per_sample_norms(net, x, y)
    if make is _sparse:
        with pytest.raises(ValueError, match="sparse or ragged tensor"):
            kpg.per_sample_norms(net, x, y, method="per_sample")
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(3)
        named = "Received: a SparseTensor in the ba"
        with pytest.raises(ValueError, match=named):
            trained(compiled(model, "accumulated"), data)
    for given in (None, x):
        (row,) = kpg.explain(model, 3, x=given).refused
        assert row.layer == model.name
        assert "Densify it in the data set" in row.reason


def test_a_ragged_input_is_refused_also_where_it_is_densified():
    class Padded(layers.Layer):
        def call(self, x):
            return x.to_tensor() if isinstance(x, tf.RaggedTensor) else x

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.padded, self.table = Padded(), layers.Embedding(7, 2)

        def call(self, x):
            return keras.ops.sum(self.table(self.padded(x)), 1)

    model = Net()
    ragged = tf.ragged.constant([[1, 2], [3, 4, 5], [6]])
    dense, y = ragged.to_tensor(), tf.ones((3, 2))
    model(dense)
    model.compile("sgd", "mse")
    assert kpg.per_sample_norms(model, dense, y).shape == (3,)
    with pytest.raises(ValueError, match="Densify it in the data set"):
        kpg.per_sample_norms(model, ragged, y)


class Triplets(keras.Model):
    """Three outputs in one tensor."""

    def __init__(self, axis):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.axis = axis

    def call(self, x):
        parts = [self.dense(x[:, k]) for k in range(3)]
        return keras.ops.stack(parts, axis=self.axis)


@pytest.mark.parametrize("axis", [0, 1])
def test_per_sample_names_an_output_with_samples_on_another_axis(axis):
    def loss(y, y_pred):
        near, far = (
            keras.ops.sum((parts[0] - parts[k]) ** 2, -1)
            for parts in [keras.ops.moveaxis(y_pred, axis, 0)]
            for k in (1, 2)
        )
        return keras.ops.relu(near - far + 1.0) + 0 * y

    x, y = np.random.default_rng(0).normal(size=(6, 3, 4)), np.zeros(6)
    found = []
    for mode in ("batch", "vectorized", "per_sample"):
        keras.utils.set_random_seed(1)
        model = compiled(Triplets(axis), mode, loss, 0.01, jit_compile=False)
        model(x)
        if mode == "per_sample" and axis == 0:
            match = r"(?s)does not have its samples .*\(3, None, 3\).*axis=1"
            with unchanged(model), pytest.raises(ValueError, match=match):
                trained(model, x, y, batch_size=6)
            return
        trained(model, x, y, batch_size=6)
        found.append(model.get_weights()[0])
        np.testing.assert_allclose(found[-1], found[0], rtol=1e-4, atol=1e-6)
