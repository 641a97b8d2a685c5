"""What is known of a layer holds for the methods that run, not for its name.

Scopes may be called as they like, and a subclass may compute anything.
"""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.proof.layer_methods import is_exactly, own_method
from keras_pergrad.uses.layer_rules.registry import find_rule
from tests import oracle
from tests.models.making import assert_equal, compiled, net, trained
from tests.proof.fits import fit_privately, refusal
from tests.proof.mixing_cases import Apply

layers = keras.layers
_rng = np.random.default_rng(1)
X, Y = _rng.normal(size=(6, 4)).astype("float32"), np.ones((6, 1), "float32")
IDS = _rng.integers(0, 5, (6, 1)).astype("int32")
TEXTS = np.array([["a b"], ["c"], ["d e f"], ["a"], ["b"], ["g a"]])


def _error(layer, x=X, mode="vectorized", *, beside=None, **given):
    """The refusal of a model with a layer, or nothing."""
    keras.utils.set_random_seed(3)
    kind = "string" if x is TEXTS else x.dtype.name
    inputs = keras.Input(x.shape[1:], dtype=kind)
    hidden = inputs if x is not X else layers.Dense(4)(inputs)
    hidden = layer(hidden)
    if len(hidden.shape) != 2 or hidden.dtype.startswith("int"):
        hidden = layers.Embedding(9, 3)(hidden)[:, -1]
    outputs = [layers.Dense(1)(hidden)]
    if beside is not None:
        outputs += [layers.Dense(1)(beside(inputs))]
    model = kpg.PerGradModel(inputs, layers.add(outputs) if beside else outputs)
    model.compile("sgd", "mse", gradient_mode=mode, **given)
    data = tf.data.Dataset.from_tensor_slices((x, Y)).batch(6)
    return refusal(lambda: trained(model, data))


def _in_scope(scope, axis=0, **given):
    """Subtracts the mean of the batch, in a scope of any name."""

    def centred(x):
        with tf.name_scope(scope):
            return x - tf.reduce_mean(x, axis, keepdims=True)

    return Apply(centred, **given)


@pytest.mark.parametrize(
    "scope",
    [
        "gradients",
        "gradients/MatMul_grad",
        "category_encoding",
        "keras_pergrad_same_for_all",
    ],
)
def test_no_scope_makes_a_mean_over_the_batch_right(scope):
    def beside(x):
        name = "category_encoding"
        one = layers.CategoryEncoding(5, output_mode="one_hot", name=name)
        return one(keras.ops.cast(x[:, :1] * 0, "int32"))

    assert "mixes the samples" in _error(_in_scope(scope), beside=beside)
    assert not _error(_in_scope(scope, axis=-1), beside=beside)


def test_weighing_in_a_scope_called_gradients():
    def weigh(x):
        count = tf.reduce_sum(tf.cast(x > 0, x.dtype))
        with tf.name_scope("gradients"):
            return x / count + x

    assert "mixes the samples" in _error(Apply(weigh, name="gradients"))


@pytest.mark.parametrize("scope", ["batch_normalization", "vouched_for"])
def test_the_scope_of_another_layer_is_not_vouched_for(scope):
    def beside(x):
        bn = layers.BatchNormalization(name="batch_normalization")
        return layers.Dense(2, name="vouched_for")(bn(x))

    microbatches = kpg.Accumulated(microbatch_size=6)
    given = {"mode": microbatches, "vouched": ["vouched_for"]}
    text = _error(_in_scope(scope, name="other"), beside=beside, **given)
    assert "'other'" in text
    # The layer itself may be.
    given["vouched"] = ["other"]
    assert not _error(_in_scope(scope, name="other"), beside=beside, **given)


class Centred(layers.CategoryEncoding):
    """Subtracts the batch's mean."""

    def call(self, x):
        found = super().call(x)
        return found - tf.reduce_mean(found, 0)


class CentredWithin(layers.CategoryEncoding):
    """The same in a method that Keras's `call` uses."""

    def _encode(self, inputs, count_weights=None):
        found = super()._encode(inputs, count_weights)
        return found - tf.reduce_mean(found, 0)


class Renamed(layers.CategoryEncoding):
    """Computes as its class does."""

    def __init__(self, **given):
        super().__init__(num_tokens=5, output_mode="one_hot", **given)

    def get_config(self):
        return {}


class Crossed(layers.HashedCrossing):
    """Crosses with the next sample."""

    def call(self, x):
        first, second = x
        return super().call((first, tf.roll(second, 1, 0)))


def _patched():
    layer = layers.CategoryEncoding(5, output_mode="one_hot")
    encode = layer._encode

    def encode_centred(*args):
        found = encode(*args)
        return found - tf.reduce_mean(found, 0)

    layer._encode = encode_centred
    return layer


def _vectorized_texts(**given):
    return lambda: layers.TextVectorization(vocabulary=["a", "b"], **given)


def _of_others(texts):
    return tf.gather(texts, tf.range(tf.shape(texts)[0])[::-1])


