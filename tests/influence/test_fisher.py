"""`fisher` against loops over single samples, with labels of either kind."""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.influence.likelihoods import Likelihood
from keras_pergrad.keras_internals.models.parts import mask_of, set_mask
from keras_pergrad.uses import function_cache
from tests.functions.test_functional import MODELS, _batch

layers, losses = keras.layers, keras.losses
PEERS = pathlib.Path(__file__).parent / "fisher_of_peers.json"
LIMITS = {"rtol": 1e-10, "atol": 1e-12}


def _gaussian(labels, outputs):
    return tf.reduce_sum(tf.square(outputs - labels)) / 2


def _softmax(labels, outputs):
    chosen = tf.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
    return -tf.reduce_sum(chosen * tf.nn.log_softmax(outputs))


def _probabilities(labels, outputs):
    chosen = tf.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
    return -tf.reduce_sum(chosen * tf.math.log(outputs))


def _sigmoid(labels, outputs):
    labels = tf.cast(labels, outputs.dtype)
    return tf.reduce_sum(
        tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs)
    )


def _chances(labels, outputs):
    labels = tf.cast(labels, outputs.dtype)
    one, none = tf.math.log(outputs), tf.math.log(1 - outputs)
    return -tf.reduce_sum(labels * one + (1 - labels) * none)


def _loop(model, x, labels, negative_log):
    """Return the mean of squares of the gradients, sample by sample."""
    totals = [np.zeros(v.shape) for v in model.trainable_variables]
    for i in range(len(x)):
        with tf.GradientTape() as tape:
            value = negative_log(labels[i : i + 1], model(x[i : i + 1]))
        for total, g in zip(
            totals, tape.gradient(value, model.trainable_variables)
        ):
            total += np.square(tf.convert_to_tensor(g))
    return [total / len(x) for total in totals]


def _drawn(model, x, kind, from_logits, seed):
    """Return the labels that `fisher` draws for a single batch."""
    key = tf.constant([seed, 0], tf.int64)
    return Likelihood(kind, from_logits).draw(model(x), key)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_gaussian_of_unit_variance_by_a_loop(make):
    model = make()
    model.compile("sgd", "mse")
    x, y = _batch(model)
    found = kpg.influence.fisher(model, x, y, labels="data")
    assert found.likelihood == "gaussian"
    for part, right in zip(found.parts, _loop(model, x, y, _gaussian)):
        np.testing.assert_allclose(part, right, **LIMITS)


CASES = {
    "sparse logits": (
        losses.SparseCategoricalCrossentropy(from_logits=True),
        None,
        ("categorical", True),
        _softmax,
    ),
    "sparse": (
        "sparse_categorical_crossentropy",
        "softmax",
        ("categorical", False),
        _probabilities,
    ),
    "one-hot logits": (
        losses.CategoricalCrossentropy(from_logits=True),
        None,
        ("categorical", True),
        _softmax,
    ),
    "one-hot": (
        "categorical_crossentropy",
        "softmax",
        ("categorical", False),
        _probabilities,
    ),
    "binary logits": (
        losses.BinaryCrossentropy(from_logits=True),
        None,
        ("bernoulli", True),
        _sigmoid,
    ),
    "binary": (
        "binary_crossentropy",
        "sigmoid",
        ("bernoulli", False),
        _chances,
    ),
    "squares": ("mse", "tanh", ("gaussian", False), _gaussian),
}


