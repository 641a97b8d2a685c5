"""Several augmented views of an example count as one sample."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.keras_internals.data.views import Views
from keras_pergrad.keras_internals.models.building import build_all
from keras_pergrad.modes import one_step
from tests import oracle
from tests.privacy import tiny
from tests.privacy.tiny import VIEWS, X, Y, fit, fitted, flat, model, private

layers = keras.layers
K = VIEWS["augmentations"]


def with_views(**arguments):
    return private(**{**VIEWS, **arguments})


class MeanOfViews(layers.Layer):
    """Adds the mean over the views of a sample to each of them."""

    def call(self, x):
        split = keras.ops.reshape(x, (-1, K, x.shape[-1]))
        mean = keras.ops.mean(split, 1, keepdims=True)
        return keras.ops.reshape(split + mean, (-1, x.shape[-1]))


def two_of_each():
    """A model of two inputs and two outputs, and its data with views."""
    image, number = keras.Input((5, 5, 2)), keras.Input((3,))
    hidden = layers.Conv2D(3, 3, activation="tanh")(image)
    hidden = layers.LayerNormalization()(hidden)
    joined = layers.Concatenate()([layers.Flatten()(hidden), number])
    joined = MeanOfViews()(layers.Dense(4, activation="tanh")(joined))
    outputs = [layers.Dense(2)(joined), layers.Dense(1)(joined)]
    net = kpg.PerGradModel([image, number], outputs)
    rng = np.random.default_rng(2)
    n = 5
    x = rng.normal(size=(n, K, 5, 5, 2)), rng.normal(size=(n, K, 3))
    y = rng.normal(size=(n, 2)), rng.normal(size=(n, 1))
    return net, tf.nest.map_structure(tf.constant, (x, y, rng.uniform(1, 2, n)))


def single_gradients(net, x, y, *, sample_weight):
    """For each sample the gradient of the mean of its views' losses."""
    gradients = []
    for i in range(len(sample_weight)):
        with tf.GradientTape() as tape:
            first, second = net([part[i] for part in x], training=True)
            losses = tf.reduce_mean((first - y[0][i]) ** 2, 1)
            losses += 0.5 * tf.reduce_mean((second - y[1][i]) ** 2, 1)
            loss = sample_weight[i] * tf.reduce_mean(losses)
        gradients.append(tape.gradient(loss, net.trainable_variables))
    return [np.stack(column) for column in zip(*gradients)]


@pytest.mark.parametrize("method", [kpg.Vectorized, kpg.PerSample])
def test_gradients_and_norms(float64, method):
    net, (x, y, sample_weight) = two_of_each()
    gradients = single_gradients(net, x, y, sample_weight=sample_weight)
    squares = sum(np.sum(g.reshape(len(g), -1) ** 2, 1) for g in gradients)
    clip_norm = float(np.median(np.sqrt(squares)))
    factors = np.minimum(1, clip_norm / np.sqrt(squares))
    expected = [np.tensordot(factors, g, 1) / len(g) for g in gradients]
    inner = method(kpg.ClippedMean(clip_norm))
    batch = Views(x), y, sample_weight

    def compile_with(mode):
        net.compile(
            "sgd", ["mse", "mse"], loss_weights=[1.0, 0.5], gradient_mode=mode
        )
        build_all(net, ([t[:, 0] for t in x], y, sample_weight))

    @tf.function(autograph=False)
    def whole(*batch):
        step, norms = one_step.step_of_whole_batch(inner, net, batch)
        return step.gradients, step.loss, norms

    compile_with(inner)
    found, loss, norms = whole(*batch)
    np.testing.assert_allclose(norms, np.sqrt(squares), rtol=1e-10)
    oracle.assert_agree(found, expected)
    in_parts = kpg.Accumulated(microbatch_size=2, inner=inner)
    compile_with(in_parts)
    step = in_parts.step(net, *batch)
    oracle.assert_agree(step.gradients, expected)
    np.testing.assert_allclose(step.loss, loss, rtol=1e-10)


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ({"augmentations": None, "augment": None}, {}),
        ({}, {}),
        ({"method": "per_sample"}, {"run_eagerly": True}),
        ({"microbatch_size": 3}, {"jit_compile": True}),
    ],
    ids=["without views", "graph", "eager", "compiled"],
)
def test_fit_makes_the_steps_of_a_loop(arguments, settings):
    """The sum of what is clipped is divided by the expected size."""
    training = with_views(noise_multiplier=1e-3, clip_norm=0.1, **arguments)
    sgd = keras.optimizers.SGD(1.0)
    net = model(training, sgd, metrics=["accuracy"], **settings)
    plain = model(training)
    data = training.batches(X, Y)
    history = fit(net, training, data=data)
    hits = []
    for step in range(4):
        x, y = data.batch(net.aggregation_state, step)
        views = x.tensors if isinstance(x, Views) else np.asarray(x)[:, None]
        total = [np.zeros(w.shape) for w in plain.get_weights()]
        for one, target in zip(views, np.asarray(y)):
            targets = np.repeat(target[None], len(one), 0)
            gradients = oracle.batch_gradient(plain, one, targets)
            factor = min(1, 0.1 / float(tf.linalg.global_norm(gradients)))
            total = [t + factor * g for t, g in zip(total, gradients)]
            hits.append((np.asarray(plain(one)) > 0.5) == target)
        after = [w - t / 10 for w, t in zip(plain.get_weights(), total)]
        plain.set_weights(after)
    np.testing.assert_allclose(flat(net), flat(plain), atol=2e-4)
    # Metrics see every view.
    assert history["accuracy"][0] == pytest.approx(np.mean(hits))


