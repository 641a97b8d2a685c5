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
from tests.influence.making import assert_near
from tests.influence.test_refusals import Added
from tests.models.making import (
    assert_equal,
    compiled,
    integers,
    net,
    normal,
    trained,
    weights,
)
from tests.multitask.task_networks import OwnLoss

layers, losses = keras.layers, keras.losses
fisher = kpg.influence.fisher
PEERS = pathlib.Path(__file__).parent / "fisher_of_peers.json"
LIMITS = {"rtol": 1e-10, "atol": 1e-12}


def _gaussian(labels, outputs):
    return tf.reduce_sum(tf.square(outputs - labels)) / 2


def _softmax(labels, outputs):
    chosen = tf.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
    return -tf.reduce_sum(chosen * tf.nn.log_softmax(outputs))


def _probabilities(labels, outputs):
    return _softmax(labels, tf.math.log(outputs))


def _sigmoid(labels, outputs):
    labels = tf.cast(labels, outputs.dtype)
    each = tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs)
    return tf.reduce_sum(each)


def _chances(labels, outputs):
    return _sigmoid(labels, tf.math.log(outputs / (1 - outputs)))


def _mean_squares(model, n, negative_log):
    """The mean of squared gradients of `negative_log(i)`, of `n` samples."""
    totals = [np.zeros(v.shape) for v in model.trainable_variables]
    for i in range(n):
        with tf.GradientTape() as tape:
            value = negative_log(i)
        gradients = tape.gradient(value, model.trainable_variables)
        for total, g in zip(totals, gradients):
            if g is not None:
                total += np.square(tf.convert_to_tensor(g)) / n
    return totals


def _loop(model, x, labels, *, negative_log):
    def of_sample(i):
        return negative_log(labels[i : i + 1], model(x[i : i + 1]))

    return _mean_squares(model, len(x), of_sample)


def _assert_close(found, right):
    for one, other in zip(found, right, strict=True):
        for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other)):
            np.testing.assert_allclose(a, b, **LIMITS)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_gaussian_of_unit_variance_by_a_loop(float64, make):
    model = compiled(make())
    x, y = _batch(model)
    found = fisher(model, x, y, labels="data")
    assert found.likelihood == "gaussian"
    _assert_close(found.parts, _loop(model, x, y, negative_log=_gaussian))


SPARSE = losses.SparseCategoricalCrossentropy(from_logits=True)
#: Name → loss, activation before it, −log p of a sample.
CASES = {
    "sparse logits": (SPARSE, None, _softmax),
    "sparse": ("sparse_categorical_crossentropy", "softmax", _probabilities),
    "one-hot logits": (losses.CategoricalCrossentropy(True), None, _softmax),
    "one-hot": ("categorical_crossentropy", "softmax", _probabilities),
    "binary logits": (losses.BinaryCrossentropy(True), None, _sigmoid),
    "binary": ("binary_crossentropy", "sigmoid", _chances),
    "squares": ("mse", "tanh", _gaussian),
}
KINDS = {
    _softmax: "categorical",
    _probabilities: "categorical",
    _sigmoid: "bernoulli",
    _chances: "bernoulli",
    _gaussian: "gaussian",
}


def _two_layers(loss="mse", activation=None):
    """Return a model, ids and numbers as targets."""
    model = net(
        layers.Embedding(7, 4),
        layers.Conv1D(5, 3, activation="tanh"),
        layers.Flatten(),
        layers.Dense(3, activation=activation),
        shape=(6,),
        dtype="int32",
        units=None,
    )
    return compiled(model, loss=loss), integers(7, 5, 6), normal(5, 3)


@pytest.mark.parametrize("case", CASES)
def test_labels_of_every_kind_by_a_loop(float64, case):
    loss, activation, negative_log = CASES[case]
    kind = KINDS[negative_log]
    model, x, _ = _two_layers(loss, activation)
    key = tf.constant([4, 0], tf.int64)
    drawn = Likelihood(kind, activation is None).draw(model(x), key)
    right = _loop(model, x, drawn, negative_log=negative_log)
    found = fisher(model, x, seed=4)
    described = found.likelihood, found.labels, found.samples
    assert described == (kind, "sampled", 5)
    _assert_close(found.parts, right)
    labels = tf.one_hot(drawn, 3) if case.startswith("one-hot") else drawn
    _assert_close(fisher(model, x, labels, labels="data").parts, right)