def _two_layers(loss, activation):
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(7, 4),
            layers.Conv1D(5, 3, activation="tanh"),
            layers.Flatten(),
            layers.Dense(3, activation=activation),
        ]
    )
    model.compile("sgd", loss)
    x = np.random.default_rng(0).integers(0, 7, (5, 6))
    return model, x


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("case", CASES)
def test_labels_of_every_kind_by_a_loop(case):
    loss, activation, likelihood, negative_log = CASES[case]
    model, x = _two_layers(loss, activation)
    drawn = _drawn(model, x, *likelihood, seed=4)
    right = _loop(model, x, drawn, negative_log)
    found = kpg.influence.fisher(model, x, seed=4)
    assert found.likelihood == likelihood[0]
    assert found.labels == "sampled"
    assert found.samples == 5
    for part, expected in zip(found.parts, right):
        np.testing.assert_allclose(part, expected, **LIMITS)
    labels = drawn
    if case.startswith("one-hot"):
        labels = tf.one_hot(drawn, 3)
    of_data = kpg.influence.fisher(model, x, labels, labels="data")
    for part, expected in zip(of_data.parts, right):
        np.testing.assert_allclose(part, expected, **LIMITS)


def test_labels_follow_the_predictions():
    n = 20000
    for logits in (True, False):
        chances = np.array([0.1, 0.6, 0.3])
        outputs = np.log(chances) + 1 if logits else chances
        outputs = tf.constant(np.tile(outputs, (n, 1)))
        drawn = Likelihood("categorical", logits).draw(outputs, [1, 2])
        found = np.bincount(drawn, minlength=3) / n
        np.testing.assert_allclose(found, chances, atol=0.015)
        outputs = np.log(chances / (1 - chances)) if logits else chances
        outputs = tf.constant(np.tile(outputs, (n, 1)))
        drawn = Likelihood("bernoulli", logits).draw(outputs, [1, 2])
        np.testing.assert_allclose(np.mean(drawn, 0), chances, atol=0.015)
    drawn = Likelihood("gaussian").draw(tf.fill([n], 3.0), [1, 2])
    assert abs(np.mean(drawn) - 3) < 0.03
    assert abs(np.std(drawn) - 1) < 0.03


def test_a_chance_of_zero_is_never_drawn():
    outputs = tf.constant(np.tile([0.0, 1.0, 0.0], (1000, 1)))
    for seed in range(5):
        drawn = Likelihood("categorical").draw(outputs, [seed, 0])
        np.testing.assert_array_equal(drawn, 1)


def _expected(model, x):
    """Return Σ_c p_c g_c² by all classes, the mean over samples."""
    totals = 0
    chances = tf.nn.softmax(model(x)).numpy()
    for c in range(3):
        for i in range(len(x)):
            one = _loop(model, x[i : i + 1], tf.constant([c]), _softmax)
            totals = totals + chances[i, c] * np.concatenate(
                [g.ravel() for g in one]
            )
    return totals / len(x)


def test_the_mean_of_many_draws_is_that_over_all_labels():
    model, x = _two_layers(CASES["sparse logits"][0], None)
    found = kpg.influence.fisher(model, np.tile(x, (400, 1)))
    got = np.concatenate([part.ravel() for part in found.parts])
    right = _expected(model, x)
    assert np.linalg.norm(got - right) < 0.05 * np.linalg.norm(right)
    # Not the square of the mean, which is near zero.
    assert got.sum() > 0.5 * right.sum() > 0


def test_seeds_and_draws():
    model, x = _two_layers(CASES["sparse logits"][0], None)
    one, again, other = (
        kpg.influence.fisher(model, x, seed=s) for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.parts[0], again.parts[0])
    assert not np.array_equal(one.parts[0], other.parts[0])
    several = kpg.influence.fisher(model, x, draws=3)
    assert several.samples == 5
    assert not np.array_equal(one.parts[0], several.parts[0])
    functions = function_cache._TRACED[model].values()
    assert len(functions) == 1
    for function, _ in functions:
        assert function.experimental_get_tracing_count() == 1


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["diagonal", "kfac"])
def test_batches_and_weights_count_samples(kind):
    model, x = _two_layers("mse", None)
    y = np.random.default_rng(1).normal(size=(5, 3))
    how = {"kind": kind, "labels": "data", "verbose": 0}
    whole = kpg.influence.fisher(model, x, y, **how)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
    for found in (
        kpg.influence.fisher(model, x, y, batch_size=2, **how),
        kpg.influence.fisher(model, data, **how),
    ):
        _same(found, whole)
    times = np.array([2, 0, 1, 1, 3])
    weighted = kpg.influence.fisher(model, x, y, times, batch_size=3, **how)
    if kind == "diagonal":
        repeated = np.repeat(np.arange(5), times)
        _same(
            weighted,
            kpg.influence.fisher(model, x[repeated], y[repeated], **how),
        )


