"""Under XLA batches are padded to a few sizes, and nothing else changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_pergrad as kpg
from keras_pergrad.modes import sums
from keras_pergrad.modes.microbatches import part_sizes
from tests.models.making import assert_equal
from tests.privacy import tiny
from tests.privacy.tiny import X, Y, drawn_sizes, fit, model, private

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
    data = training.batches(X, Y)
    (size,) = training.gradient_mode.aggregation.batch_sizes()
    assert max(drawn_sizes(data, model(training), 10)) == size


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


def unit_normalised():
    hidden = layers.Dense(4, activation="relu", kernel_regularizer="l2")
    # At zero there would be a division by zero.
    return [hidden, layers.UnitNormalization()]


def embedded():
    return [layers.Embedding(9, 2), layers.Flatten()]


WORDS = np.arange(X.size).reshape(X.shape) % 5
ADAPTIVE = kpg.privacy.AdaptiveClippedMean(0.1)
#: Arguments of the training.
CASES = {
    "whole": {"batch_size": 2},
    "microbatches": {"microbatch_size": 2, "batch_size": 5},
    "per_sample": {"method": "per_sample", "batch_size": 2},
    "adaptive": {"clipping": ADAPTIVE, "batch_size": 5},
    # Its mean is not over padding.
    "an added loss": {"batch_size": 3},
    # Gradients of parts keep their shape.
    "sparse": {"microbatch_size": 3},
}
#: What makes the layers, and the data, where they are others.
OTHERS = {"an added loss": (tiny.adding, X), "sparse": (embedded, WORDS)}


@pytest.mark.parametrize("case", CASES)
def test_nothing_else_changes(case, monkeypatch):
    """The same weights and logs as without XLA, also of empty batches."""
    make, x = OTHERS.get(case, (unit_normalised, X))
    training = private(**CASES[case])
    data = training.batches(x, Y, np.linspace(0.5, 2, tiny.N))

    def trained(jit_compile):
        net = model(
            training,
            keras.optimizers.Adam(0.01),
            parts=make,
            dtype=x.dtype.name,
            jit_compile=jit_compile,
            metrics=["accuracy", Seen(name="seen")],
            weighted_metrics=["mse"],
        )
        return net, fit(net, training, 2, data=data)

    plain, expected = trained(False)
    sizes, traces = set(), []

    class Noting(sums.PaddedBatch):
        def __init__(self, batch, given=()):
            super().__init__(batch, given)
            traces.append(given)
            rows = tf.shape(self.present)[0]
            tf.py_function(lambda n: sizes.add(int(n)), [rows], [])

    monkeypatch.setattr(sums, "PaddedBatch", Noting)
    net, found = trained(True)
    assert_equal(net.get_weights(), plain.get_weights(), 1e-5, atol=1e-6)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-5), name
    drawn = drawn_sizes(data, net, training.steps_per_epoch * 2)
    assert len(set(drawn)) > 4
    assert 0 in drawn or case != "whole"
    # Each is a program of XLA; the function is traced for full parts and the
    # last.
    if case != "an added loss":
        assert 1 <= len(sizes) <= 3
        assert len(traces) == (2 if training.microbatch_size else 1)


@pytest.mark.parametrize(
    ("jit_compile", "arguments"),
    [(False, {}), (False, {"microbatch_size": 2}), (True, {})],
    ids=["plain", "microbatches", "xla"],
)
def test_empty_batches_have_no_part_in_the_losses_of_outputs(
    jit_compile, arguments
):
    training = private(batch_size=2, **arguments)
    inputs = keras.Input((3,))
    outputs = {name: layers.Dense(1, name=name)(inputs) for name in "ab"}
    net = kpg.PerGradModel(inputs, outputs)
    tiny.compile_privately(
        net,
        training,
        keras.optimizers.SGD(0.0),
        loss={"a": "mse", "b": "mae"},
        jit_compile=jit_compile,
    )
    data = training.batches(X, {"a": Y, "b": 2 * Y})
    ledger = net.aggregation_state
    drawn = [data.draw_rows(ledger, step) for step in range(len(data))]
    assert any(len(rows) == 0 for rows in drawn)
    errors = (np.asarray(net(X)["a"]) - Y) ** 2
    expected = [np.mean(errors[rows]) for rows in drawn if len(rows)]
    history = fit(net, training, data=data)
    assert history["a_loss"] == pytest.approx([np.mean(expected)], rel=1e-5)