def _split_others(texts):
    return tf.strings.split(_of_others(texts))


IN_TWOS = {"output_sequence_length": 2}


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (lambda: Centred(num_tokens=5, output_mode="one_hot"), IDS),
        (lambda: CentredWithin(num_tokens=5, output_mode="one_hot"), IDS),
        (_patched, IDS),
        (lambda: lambda x: Crossed(5)((x, x)), IDS),
        (_vectorized_texts(**IN_TWOS, standardize=_of_others), TEXTS),
        (_vectorized_texts(**IN_TWOS, split=_split_others), TEXTS),
    ],
)
def test_a_changed_layer_of_keras_is_refused(layer, x):
    refused = "mixes the samples|whether it keeps the samples separate"
    assert re.search(refused, _error(layer(), x))


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (Renamed, IDS),
        (lambda: lambda x: layers.HashedCrossing(5)((x, x)), IDS),
        (lambda: layers.CategoryEncoding(5, output_mode="one_hot"), IDS),
        (_vectorized_texts(**IN_TWOS), TEXTS),
        (_vectorized_texts(output_mode="multi_hot"), TEXTS),
    ],
)
def test_what_computes_as_keras_does_is_served(layer, x):
    assert not _error(layer(), x)


@pytest.mark.parametrize("mode", ["vectorized", "per_sample"])
def test_texts_as_long_as_the_longest_of_the_batch(mode):
    text = _error(_vectorized_texts()(), TEXTS, mode)
    assert "pads each text to the longest one of the batch" in text
    assert "output_sequence_length" in text


class NoisyBatchNormalization(layers.BatchNormalization):
    """Rolls the samples, too."""

    def call(self, inputs, training=None, mask=None):
        return tf.roll(super().call(inputs, training, mask), 1, 0)


def test_batch_normalisation_of_ones_own_is_not_taken_for_that_of_keras():
    microbatches = kpg.Accumulated(microbatch_size=6)
    assert _error(NoisyBatchNormalization(), mode=microbatches)
    assert not _error(layers.BatchNormalization(), mode=microbatches)


class OtherLoop(layers.LSTM):
    """Gives its states from the end."""

    def inner_loop(self, *args, **kwargs):
        return super().inner_loop(*args, **kwargs)


class OtherStart(layers.LSTM):
    def get_initial_state(self, batch_size):
        return [1.0 + s for s in super().get_initial_state(batch_size)]


class OtherUnits(layers.LSTM):
    @property
    def activation(self):
        return tf.sin


class OtherConfig(layers.LSTM):
    def get_config(self):
        return super().get_config()


def test_rules_serve_what_computes_by_their_methods():
    for other in (OtherLoop, OtherStart, OtherUnits):
        layer = object.__new__(other)
        assert own_method(layer, layers.LSTM) in vars(other)
    same = OtherConfig(3)
    assert own_method(same, layers.LSTM) is None
    assert find_rule(same).reason_against.__self__.layer_class is layers.LSTM
    assert is_exactly(same, layers.LSTM)
    same.inner_loop = same.inner_loop
    assert own_method(same, layers.LSTM) == "inner_loop"


HINGES = ["hinge", "squared_hinge", keras.losses.Hinge()]


def _hinge(loss, y):
    model = net(shape=(4,), units=1, seed=3)
    model = compiled(model, loss=loss, jit_compile=False)
    y = np.array(y, "float32")[:, None]
    return model, kpg.per_sample_gradients(model, X, y, verbose=0)


@pytest.mark.parametrize("loss", HINGES)
def test_targets_of_one_form_mean_the_same_in_every_batch(loss):
    y = [0, 1, 1, 0, 1, 1]
    _, found = _hinge(loss, y)
    model, same = _hinge(loss, [-1, 1, 1, -1, 1, 1])
    expected = oracle.batch_gradient(model, X, np.array(y, "float32")[:, None])
    assert_equal(found, same)
    means = [np.mean(part, 0) for part in found]
    assert_equal(means, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", HINGES)
def test_targets_of_two_forms_in_one_batch_are_refused(loss):
    with pytest.raises(tf.errors.InvalidArgumentError, match="hinge loss"):
        _hinge(loss, [0, 1, -1, 0, 1, 1])


def test_a_hinge_within_another_loss_is_not_private():
    def loss(y, y_pred):
        return 2 * keras.losses.hinge(y, y_pred)

    model = compiled(net(shape=(4,), units=1), loss=loss)
    with pytest.raises(ValueError, match="looks at the targets of all samples"):
        fit_privately((model, X, Y))


def test_missing_labels_by_boolean_mask_are_told_another_way():
    def loss(y, y_pred):
        there = tf.math.is_finite(y)
        return tf.reduce_mean((y[there] - y_pred[there]) ** 2)

    model = compiled(net(shape=(4,), units=1), loss=loss)
    with pytest.raises(ValueError, match=r"tf\.where\(mask.*sample_weight"):
        kpg.per_sample_gradients(model, X, Y, verbose=0)