@pytest.mark.parametrize("logits", [True, False])
def test_labels_follow_the_predictions(logits):
    def drawn(kind, outputs):
        outputs = tf.constant(np.tile(outputs, (20000, 1)))
        return np.array(Likelihood(kind, logits).draw(outputs, [1, 2]))

    # A chance of zero is never drawn.
    chances = np.array([0.1, 0.6, 0.3] if logits else [0.4, 0.0, 0.6])
    outputs = np.log(chances) + 1 if logits else chances
    found = np.bincount(drawn("categorical", outputs), minlength=3) / 20000
    np.testing.assert_allclose(found, chances, atol=0.015)
    assert (found > 0).tolist() == (chances > 0).tolist()
    chances = np.array([0.1, 0.6, 0.3])
    outputs = np.log(chances / (1 - chances)) if logits else chances
    found = drawn("bernoulli", outputs).mean(0)
    np.testing.assert_allclose(found, chances, atol=0.015)
    numbers = drawn("gaussian", [3.0])
    assert abs(np.mean(numbers) - 3) < 0.03
    assert abs(np.std(numbers) - 1) < 0.03


def test_seeds_draws_and_paths():
    model, x, _ = _two_layers(SPARSE)
    one, again, other = (fisher(model, x, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.parts[0], again.parts[0])
    assert not np.array_equal(one.parts[0], other.parts[0])
    several = fisher(model, x, draws=3)
    assert several.samples == 5
    assert not np.array_equal(one.parts[0], several.parts[0])
    functions = function_cache._TRACED[model].values()
    assert len(functions) == 1
    for function, _ in functions:
        assert function.experimental_get_tracing_count() == 1
    for k, variable in enumerate(model.trainable_variables):
        assert one[variable.path] is one.parts[k] is one[k]
    assert len(one) == 5
    assert "5 variables, 5 samples" in repr(one)
    with pytest.raises(KeyError, match="Expected one of the paths"):
        one["nothing"]


@pytest.mark.parametrize("kind", ["diagonal", "kfac"])
def test_batches_and_weights_count_samples(float64, kind):
    model, x, y = _two_layers()
    how = {"kind": kind, "labels": "data", "verbose": 0}
    whole = fisher(model, x, y, **how).parts
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
    _assert_close(fisher(model, x, y, batch_size=2, **how).parts, whole)
    _assert_close(fisher(model, data, **how).parts, whole)
    times = np.array([2, 0, 1, 1, 3])
    weighted = fisher(model, x, y, times, batch_size=3, **how)
    if kind == "diagonal":
        rows = np.repeat(np.arange(5), times)
        repeated = fisher(model, x[rows], y[rows], **how)
        _assert_close(weighted.parts, repeated.parts)


@pytest.mark.quick
def test_kronecker_products(float64):
    model, x, y = _two_layers()
    found = fisher(model, x, y, kind="kfac", labels="data")
    diagonal = fisher(model, x, y, labels="data")
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


@pytest.mark.parametrize("kind", ["diagonal", "kfac"])
def test_quadratic_forms(float64, kind):
    model, x, y = _two_layers()
    anchors = [v.numpy() for v in model.trainable_variables]
    moved = [a + normal(*a.shape, seed=3) for a in anchors]
    found = fisher(model, x, y, kind=kind, labels="data")
    right = 0
    for part, w, a in zip(found.parts, moved, anchors):
        d = (w - a).ravel()
        if kind == "diagonal":
            right += (part.ravel() * d**2).sum() / 2
            continue
        left, other = (np.diag(s) if s.ndim == 1 else s for s in part[:2])
        # In these the left axes are the first.
        right += d @ np.kron(left, other) @ d / 2
    np.testing.assert_allclose(found.penalty(moved, anchors), right, **LIMITS)
    parts = found.regularizers(anchors, 2.0)
    total = sum(r(tf.constant(w)) for r, w in zip(parts, moved))
    np.testing.assert_allclose(total, 2 * right, **LIMITS)
    assert float(found.penalty(anchors, anchors)) == 0
    with pytest.raises(ValueError, match="Expected 5 differences"):
        found.quadratic(moved[:2])


def test_masked_positions_add_nothing(float64):
    rows = layers.Embedding(5, 3, mask_zero=True)
    model = compiled(net(rows, shape=(4,), dtype="int32"), loss=SPARSE)
    x = np.array([[1, 2, 0, 0], [3, 1, 4, 2], [2, 0, 0, 0]])
    assert mask_of(model(x)) is not None
    key = tf.constant([0, 0], tf.int64)
    labels = Likelihood("categorical", True).draw(model(x), key)

    def negative_log(i):
        kept = model(x[i : i + 1])[0][: np.count_nonzero(x[i])]
        return _softmax(labels[i][: kept.shape[0]], kept)

    right = _mean_squares(model, 3, negative_log)
    _assert_close(fisher(model, x).parts, right)


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


@pytest.mark.parametrize("given", ["list", "dict"])
def test_several_outputs(float64, given):
    inputs = keras.Input((4,))
    outputs = {
        name: layers.Dense(units, name=name)(inputs)
        for name, units in (("a", 3), ("b", 2), ("c", 1))
    }
    loss = {"a": SPARSE, "b": "mse", "c": None}
    if given == "list":
        outputs, loss = list(outputs.values()), list(loss.values())
    else:
        del loss["c"]
    model = compiled(keras.Model(inputs, outputs), loss=loss)
    x, a, b = normal(4, 4), integers(3, 4), normal(4, 2, seed=1)

    def negative_log(i):
        predicted = tf.nest.flatten(model(x[i : i + 1]))
        first = _softmax(a[i : i + 1], predicted[0])
        return first + _gaussian(b[i : i + 1], predicted[1])

    sampled = fisher(model, x)
    assert sampled.likelihood == "categorical and gaussian"
    assert [p is None for p in sampled.parts] == [False] * 4 + [True] * 2
    if given == "dict":
        found = fisher(model, x, {"a": a, "b": b}, labels="data")
        right = _mean_squares(model, 4, negative_log)
        _assert_close(found.parts[:4], right[:4])


def _dense(*parts, **how):
    return compiled(net(layers.Dense(2), *parts, shape=(3,), units=None), **how)


#: What the refusal names → a model with such a loss.
UNKNOWN = {
    "mean_absolute_error": lambda: _dense(loss="mae"),
    "label_smoothing=0.1": lambda: _dense(
        loss=losses.CategoricalCrossentropy(True, label_smoothing=0.1)
    ),
    "loss_weights": lambda: _dense(loss_weights=[0.5]),
    "terms of add_loss": lambda: _dense(Added(keras.ops.mean)),
    "a compute_loss of its own": lambda: compiled(
        net(shape=(3,), units=2, cls=OwnLoss)
    ),
}


@pytest.mark.parametrize("said", UNKNOWN)
def test_a_loss_without_a_known_distribution(float64, said):
    model, x, y = UNKNOWN[said](), normal(4, 3), normal(4, 2)
    with pytest.raises(ValueError, match='Use labels="data"') as error:
        fisher(model, x)
    assert said in str(error.value)
    found = fisher(model, x, y, labels="data")
    assert found.likelihood == "loss"
    gradients = kpg.per_sample_gradients(model, x, y)
    _assert_close(found.parts, [np.square(g).mean(0) for g in gradients])
    with pytest.raises(ValueError, match="Leave the weights out"):
        fisher(model, x, y, np.ones(4), labels="data")


def test_what_is_refused():
    model, x, _ = _two_layers()
    y = np.ones((5, 3), "float32")
    y[3] = np.inf
    batches = {"y": y, "labels": "data", "batch_size": 2, "verbose": 0}
    for arguments, said in (
        ({"kind": "full"}, "`kind` expected one of"),
        ({"labels": "true"}, "`labels` expected one of"),
        ({"labels": "data"}, "Expected `y`"),
        ({"draws": 0}, "`draws` expected a positive integer"),
        ({"seed": None}, "`seed` expected an integer"),
        ({"sample_weight": np.ones((5, 2))}, "one number for each sample"),
        ({"sample_weight": -np.ones(5)}, "not negative"),
        (batches, "batch of samples 2 to 3"),
    ):
        with pytest.raises(ValueError, match=said):
            fisher(model, x, **arguments)
    with pytest.raises(ValueError, match="is not compiled"):
        fisher(keras.Sequential([layers.Dense(1)]), x)
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, axis=1)
    model = compiled(net(shape=(3, 2)), loss=loss)
    with pytest.raises(ValueError, match="axis=1"):
        fisher(model, np.ones((4, 3, 2)), verbose=0)


