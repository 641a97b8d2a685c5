"""What differs between versions of Keras: nothing here relies on one side."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.keras_internals.fit.train_function import (
    compiled_functions,
    trace_count,
)
from tests import oracle
from tests.models.making import (
    assert_equal,
    compiled,
    net,
    normal,
    trained,
    unchanged,
)
from tests.privacy.tiny import private
from tests.proof.fits import refusal

layers, ops = keras.layers, keras.ops
pytestmark = pytest.mark.usefixtures("float64")
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


class Own(layers.Layer):
    """A function of the input and of one weight."""

    def __init__(self, shape, function):
        super().__init__()
        self.size, self.function = shape, function

    def build(self, shape):
        self.kernel = self.add_weight(shape=self.size)

    def call(self, x):
        return self.function(x, self.kernel)


# From 3.16 on the first step is traced for the size of the first batch, and
# that size may be the length of any other axis. A smaller last batch is traced
# once more.


def square():
    """A model all of whose axes are as long as a batch of five."""
    keras.utils.set_random_seed(1)
    return net(
        layers.Dense(5, "tanh"),
        Own((5, 5), lambda x, w: ops.einsum("ni,ij->nj", x, w)),
        layers.Reshape((5, 1)),
        layers.Conv1D(5, 5, padding="same"),
        layers.LayerNormalization(),
        layers.Permute((2, 1)),
        layers.Flatten(),
        units=5,
    )


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("mode", ["vectorized", "per_sample", "accumulated"])
def test_a_batch_as_long_as_every_other_axis_is_no_trap(mode, fixed):
    x, y = normal(12, 5), normal(12, 5, seed=1)
    if mode == "accumulated":
        mode = kpg.Accumulated(microbatch_size=2)
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.batch(5, drop_remainder=fixed)
    plain = trained(compiled(square(), jit_compile=False), data)
    model = trained(compiled(square(), mode, jit_compile=False), data)
    assert_equal(model.get_weights(), plain.get_weights(), **CLOSE)
    traces = trace_count(compiled_functions(model.train_function))
    assert 1 <= traces <= 2
    trained(model, data)
    assert trace_count(compiled_functions(model.train_function)) == traces


@pytest.mark.parametrize(
    "mixes",
    [
        lambda x, w: ops.transpose(ops.matmul(ops.transpose(x), w)),
        lambda x, w: x @ w - ops.mean(x, 0),
        lambda x, w: ops.flip(x, 0) @ w,
        lambda x, w: ops.matmul(w, x),
        lambda x, w: x @ w + ops.sum(x, 0, keepdims=True),
        lambda x, w: ops.softmax(x @ w, 0),
    ],
)
def test_nor_does_it_hide_what_mixes_the_samples(mixes):
    x, y = normal(5, 5), normal(5, 5, seed=1)
    model = net(Own((5, 5), mixes), units=5)
    model = compiled(model, "vectorized", jit_compile=False)
    data = tf.data.Dataset.from_tensors((x, y))  # of a known size
    with unchanged(model), pytest.raises(ValueError, match=r"samples|batch"):
        trained(model, data)


# Up to 3.15 recurrent layers and their wrappers hand masks on, later they end
# them: then positions that are padded count in the loss.


@pytest.mark.filterwarnings("ignore:.*does not support masking")
@pytest.mark.parametrize("hands_on", [True, False])
def test_masks_are_those_that_keras_sets(hands_on):
    def marked(layer):
        layer.supports_masking = hands_on
        return layer

    both = layers.Bidirectional(layers.LSTM(2, return_sequences=True))
    inputs = keras.Input((4,), dtype="int32")
    x = layers.Embedding(6, 3, mask_zero=True)(inputs)
    for layer in (
        layers.GRU(3, return_sequences=True),
        both,
        layers.TimeDistributed(layers.Dense(3)),
    ):
        x = marked(layer)(x)
    model = keras.Model(inputs, layers.Dense(2)(x))
    model.compile("sgd", "mse")
    ids = np.array([[1, 2, 0, 3], [0, 4, 4, 0], [5, 1, 2, 3]])
    has_mask = getattr(model(ids), "_keras_mask", None) is not None
    assert has_mask == hands_on
    found = kpg.per_sample_gradients(model, ids, normal(3, 4, 2))
    oracle.check(found, model, ids, y=normal(3, 4, 2))


# From 3.15 (depthwise) and 3.16 on a convolution may have strides and dilation:
# it is then padded, dilated, and every other place of it is taken.


def _by_hand(x, w):
    padded = ops.pad(x, [[0, 0], [1, 2], [2, 1], [0, 0]])
    return ops.conv(padded, w, padding="valid", dilation_rate=2)[:, ::2, ::3]


CONVOLUTIONS = {
    "by hand": ((3, 3, 2, 4), _by_hand),
    "strides and dilation": (
        (3, 3, 2, 4),
        lambda x, w: ops.conv(x, w, 2, "same", dilation_rate=2),
    ),
    "valid": (
        (2, 2, 2, 4),
        lambda x, w: ops.conv(x, w, (2, 3), "valid", dilation_rate=2),
    ),
    "groups": (
        (2, 2, 1, 4),
        lambda x, w: ops.conv(x, w, 2, "same", dilation_rate=2),
    ),
    "depthwise": (
        (2, 2, 2, 2),
        lambda x, w: ops.depthwise_conv(x, w, 2, "same", dilation_rate=2),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_strides_with_dilation_are_exact(name):
    own = Own(*CONVOLUTIONS[name])
    try:
        pooled = layers.GlobalAveragePooling2D()
        model = net(own, pooled, shape=(9, 8, 2), units=2)
    except (ValueError, tf.errors.OpError) as error:
        if "dilation" not in str(error):
            raise
        pytest.skip("this Keras refuses strides with dilation")
    model.compile("sgd", "mse")
    x, y = normal(3, 9, 8, 2), normal(3, 2, seed=1)
    oracle.check(kpg.per_sample_gradients(model, x, y), model, x, y=y)


# From 3.16 on `training=True` that was given when a model was made wins.


@pytest.mark.parametrize("training", [True, False])
def test_what_was_said_of_training_when_a_model_was_made(training):
    """Trains as Keras does with it, whichever wins, or is refused."""

    def made():
        keras.utils.set_random_seed(2)
        inputs = keras.Input((5,))
        x = layers.Dense(4, "tanh")(inputs)
        x = layers.Dropout(0.5, seed=3)(x, training=training)
        x = layers.BatchNormalization()(x, training=not training)
        return keras.Model(inputs, layers.Dense(1)(x))

    x, y = normal(6, 5), normal(6, 1, seed=1)
    plain = trained(compiled(made(), jit_compile=False), x, y)
    model = compiled(made(), "vectorized", jit_compile=False)
    before = model.get_weights()
    said = refusal(lambda: trained(model, x, y))
    assert ("batch_normalization" in said) == bool(said)
    expected = before if said else plain.get_weights()
    assert_equal(model.get_weights(), expected, **CLOSE)


# Where a dataset fixes the size of its batches, Keras up to 3.15.1 counts a
# batch into the metrics while it only looks at the model.


def _counted(fixed):
    """Return what modes count in a fit of four batches."""
    x, y = normal(20, 3), normal(20, 1, seed=1)
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.batch(5, drop_remainder=fixed)

    def fit(mode, *callbacks, data=data):
        model = net(shape=(3,), units=1, seed=4)
        model = compiled(model, mode, jit_compile=False)
        return trained(model, data, callbacks=callbacks)

    statistics = fit(kpg.Vectorized(statistics=True)).history.history
    statistics = {k: v for k, v in statistics.items() if k != "loss"}
    over_steps = fit(kpg.Accumulated(3))
    clipping = kpg.aggregations.ClippedMean(0.5, noise_multiplier=0.0)
    clipped = fit(kpg.Vectorized(clipping)).history.history
    clipped.pop("loss")
    watching = kpg.callbacks.GradientVariance()
    watched = fit("batch", watching).history.history
    watched.pop("loss")
    return [statistics, clipped, watched], [
        int(over_steps.optimizer.iterations),
        *map(np.array, over_steps.get_weights()),
    ]


def test_a_batch_that_is_only_looked_at_is_not_counted():
    for found, expected in zip(_counted(True), _counted(False)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            if isinstance(one, dict):
                assert one.keys() == other.keys()
                one, other = [list(each.values()) for each in (one, other)]
            np.testing.assert_allclose(one, other, **CLOSE)


def test_nor_does_a_ledger_count_it():
    spent = []
    for fixed in (True, False):
        training = private(samples=20, batch_size=5, epochs=1)
        model = net(shape=(3,), units=1)
        model = compiled(model, training.gradient_mode, jit_compile=False)
        x, y = normal(20, 3), normal(20, 1, seed=1)
        if fixed:
            data = tf.data.Dataset.from_tensors((x[:5], y[:5]))
            model.evaluate(data, verbose=0)
            assert model.aggregation_state.updates == 0
        batches = training.batches(x, y)
        trained(model, batches, callbacks=[training.callback])
        spent.append(model.aggregation_state.updates)
    assert spent == [4, 4]