def _same(found, right):
    for one, other in zip(found.parts, right.parts, strict=True):
        for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other)):
            np.testing.assert_allclose(a, b, **LIMITS)


@pytest.mark.usefixtures("float64")
def test_kronecker_products():
    model, x = _two_layers("mse", None)
    y = np.random.default_rng(1).normal(size=(5, 3))
    found = kpg.influence.fisher(model, x, y, kind="kfac", labels="data")
    diagonal = kpg.influence.fisher(model, x, y, labels="data")
    assert [p.axes for p in found.parts] == [(0,), (0, 1), (), (0,), ()]
    # A bias has its exact block, of which this is the diagonal.
    for k in (2, 4):
        part = found.parts[k]
        np.testing.assert_allclose(part.inputs, [[1]])
        np.testing.assert_allclose(
            np.diag(part.outputs), diagonal.parts[k], **LIMITS
        )
    # The last kernel meets one position: means of a aᵀ and b bᵀ.
    before = keras.Model(model.inputs[0], model.layers[-2].output)
    a, b = before(x).numpy(), (model(x) - y).numpy()
    kernel = found.parts[3]
    np.testing.assert_allclose(kernel.inputs, a.T @ a / 5, **LIMITS)
    np.testing.assert_allclose(kernel.outputs, b.T @ b / 5, **LIMITS)
    # The table: how often rows are looked up, at 30 positions.
    counts = np.bincount(x.ravel(), minlength=7)
    np.testing.assert_allclose(found.parts[0].inputs, counts / 30, **LIMITS)


@pytest.mark.usefixtures("float64")
def test_quadratic_forms():
    model, x = _two_layers("mse", None)
    y = np.random.default_rng(1).normal(size=(5, 3))
    rng = np.random.default_rng(3)
    anchors = [v.numpy() for v in model.trainable_variables]
    moved = [a + rng.normal(size=a.shape) for a in anchors]
    for kind in ("diagonal", "kfac"):
        found = kpg.influence.fisher(model, x, y, kind=kind, labels="data")
        right = 0
        for part, w, a in zip(found.parts, moved, anchors):
            d = (w - a).ravel()
            if kind == "diagonal":
                right += (part.ravel() * d**2).sum() / 2
                continue
            left, other = (np.diag(s) if s.ndim == 1 else s for s in part[:2])
            # In these the left axes are the first.
            right += d @ np.kron(left, other) @ d / 2
        np.testing.assert_allclose(
            found.penalty(moved, anchors), right, **LIMITS
        )
        parts = found.regularizers(anchors, 2.0)
        total = sum(r(tf.constant(w)) for r, w in zip(parts, moved))
        np.testing.assert_allclose(total, 2 * right, **LIMITS)
        assert float(found.penalty(anchors, anchors)) == 0
    with pytest.raises(ValueError, match="Expected 5 differences"):
        found.quadratic(moved[:2])


def test_parts_are_found_by_path():
    model, x = _two_layers("mse", None)
    found = kpg.influence.fisher(model, x)
    for k, variable in enumerate(model.trainable_variables):
        assert found[variable.path] is found.parts[k] is found[k]
    assert len(found) == 5
    assert "5 variables, 5 samples" in repr(found)
    with pytest.raises(KeyError, match="Expected one of the paths"):
        found["nothing"]


