"""Inputs and layers whose samples cannot be told apart are refused by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import compiled, net, normal, trained, unchanged

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


def _one_number_under_a_mask():
    """A loss of one number a sample, whose mask has one for each step."""
    model = net(layers.Masking(), layers.Dense(3), shape=(6, 4), units=None)
    return model, _squares, r"\[{n}\], \[{n},6\]"


def _squares(y, p):
    return tf.reduce_mean((y - p) ** 2, [1, 2])


class Shaped(layers.Layer):
    """A function of samples (n, 4) whose shapes need not fit."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)

    def compute_output_shape(self, shape):
        return shape


def _ten_rows_added():
    return net(Shaped(lambda x: x + tf.ones((10, 4))), shape=(4,)), "mse", "10"


def _ten_rows_joined():
    layer = Shaped(lambda x: tf.concat([x, tf.ones((10, 4))], 1)[:, :4])
    return net(layer, shape=(4,)), "mse", "{n} and 10"


def _columns_of_three():
    layer = Shaped(lambda x: tf.reshape(x, (3, -1, 4))[0])
    return net(layer, shape=(4,)), "mse", "by 12 but is (24|4n)|24 and {n}"


def _times_itself():
    return net(Shaped(lambda x: x @ x), shape=(4,)), "mse", "4 and {n}"


#: Makers of a model and its loss, the mode, whether the batch's size is known.
UNFIT = [
    (_one_number_under_a_mask, "vectorized", False),
    (_one_number_under_a_mask, "per_sample", True),
    (_one_number_under_a_mask, kpg.Accumulated(microbatch_size=4), True),
    (_ten_rows_added, "per_sample", True),
    (_ten_rows_joined, "vectorized", False),
    (_columns_of_three, "per_sample", False),
    (_times_itself, kpg.Accumulated(microbatch_size=4), False),
]


@pytest.mark.parametrize(("make", "mode", "is_known"), UNFIT)
def test_shapes_that_do_not_fit_are_named(make, mode, is_known):
    model, loss, match = make()
    model = compiled(model, mode, loss)
    x, y = normal(8, *model.input_shape[1:]), normal(8, *model.output_shape[1:])
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.batch(8, drop_remainder=is_known)
    match = match.format(n="[48]" if is_known else "n")
    with unchanged(model), pytest.raises(ValueError, match=match) as raised:
        trained(model, data)
    assert "211" not in str(raised.value)
    assert "not known while tracing" not in str(raised.value)


def _ctc_of_sparse_labels(y, logits):
    y, logits = tf.cast(y, "int32"), tf.transpose(logits, (1, 0, 2))
    places = tf.where(y > 0)
    labels = tf.SparseTensor(
        places, tf.gather_nd(y, places), tf.shape(y, tf.int64)
    )
    lengths = tf.fill(tf.shape(y)[:1], 6)
    return tf.compat.v1.nn.ctc_loss(labels, logits, lengths)


class AddsCTC(layers.Layer):
    """Adds the CTC loss of labels made of its inputs."""

    def call(self, x):
        labels = tf.cast(x[:, :2, 0] > 0, "int32")
        self.add_loss(tf.reduce_mean(_ctc_of_sparse_labels(labels, x)))
        return x


@pytest.mark.parametrize("is_in_layer", [False, True], ids=["loss", "layer"])
def test_ctc_losses_of_sparse_labels_name_kerass_own(is_in_layer):
    parts = [AddsCTC()] if is_in_layer else []
    model = net(layers.Dense(5), *parts, shape=(6, 4), units=None)
    loss = "mse" if is_in_layer else _ctc_of_sparse_labels
    shape = (6, 5) if is_in_layer else (2,)
    model = compiled(model, "vectorized", loss)
    with pytest.raises(ValueError, match=r"use keras\.losses\.CTC"):
        trained(model, normal(4, 6, 4), np.ones((4, *shape), "float32"))


@pytest.mark.parametrize("depth", [1, 2])
def test_batch_norm_is_named_where_time_distributed_calls_it(depth):
    layer = layers.BatchNormalization(name="inside")
    for _ in range(depth):
        layer = layers.TimeDistributed(layer)
    shape = (3,) * depth + (4,)
    model = compiled(net(layer, shape=shape, units=None), "vectorized")
    match = "layer 'inside' .*replace_batch_norm"
    with unchanged(model), pytest.raises(ValueError, match=match):
        trained(model, normal(5, *shape), normal(5, *shape))
