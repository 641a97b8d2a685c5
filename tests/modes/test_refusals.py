"""Inputs and layers whose samples cannot be told apart are refused by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg

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
    net = kpg.PerGradModel.from_model(model)
    net.compile("sgd", "mse", gradient_mode="vectorized")
    with pytest.raises(ValueError, match=match):
        net.train_on_batch(x, y)
    with pytest.raises(ValueError, match=match):
        kpg.per_sample_norms(net, x, y)
    if make is _sparse:
        with pytest.raises(ValueError, match="sparse or ragged tensor"):
            kpg.per_sample_norms(net, x, y, method="per_sample")
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