@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_a_model_that_draws_is_trained_on_views(method):
    training = with_views(noise_multiplier=1e-3, method=method)
    net = model(training, parts=[*tiny.adding(), layers.Dropout(0.5, seed=1)])
    assert fit(net, training)["nonfinite_samples"] == [0.0]


@pytest.mark.parametrize("size", [None, 1])
def test_losses_that_are_added_are_those_of_the_views(size):
    """Both methods train the same."""
    found = []
    for method in ("vectorized", "per_sample"):
        training = with_views(
            noise_multiplier=1e-3, method=method, microbatch_size=size
        )
        net = model(training, parts=tiny.adding)
        assert fit(net, training)["nonfinite_samples"] == [0.0]
        found.append(flat(net))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def test_views_follow_from_the_example_and_the_seed():
    """Also of a layer that draws one crop for all that it is called with."""
    crop = keras.Sequential([layers.RandomCrop(4, 4), layers.RandomFlip()])
    x = np.arange(40 * 64, dtype="float32").reshape(40, 8, 8, 1)
    data = with_views(augment=crop).batches(x)
    (views,) = data.take(np.array([2, 7, 30]), (1, 2))
    found = np.asarray(views.tensors)
    assert found.shape == (3, K, 4, 4, 1)
    (alone,) = data.take(np.array([7]), (1, 2))
    np.testing.assert_array_equal(np.asarray(alone.tensors)[0], found[1])
    assert all(np.isin(a, b).all() for a, b in zip(found, x[[2, 7, 30]]))
    relative = found - x[[2, 7, 30], :1, :1][:, None]
    corners = relative.reshape(9, -1)
    assert len(np.unique(corners, axis=0)) > 5
    (others,) = data.take(np.array([7]), (1, 3))
    assert not np.array_equal(others.tensors, alone.tensors)


def test_each_update_has_views_of_its_own():
    training = with_views(sampling="fixed", batch_size=tiny.N)
    data = training.batches(X, Y)
    ledger = model(training).aggregation_state
    first, again, second = (
        np.asarray(data.batch(ledger, step)[0].tensors) for step in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    drawn = np.stack([first, second]) - X[None, :, None]
    assert len(np.unique(drawn.round(5))) > 0.99 * drawn.size


class Neighbour(layers.Layer):
    """Adds the row before, which may be of another example."""

    def call(self, x):
        return x + keras.ops.roll(x, 1, 0)


def test_a_layer_may_mix_views_and_not_examples():
    training = with_views()
    net = fitted(training, parts=[layers.Dense(3), MeanOfViews()])
    assert "proved for all" in training.statement(net)["proof"]
    net = model(training, parts=[layers.Dense(3), Neighbour(name="mixing")])
    with tiny.refused(net, r"'mixing' \(Neighbour\) mixes"):
        fit(net, training)


def test_one_view_that_is_the_example_changes_nothing():
    one = with_views(augmentations=1, augment=lambda x: x)
    found = [flat(fitted(training, epochs=2)) for training in (private(), one)]
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_the_statement_counts_the_views():
    plans = private(steps=4), with_views(steps=4)
    statements = [plan.statement() for plan in plans]
    assert statements[0]["epsilon"] == statements[1]["epsilon"]
    said = "each the mean over 3 augmented views of its example"
    assert said in tiny.words(statements[1])
    assert said in str(plans[1])
    assert "views" not in str(statements[0])


def in_numpy(x):
    return tf.ensure_shape(tf.numpy_function(np.sin, [x], x.dtype), x.shape)


@pytest.mark.parametrize(
    ("augment", "expected"),
    [
        (lambda x: keras.ops.repeat(x, 2, 0), r"Received: the shape \(2, 3\)"),
        (lambda x: keras.ops.mean(x), r"Received: the shape \(\)"),
        (lambda x: x + tf.random.normal((3,)), "RandomStandardNormal, which"),
        (in_numpy, "PyFunc, which may keep"),
        (tiny.InWeight(tiny.count), "AssignVariableOp, which may keep"),
        (lambda x: (x + tf.constant(X)[:1]) / 2, r"\(40, 3\), the shape of"),
    ],
)
def test_an_augment_that_is_no_function_of_an_example_is_refused(
    augment, expected
):
    with pytest.raises(ValueError, match=expected):
        with_views(augment=augment).batches(X, Y)


def test_an_augment_that_was_adapted_is_refused_unless_public():
    adapted = layers.Normalization(name="adapted")
    adapted.adapt(X)
    for augment in (adapted, keras.Sequential([layers.Rescaling(2), adapted])):
        training = with_views(augment=augment)
        net = model(training)
        with tiny.refused(net, "'adapted' .Normalization. was adapted to"):
            fit(net, training)
    fitted(with_views(augment=adapted, public_layers=["adapted"]))