@pytest.mark.usefixtures("float64")
def test_masked_positions_add_nothing():
    inputs = keras.Input((4,), dtype="int32")
    hidden = layers.Embedding(5, 3, mask_zero=True)(inputs)
    outputs = layers.Dense(3)(hidden)
    model = keras.Model(inputs, outputs)
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    x = np.array([[1, 2, 0, 0], [3, 1, 4, 2], [2, 0, 0, 0]])
    assert mask_of(model(x)) is not None
    key = tf.constant([0, 0], tf.int64)
    labels = Likelihood("categorical", True).draw(model(x), key)
    totals = [0] * 3
    for i in range(3):
        with tf.GradientTape() as tape:
            kept = model(x[i : i + 1])[0][: np.count_nonzero(x[i])]
            value = _softmax(labels[i][: kept.shape[0]], kept)
        for k, g in enumerate(tape.gradient(value, model.trainable_variables)):
            totals[k] += np.square(tf.convert_to_tensor(g)) / 3
    for part, right in zip(kpg.influence.fisher(model, x).parts, totals):
        np.testing.assert_allclose(part, right, **LIMITS)


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian"])
def test_a_mask_may_have_fewer_axes_than_positions(likelihood):
    likelihood = Likelihood(likelihood, likelihood != "gaussian")
    outputs = tf.random.stateless_normal([3, 3, 3, 2], [1, 2])
    labels = likelihood.draw(outputs, [3, 4])
    each = likelihood.position_losses(labels, outputs)
    mask = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 0]], bool)
    set_mask(outputs, tf.constant(mask))
    expected = np.sum(each * mask[:, :, None], (1, 2))
    found = likelihood.negative_log_likelihood(labels, outputs)
    np.testing.assert_allclose(found, expected, 1e-6)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("given", ["list", "dict"])
def test_several_outputs(given):
    inputs = keras.Input((4,))
    outputs = {
        "a": layers.Dense(3, name="a")(inputs),
        "b": layers.Dense(2, name="b")(inputs),
        "c": layers.Dense(1, name="c")(inputs),
    }
    loss = {"a": CASES["sparse logits"][0], "b": "mse", "c": None}
    if given == "list":
        outputs = list(outputs.values())
        loss = list(loss.values())
    else:
        del loss["c"]
    model = keras.Model(inputs, outputs)
    model.compile("sgd", loss)
    rng = np.random.default_rng(0)
    x, a, b = (
        rng.normal(size=(4, 4)),
        rng.integers(0, 3, 4),
        rng.normal(size=(4, 2)),
    )
    y = [a, b, None] if given == "list" else {"a": a, "b": b}

    def negative_log(labels, predicted):
        if given == "dict":
            predicted = [predicted[k] for k in "ab"]
        i = int(labels[0])
        first = _softmax(a[i : i + 1], predicted[0])
        return first + _gaussian(b[i : i + 1], predicted[1])

    totals = [0] * 4
    for i in range(4):
        with tf.GradientTape() as tape:
            value = negative_log([i], model(x[i : i + 1]))
        watched = model.trainable_variables[:4]
        for k, g in enumerate(tape.gradient(value, watched)):
            totals[k] = totals[k] + np.square(g) / 4
    sampled = kpg.influence.fisher(model, x)
    assert sampled.likelihood == "categorical and gaussian"
    assert [p is None for p in sampled.parts] == [False] * 4 + [True] * 2
    if given == "dict":
        found = kpg.influence.fisher(model, x, y, labels="data")
        for part, right in zip(found.parts, totals):
            np.testing.assert_allclose(part, right, **LIMITS)


class Penalised(layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.mean(keras.ops.square(inputs)))
        return inputs


class OwnLoss(keras.Model):
    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        return keras.ops.mean(keras.ops.square(y - y_pred))


def _unknown(name):
    inputs = keras.Input((3,))
    outputs = layers.Dense(2)(inputs)
    if name == "add_loss":
        outputs = Penalised()(outputs)
    if name == "compute_loss":
        model = OwnLoss(inputs, outputs)
        model.compile("sgd")
        return model
    model = keras.Model(inputs, outputs)
    smooth = losses.CategoricalCrossentropy(True, label_smoothing=0.1)
    loss = {"mae": "mae", "smooth": smooth}.get(name, "mse")
    weights = [0.5] if name == "weights" else None
    model.compile("sgd", loss, loss_weights=weights)
    return model


