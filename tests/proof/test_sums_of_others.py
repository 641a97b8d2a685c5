"""Sums over others' masks, targets or number: one factor of a loss, or refused.

A loss may be divided by a sum over all masks that is the same for all of its
terms. Samples that such sums weigh unequally, and outputs that follow them,
are refused in every mode.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg

pytestmark = pytest.mark.usefixtures("float64")
_rng = np.random.default_rng(0)
X = _rng.normal(size=(6, 4))
Y = (_rng.uniform(size=(6, 3)) > 0.4).astype("float64")
SOUND, REFUSED = {}, {}


def _case(cases):
    def add(function):
        cases[function.__name__] = function
        return function

    return add


def _squares(y, p):
    return tf.square(p - y)


def _mask(y):
    return tf.cast(y > 0.5, "float64")


def _masked(y, p, count):
    return tf.reduce_sum(_squares(y, p) * _mask(y)) / count


def _sides(y, p):
    """Return each class's losses and how many entries it has."""
    mask = _mask(y)
    return (
        (mask * _squares(y, p), tf.reduce_sum(mask)),
        ((1 - mask) * _squares(y, p), tf.reduce_sum(1 - mask)),
    )


@_case(SOUND)
def masked_mean(y, p):
    return _masked(y, p, tf.reduce_sum(_mask(y)))


@_case(SOUND)
def equal_sums_of_two_terms(y, p):
    other = tf.reduce_sum(tf.abs(p - y)) / tf.reduce_sum(_mask(y))
    return _masked(y, p, tf.reduce_sum(_mask(y))) + other


@_case(SOUND)
def none_is_zero(y, p):
    count = tf.reduce_sum(_mask(y))
    return tf.where(count > 0, _masked(y, p, count), 0.0)


@_case(SOUND)
def at_least_one(y, p):
    return _masked(y, p, tf.maximum(tf.reduce_sum(_mask(y)), 1.0))


@_case(SOUND)
def normalised_weights(y, p):
    weights = _mask(y) / tf.reduce_sum(_mask(y))
    return tf.reduce_sum(weights * _squares(y, p))


@_case(SOUND)
def product_of_weights_and_losses(y, p):
    weights = _mask(y)[:, 0] / tf.reduce_sum(_mask(y)[:, 0])
    return tf.tensordot(weights, tf.reduce_mean(_squares(y, p), -1), 1)


@_case(SOUND)
@tf.function
def within_a_function(y, p):
    return equal_sums_of_two_terms(y, p)


@_case(SOUND)
def counts_of_ones_own(y, p):
    count = tf.reduce_sum(_mask(y), -1) + 1.0
    return tf.reduce_sum(_squares(y, p) * _mask(y), -1) / count


@_case(REFUSED)
def balanced_classes(y, p):
    (a, n), (b, m) = _sides(y, p)
    return a / n + b / m


@_case(REFUSED)
def balanced_sums(y, p):
    (a, n), (b, m) = _sides(y, p)
    return tf.reduce_sum(a) / n + tf.reduce_sum(b) / m


@_case(REFUSED)
@tf.function
def balanced_within_a_function(y, p):
    return balanced_sums(y, p)


@_case(REFUSED)
def balanced_by_what_is_left(y, p):
    (a, n), (b, _) = _sides(y, p)
    return a / n + b / (tf.cast(tf.size(y), n.dtype) - n)


@_case(REFUSED)
def balanced_by_a_choice(y, p):
    (_, n), (_, m) = _sides(y, p)
    return tf.where(y > 0.5, _squares(y, p) / n, _squares(y, p) / m)


@_case(REFUSED)
def balanced_in_a_list(y, p):
    (a, n), (b, m) = _sides(y, p)
    return tf.reduce_sum(tf.stack([tf.reduce_sum(a) / n, tf.reduce_sum(b) / m]))


@_case(REFUSED)
def balanced_by_a_vector(y, p):
    (a, n), (b, m) = _sides(y, p)
    return tf.stack([a, b], -1) / tf.stack([n, m])


@_case(REFUSED)
def beside_a_plain_mean(y, p):
    mean = tf.reduce_mean(tf.abs(p - y))
    return masked_mean(y, p) + mean


@_case(REFUSED)
def inside_of_a_curve(y, p):
    return tf.tanh(_squares(y, p) / tf.reduce_sum(_mask(y)))


@_case(REFUSED)
def cut_off(y, p):
    return tf.minimum(_squares(y, p) / tf.reduce_sum(_mask(y)), 0.1)


@_case(REFUSED)
def another_loss_by_count(y, p):
    losses = tf.reduce_sum(_squares(y, p)), tf.reduce_sum(tf.abs(p - y))
    return tf.where(tf.reduce_sum(_mask(y)) > 9.0, *losses)


@_case(REFUSED)
def weights_plus_one(y, p):
    return tf.abs(p - y) * (_mask(y) / tf.reduce_sum(_mask(y)) + 1.0)


@_case(REFUSED)
def all_targets_of_a_kind(y, p):
    alike = tf.reduce_all(y > 0.5)
    return tf.where(alike, _squares(y, p), tf.abs(p - y))


def _model():
    keras.utils.set_random_seed(2)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(4, "tanh")(inputs)
    return keras.Model(inputs, keras.layers.Dense(3)(hidden))


def _expected(model):
    """Each sample's part, with the outputs of the others held."""
    held, parts = tf.stop_gradient(model(X)), []
    for k in range(len(X)):
        with tf.GradientTape() as tape:
            one = model(X[k : k + 1])
            p = tf.concat([held[:k], one, held[k + 1 :]], 0)
            loss = model._compile_loss(tf.constant(Y), p)
        gradients = tape.gradient(loss, model.trainable_variables)
        parts.append([len(X) * g for g in gradients])
    return [np.stack(part) for part in zip(*parts)]