def test_the_model_stays_as_it_is():
    norm, drop = layers.BatchNormalization(), layers.Dropout(0.5)
    model = compiled(
        keras.Sequential([layers.Dense(4), norm, drop, layers.Dense(2)])
    )
    x = normal(6, 3)
    first = fisher(model, x)  # not built before
    before = weights(model)
    again = fisher(model, x)
    np.testing.assert_array_equal(first.parts[0], again.parts[0])
    assert_equal(model, before)
    with pytest.raises(ValueError, match="training=False"):
        fisher(model, x, training=True)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_is_widened(policy):
    y = np.array([0, 1, 2, 0, 1])
    model, x, _ = _two_layers(SPARSE)
    right = fisher(model, x, y, labels="data")
    keras.config.set_dtype_policy(policy)
    half, *_ = _two_layers(SPARSE)
    keras.config.set_dtype_policy("float32")
    half.set_weights(model.get_weights())
    found = fisher(half, x, y, labels="data")
    for part, expected in zip(found.parts, right.parts):
        assert part.dtype == np.float32
        assert_near(part, expected, 0.1)


def test_a_penalty_keeps_what_was_learned():
    x = normal(64, 4)
    first = (x[:, :1] > 0).astype("int32")
    other = x * [1, 0, 1, 1] + [0, 2, 0, 0]
    left = {}
    for strength in (0.0, 50.0):
        model = net(shape=(4,), units=2, seed=0)
        model = compiled(model, "vectorized", SPARSE, 0.3)
        trained(model, x, first, batch_size=64, epochs=30)
        found = fisher(model, x)
        anchors = [v.numpy() for v in model.trainable_variables]
        for v, one in zip(
            model.trainable_variables, found.regularizers(anchors, strength)
        ):
            v.regularizer = one
        compiled(model, "vectorized", SPARSE, 0.01)
        trained(model, other, 1 - first, batch_size=64, epochs=60)
        left[strength] = float(SPARSE(first, model(x)))
    assert left[50.0] < left[0.0]


