"""Under XLA batches are padded to a few sizes, and nothing else changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_pergrad as kpg
from keras_pergrad.modes import sums
from keras_pergrad.modes.microbatches import part_sizes
from tests.privacy.tiny import X, Y, compile_privately, fit, model, private

layers = keras.layers


@pytest.mark.parametrize("examples", [600, 5_000, 1_000_000])
@pytest.mark.parametrize("most", [None, 16, 64, 100, 130, 256, 280, 300, 512])
def test_few_samples_are_added(examples, most):
    stats = pytest.importorskip("scipy.stats")
    training = private(samples=examples, batch_size=256, delta=1e-7)
    sizes = training.gradient_mode.aggregation.batch_sizes()
    parts = np.asarray(part_sizes(sizes, most))
    assert len(parts) <= 3
    drawn = np.arange(sizes[-1] + 1)
    rest = drawn % most if most else drawn
    padded = parts[np.searchsorted(parts, rest)] - rest
    padded[(rest == 0) & (drawn > 0)] = 0
    likely = stats.binom.pmf(drawn, examples, 256 / examples)
    assert likely.sum() > 1 - 1e-9
    assert likely @ padded < 0.1 * 256


@pytest.mark.parametrize("sampling", ["fixed", "shuffled"])
def test_other_samplings_have_one_size(sampling):
    training = private(sampling=sampling, batch_size=9)
    ledger = model(training).aggregation_state
    drawn = {
        len(training.batches(X, Y).draw_rows(ledger, step))
        for step in range(10)
    }
    (size,) = training.gradient_mode.aggregation.batch_sizes()
    assert max(drawn) == size


class Seen(keras.metrics.Metric):
    """How many samples and batches `update_state` was given, and of what."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.seen = self.add_weight(shape=(3,), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        rows = ops.cast(ops.shape(y_pred)[0], "float32")
        self.seen.assign_add(ops.stack([rows, 1.0, ops.sum(y_pred)]))

    def result(self):
        return ops.sum(self.seen * ops.convert_to_tensor([1.0, 1e3, 1e4]))


def network():
    keras.utils.set_random_seed(4)
    inputs = keras.Input((3,))
    hidden = layers.Dense(4, activation="relu", kernel_regularizer="l2")(inputs)
    # At zero there would be a division by zero.
    hidden = layers.UnitNormalization()(hidden)
    return kpg.PerGradModel(inputs, layers.Dense(1, "sigmoid")(hidden))


def trained(training, net, jit_compile, **arguments):
    compile_privately(
        net,
        training,
        keras.optimizers.Adam(0.01),
        jit_compile=jit_compile,
        metrics=["accuracy", Seen(name="seen")],
        weighted_metrics=["mse"],
        **arguments,
    )
    weights = np.linspace(0.5, 2, len(X))
    data = training.batches(X, Y, weights)
    history = fit(net, training, 2, data=data)
    return net, history


CASES = {
    "whole": {"batch_size": 2},
    "microbatches": {"microbatch_size": 2, "batch_size": 5},
    "per_sample": {"method": "per_sample", "batch_size": 2},
    "adaptive": {
        "clipping": kpg.privacy.AdaptiveClippedMean(0.1),
        "batch_size": 5,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_else_changes(case, monkeypatch):
    """The same weights and logs as without XLA, also of empty batches."""
    training = private(**CASES[case])
    plain, expected = trained(training, network(), False)
    sizes, traces = set(), []

    class Noting(sums.PaddedBatch):
        def __init__(self, batch, given=()):
            super().__init__(batch, given)
            traces.append(given)
            rows = tf.shape(self.present)[0]
            tf.py_function(lambda n: sizes.add(int(n)), [rows], [])

    monkeypatch.setattr(sums, "PaddedBatch", Noting)
    net, found = trained(training, network(), True)
    for a, b in zip(net.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-5), name
    drawn = {
        len(training.batches(X, Y).draw_rows(net.aggregation_state, step))
        for step in range(training.steps_per_epoch * 2)
    }
    assert len(drawn) > 4
    assert 0 in drawn or case != "whole"
    # Each is a program of XLA; the function is traced for full parts and the
    # last.
    assert 1 <= len(sizes) <= 3
    assert len(traces) == (2 if case == "microbatches" else 1)


class Adds(layers.Layer):
    """Adds the mean of its inputs to the loss."""

    def call(self, x):
        self.add_loss(ops.mean(x**2))
        return x


def test_the_mean_of_an_added_loss_is_not_over_padding():
    found = []
    for jit_compile in (False, True):
        training = private(batch_size=3)
        keras.utils.set_random_seed(4)
        inputs = keras.Input((3,))
        outputs = layers.Dense(1, "sigmoid")(Adds()(layers.Dense(3)(inputs)))
        net = kpg.PerGradModel(inputs, outputs)
        net, history = trained(training, net, jit_compile)
        found.append((net.get_weights(), history["loss"]))
    for a, b in zip(*(weights for weights, _ in found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-5)


@pytest.mark.parametrize(
    ("jit_compile", "arguments"),
    [(False, {}), (False, {"microbatch_size": 2}), (True, {})],
    ids=["plain", "microbatches", "xla"],
)
def test_empty_batches_have_no_part_in_the_losses_of_outputs(
    jit_compile, arguments
):
    training = private(batch_size=2, **arguments)
    keras.utils.set_random_seed(4)
    inputs = keras.Input((3,))
    outputs = {name: layers.Dense(1, name=name)(inputs) for name in "ab"}
    net = kpg.PerGradModel(inputs, outputs)
    compile_privately(
        net,
        training,
        keras.optimizers.SGD(0.0),
        loss={"a": "mse", "b": "mae"},
        jit_compile=jit_compile,
    )
    data = training.batches(X, {"a": Y, "b": 2 * Y})
    drawn = [
        data.draw_rows(net.aggregation_state, step) for step in range(len(data))
    ]
    assert any(len(rows) == 0 for rows in drawn)
    expected = [
        np.mean((np.asarray(net(X[rows])["a"]) - Y[rows]) ** 2)
        for rows in drawn
        if len(rows)
    ]
    history = fit(net, training, data=data)
    assert history["a_loss"] == pytest.approx([np.mean(expected)], rel=1e-5)


def test_sparse_gradients_of_parts_keep_their_shape():
    found = []
    words = np.arange(3 * len(X)).reshape(len(X), 3) % 5
    for jit_compile in (False, True):
        training = private(microbatch_size=3)
        keras.utils.set_random_seed(4)
        inputs = keras.Input((3,), dtype="int32")
        hidden = layers.Flatten()(layers.Embedding(9, 2)(inputs))
        net = kpg.PerGradModel(inputs, layers.Dense(1, "sigmoid")(hidden))
        compile_privately(net, training, jit_compile=jit_compile)
        fit(net, training, data=training.batches(words, Y))
        found.append(net.get_weights())
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