@pytest.mark.parametrize("name", SOUND)
def test_one_sum_for_all_terms_is_exact(name):
    model = _model()
    model.compile("sgd", SOUND[name])
    found = kpg.per_sample_gradients(model, X, Y, verbose=0)
    for a, b in zip(found, _expected(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", REFUSED)
def test_other_sums_are_refused(name):
    model = _model()
    model.compile("sgd", REFUSED[name])
    with pytest.raises(ValueError, match=r"(mixes|compares) the samples"):
        kpg.per_sample_gradients(model, X, Y, verbose=0)


class Counted(keras.layers.Layer):
    """Uses how many entries of its second input are positive, in all."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def call(self, h, ids):
        mask = tf.cast(ids > 0, h.dtype)
        count, squares = tf.reduce_sum(mask), tf.reduce_sum(h**2, -1)
        if self.how == "curve":
            return tf.tanh(h / count)
        if self.how == "factor":
            return h * (1.0 / count)
        self.add_loss(tf.reduce_sum(squares * mask) / count)
        if self.how == "two losses":
            self.add_loss(tf.reduce_mean(squares))
        return h


def _counted(how):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,), dtype="int64")
    embedded = keras.layers.Embedding(4, 3, mask_zero=True)(inputs)
    counted = Counted(how)
    counted.supports_masking = True
    first = keras.layers.Dense(2, name="first")(embedded)
    second = keras.layers.Dense(1, use_bias=False, name="second")(
        keras.layers.GlobalAveragePooling1D()(counted(embedded, inputs))
    )
    return kpg.PerGradModel(inputs, [first, second])


IDS = _rng.integers(0, 4, (6, 5))
TARGETS = [_rng.normal(size=(6, 5, 2)), _rng.normal(size=(6, 1))]
WEIGHTS = [_rng.uniform(size=(6, 5)), _rng.uniform(size=6)]


@pytest.mark.parametrize("how", ["one loss", "two losses"])
@pytest.mark.parametrize(
    "reduction", ["sum_over_batch_size", "mean_with_sample_weight"]
)
def test_each_loss_has_a_sum_of_its_own(how, reduction):
    model = _counted(how)
    loss = keras.losses.MeanSquaredError(reduction)
    model.compile("sgd", [loss, loss], loss_weights=[0.3, 2.0])
    found = kpg.per_sample_gradients(
        model, IDS, TARGETS, sample_weight=WEIGHTS, verbose=0
    )
    y, weights = tf.nest.map_structure(tf.constant, (TARGETS, WEIGHTS))
    with tf.GradientTape() as tape:
        y_pred = model(IDS, training=True)
        loss = model.compute_loss(tf.constant(IDS), y, y_pred, weights)
    expected = tape.gradient(loss, model.trainable_variables)
    for a, b in zip(found, expected, strict=True):
        mean, b = np.mean(a, 0), tf.convert_to_tensor(b)
        np.testing.assert_allclose(mean, b, rtol=1e-10, atol=1e-12)


MODES = {
    "vectorized": lambda: "vectorized",
    "per_sample": lambda: "per_sample",
    "accumulated": lambda: kpg.Accumulated(microbatch_size=2),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["curve", "factor", "loss"])
def test_every_mode_refuses(mode, how):
    model, x, y = _counted(how), IDS, TARGETS
    loss = ["mse", lambda y, p: y * p]
    if how == "loss":
        model, x, y = kpg.PerGradModel.from_model(_model()), X, Y
        loss = balanced_classes
    model.compile("sgd", loss, gradient_mode=MODES[mode]())
    before = model.get_weights()
    with pytest.raises(ValueError, match="mixes the samples"):
        model.fit(x, y, batch_size=6, verbose=0)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def _by_softmax(x):
    return x * tf.nn.softmax(tf.zeros_like(x[:, :1]), axis=0)


def _by_unique(x):
    counts = tf.unique_with_counts(tf.zeros_like(x[:, 0]))[2]
    return x * tf.cast(counts[0], x.dtype)


def _by_norm(x):
    return tf.nn.l2_normalize(tf.ones_like(x[:, :1]), 0) * x


def _by_variance(x):
    return x * tf.math.cumulative_logsumexp(tf.zeros_like(x), 0)


def _by_product(x):
    ones = tf.ones_like(x)
    return x * tf.matmul(ones, ones, transpose_a=True)[:1]


def _first_one(x):
    others = tf.ones([tf.shape(x)[0] - 1, 1], x.dtype)
    return x * tf.concat([[[2.0]], others], 0)


def _of_ones_own(x):
    places = tf.cumsum(tf.ones_like(x), 1)
    return x * tf.nn.softmax(places, 1) * tf.reduce_sum(places, 1)[:, None]


def _refusal(function):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    hidden = keras.layers.Lambda(function)(keras.layers.Dense(4)(inputs))
    model = kpg.PerGradModel(inputs, keras.layers.Dense(3)(hidden))
    private = kpg.PrivateTraining(
        noise_multiplier=1.0,
        delta=1e-4,
        samples=6,
        batch_size=6,
        steps=1,
        user_ids="unique",
    )
    model.compile("sgd", "mse", gradient_mode=private.gradient_mode)
    batches = private.batches(X, Y)
    try:
        model.fit(batches, verbose=0, callbacks=[private.callback])
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "function",
    [_by_softmax, _by_unique, _by_norm, _by_variance, _by_product, _first_one],
)
def test_numbers_that_follow_the_batch_size_are_not_private(function):
    assert "depend on the number of samples" in _refusal(function)


def test_numbers_of_ones_own_are_private():
    assert not _refusal(_of_ones_own)