PEER_MODELS = {
    "dense": lambda: net(layers.Dense(4, activation="sigmoid")),
    "convolution": lambda: net(
        layers.Conv2D(3, 3, activation="sigmoid"),
        layers.Flatten(),
        shape=(6, 6, 2),
    ),
}


@pytest.mark.parametrize("case", PEER_MODELS)
def test_agrees_with_the_peers(case):
    """BackPACK and curvlinops, recorded by make_fisher_of_peers.py."""
    recorded = json.loads(PEERS.read_text())
    one = recorded["cases"][case]
    model = compiled(PEER_MODELS[case](), loss=SPARSE)
    model.set_weights([np.array(w, "float32") for w in one["weights"]])
    x, y = np.array(one["x"], "float32"), np.array(one["y"])
    found = fisher(model, x, y, labels="data")
    for name in recorded["peers"]:
        for part, right in zip(found.parts, one[name]):
            assert_near(part, right, 1e-5)


@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    "kind", [losses.BinaryCrossentropy, losses.CategoricalCrossentropy]
)
@pytest.mark.filterwarnings("ignore:.*received `from_logits=True`")
def test_the_likelihood_is_that_of_the_compiled_loss(
    float64, kind, activation, *, from_logits
):
    # Keras takes the logits behind any activation, whatever the loss says.
    x = normal(10, 4)
    inputs = keras.Input((4,))
    logits = layers.Dense(2)(inputs)
    function = keras.activations.get(activation)
    model = keras.Model(inputs, layers.Activation(function)(logits))
    compiled(model, loss=kind(from_logits=from_logits))
    # The Hessian by the logits of Keras's own loss, of any labels.
    held = keras.Model(inputs, logits)(x)
    loss = model.loss
    labels = tf.one_hot(integers(2, 10), 2, dtype="float64")
    with tf.GradientTape() as outer:
        outer.watch(held)
        with tf.GradientTape() as inner:
            inner.watch(held)
            value = loss(labels, function(held)) * 10
            if kind is losses.BinaryCrossentropy:
                value *= 2  # a sum over both, no mean
        slopes = inner.gradient(value, held)
    curved = np.array(outer.batch_jacobian(slopes, held))
    diagonal = np.diagonal(curved, axis1=1, axis2=2)
    found = fisher(model, np.tile(x, (300, 1)), verbose=0)
    kernel, bias = np.square(x).T @ diagonal / 10, diagonal.mean(0)
    for part, right in zip(found.parts, (kernel, bias), strict=True):
        assert np.linalg.norm(part - right) < 0.05 * np.linalg.norm(right)