UNKNOWN = {
    "mae": "mean_absolute_error",
    "smooth": "label_smoothing=0.1",
    "weights": "loss_weights",
    "add_loss": "terms of add_loss",
    "compute_loss": "a compute_loss of its own",
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_loss_without_a_known_distribution(name):
    model = _unknown(name)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3)), rng.normal(size=(4, 2))
    with pytest.raises(ValueError, match='Use labels="data"') as error:
        kpg.influence.fisher(model, x)
    assert UNKNOWN[name] in str(error.value)
    found = kpg.influence.fisher(model, x, y, labels="data")
    assert found.likelihood == "loss"
    gradients = kpg.per_sample_gradients(model, x, y)
    for part, g in zip(found.parts, gradients):
        np.testing.assert_allclose(part, np.square(g).mean(0), **LIMITS)
    with pytest.raises(ValueError, match="Leave the weights out"):
        kpg.influence.fisher(model, x, y, np.ones(4), labels="data")


def test_what_is_refused():
    model, x = _two_layers("mse", None)
    y = np.ones((5, 3), "float32")
    for arguments, said in (
        ({"kind": "full"}, "`kind` must be one of"),
        ({"labels": "true"}, "`labels` must be one of"),
        ({"labels": "data"}, "Expected `y`"),
        ({"draws": 0}, "`draws` must be a positive integer"),
        ({"seed": None}, "`seed` must be an integer"),
        ({"sample_weight": np.ones((5, 2))}, "one number for each sample"),
        ({"sample_weight": -np.ones(5)}, "not negative"),
    ):
        with pytest.raises(ValueError, match=said):
            kpg.influence.fisher(model, x, **arguments)
    y[3] = np.inf
    with pytest.raises(ValueError, match="batch of samples 2 to 3"):
        kpg.influence.fisher(
            model, x, y, labels="data", batch_size=2, verbose=0
        )
    with pytest.raises(ValueError, match="is not compiled"):
        kpg.influence.fisher(keras.Sequential([layers.Dense(1)]), x)


def test_the_model_stays_as_it_is():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            layers.Dense(4),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(2),
        ]
    )
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
    first = kpg.influence.fisher(model, x)  # not built before
    weights = [np.array(w) for w in model.get_weights()]
    again = kpg.influence.fisher(model, x)
    np.testing.assert_array_equal(first.parts[0], again.parts[0])
    for one, other in zip(weights, model.get_weights()):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="training=False"):
        kpg.influence.fisher(model, x, training=True)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_is_widened(policy):
    loss, y = CASES["sparse logits"][0], np.array([0, 1, 2, 0, 1])
    model, x = _two_layers(loss, None)
    right = kpg.influence.fisher(model, x, y, labels="data")
    keras.config.set_dtype_policy(policy)
    try:
        half, _ = _two_layers(loss, None)
    finally:
        keras.config.set_dtype_policy("float32")
    half.set_weights(model.get_weights())
    found = kpg.influence.fisher(half, x, y, labels="data")
    for part, expected in zip(found.parts, right.parts):
        assert part.dtype == np.float32
        limit = 0.1 * np.abs(expected).max()
        np.testing.assert_allclose(part, expected, rtol=0, atol=limit)


def _ewc_task(model, x, y, steps):
    for _ in range(steps):
        model.train_on_batch(x, y)
    return float(model.evaluate(x, y, verbose=0))