def _of_words():
    """Means of words that are not padded."""
    model = net(
        layers.Embedding(6, 3, mask_zero=True),
        layers.Dense(4, "tanh"),
        layers.GlobalAveragePooling1D(),
        shape=(None,),
        dtype="int32",
        units=2,
    )
    return model, lambda x, k: x[:, :k]


def _of_windows():
    """Sums over windows of two, of which padding is left out by hand."""
    inputs, kept = keras.Input((None, 2)), keras.Input((None, 1))
    h = layers.Conv1D(4, 2, activation="tanh")(inputs)
    h = layers.GlobalAveragePooling1D()(layers.Multiply()([h, kept]))
    model = keras.Model([inputs, kept], layers.Dense(2)(h))
    return model, lambda x, k: [x[0][:, : k + 1], x[1][:, :k] * k / 5]


@pytest.mark.parametrize("make", [_of_words, _of_windows])
def test_padding_counts_in_no_factor(float64, make):
    """As the samples do without it, one by one."""
    model, without_padding = make()
    lengths, y = [5, 2, 3], normal(3, 2)
    kept = np.arange(5) < np.array(lengths)[:, None]
    x = np.where(kept, 1 + integers(5, 3, 5), 0)
    if make is _of_windows:
        x = [normal(3, 6, 2), kept[..., None].astype(float)]
    compiled(model)
    how = {"kind": "kfac", "labels": "data"}
    found = fisher(model, x, y, **how).parts
    alone = []
    for i, length in enumerate(lengths):
        one = keras.tree.map_structure(lambda t, i=i: t[i : i + 1], x)
        one = without_padding(one, length)
        alone.append(fisher(model, one, y[i : i + 1], **how).parts)
    for k, part in enumerate(found):
        parts = [each[k] for each in alone]
        has_positions = (
            part.axes
            and model.layers[-1].kernel is not (model.trainable_variables[k])
        )
        weights = lengths if has_positions else [1, 1, 1]
        inputs = np.average([p.inputs for p in parts], 0, weights)
        np.testing.assert_allclose(part.inputs, inputs, **LIMITS)
        outputs = np.mean([p.outputs for p in parts], 0)
        np.testing.assert_allclose(part.outputs, outputs, **LIMITS)
    if make is _of_words:  # By hand: the rows that the kernel meets.
        rows = model.layers[1].embeddings.numpy()[x[x > 0]]
        right = rows.T @ rows / sum(lengths)
        np.testing.assert_allclose(found[1].inputs, right, **LIMITS)