def test_a_penalty_keeps_what_was_learned():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    first = (x[:, :1] > 0).astype("int32")
    x_b = x * [1, 0, 1, 1] + [0, 2, 0, 0]
    left = {}
    for strength in (0.0, 50.0):
        keras.utils.set_random_seed(0)
        net = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
        loss = losses.SparseCategoricalCrossentropy(from_logits=True)
        model = kpg.PerGradModel(net.inputs[0], net.outputs[0])
        model.compile(
            keras.optimizers.SGD(0.3), loss, gradient_mode="vectorized"
        )
        _ewc_task(model, x, first, 30)
        found = kpg.influence.fisher(model, x)
        anchors = [v.numpy() for v in model.trainable_variables]
        for v, one in zip(
            model.trainable_variables, found.regularizers(anchors, strength)
        ):
            v.regularizer = one
        model.compile(
            keras.optimizers.SGD(0.01), loss, gradient_mode="vectorized"
        )
        _ewc_task(model, x_b, 1 - first, 60)
        left[strength] = float(loss(first, model(x)))
    assert left[50.0] < left[0.0]


@pytest.mark.parametrize("case", sorted(json.loads(PEERS.read_text())["cases"]))
def test_agrees_with_the_peers(case):
    """BackPACK and curvlinops, recorded by make_fisher_of_peers.py."""
    recorded = json.loads(PEERS.read_text())
    one = recorded["cases"][case]
    model = PEER_MODELS[case]()
    model.set_weights([np.array(w, "float32") for w in one["weights"]])
    x, y = np.array(one["x"], "float32"), np.array(one["y"])
    found = kpg.influence.fisher(model, x, y, labels="data")
    for name in recorded["peers"]:
        for part, right in zip(found.parts, one[name]):
            right = np.array(right)
            limit = 1e-5 * np.abs(right).max()
            np.testing.assert_allclose(part, right, rtol=1e-5, atol=limit)


def _peer_dense():
    model = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(4, activation="sigmoid"),
            layers.Dense(3),
        ]
    )
    model.compile("sgd", CASES["sparse logits"][0])
    return model


def _peer_conv():
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(3, 3, activation="sigmoid"),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )
    model.compile("sgd", CASES["sparse logits"][0])
    return model


PEER_MODELS = {"dense": _peer_dense, "convolution": _peer_conv}


@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    "kind", [losses.BinaryCrossentropy, losses.CategoricalCrossentropy]
)
@pytest.mark.filterwarnings("ignore:.*received `from_logits=True`")
def test_the_likelihood_is_that_of_the_compiled_loss(
    float64, kind, activation, from_logits
):
    # Keras takes the logits behind any activation, whatever the loss says.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, 4))
    inputs = keras.Input((4,))
    logits = layers.Dense(2)(inputs)
    function = keras.activations.get(activation)
    model = keras.Model(inputs, layers.Activation(function)(logits))
    model.compile("sgd", kind(from_logits=from_logits))
    # The Hessian by the logits of Keras's own loss, of any labels.
    held = keras.Model(inputs, logits)(x)
    loss = model.loss
    labels = tf.one_hot(rng.integers(0, 2, 10), 2, dtype="float64")
    with tf.GradientTape() as outer:
        outer.watch(held)
        with tf.GradientTape() as inner:
            inner.watch(held)
            value = loss(labels, function(held)) * 10
            if kind is losses.BinaryCrossentropy:
                value *= 2  # a sum over both, no mean
        slopes = inner.gradient(value, held)
    curved = np.array(outer.batch_jacobian(slopes, held))
    rows = np.concatenate([x, np.ones((10, 1))], 1)
    total = np.mean(np.square(rows).sum(1) * np.trace(curved, 0, 1, 2))
    found = kpg.influence.fisher(model, np.tile(x, (300, 1)), verbose=0)
    trace = sum(part.sum() for part in found.parts)
    np.testing.assert_allclose(trace, total, 0.1)


def test_an_axis_of_classes_that_is_not_the_last_is_refused():
    inputs = keras.Input((3, 2))
    model = keras.Model(inputs, layers.Dense(2)(inputs))
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, axis=1)
    model.compile("sgd", loss)
    with pytest.raises(ValueError, match="axis=1"):
        kpg.influence.fisher(model, np.ones((4, 3, 2)), verbose=0)
