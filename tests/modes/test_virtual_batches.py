"""Samples are clipped as in one big batch, however that is taken apart."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle
from tests.marks import few
from tests.models.making import (
    assert_equal,
    compiled,
    integers,
    net,
    normal,
    trained,
    unchanged,
)
from tests.modes import big_batch
from tests.modes.big_batch import (
    EXECUTION,
    SIZES,
    X,
    assert_same,
    ours,
    plain,
)

layers = keras.layers
INNER = {"vectorized": kpg.Vectorized, "per_sample": kpg.PerSample}
# Weights and denominators of every kind that one batch can have.
WHOLE = (
    "sum-weighted",
    "sum_over_batch_size-weighted",
    "masked-mean_with_sample_weight-weighted",
    "outputs-mixed",
    "added",
)
# What is in proportion to the number of samples goes over several steps, too.
SPREAD = ("sum_over_batch_size-weighted", "outputs-means")
FEW = (
    (WHOLE[2], "per_sample", "graph"),
    ("outputs-mixed", "per_sample", "graph"),
    ("added", "vectorized", "xla"),
    ("added", "per_sample", "eager"),
)
QUICK = (
    (WHOLE[0], "vectorized", "graph"),
    ("outputs-mixed", "per_sample", "graph"),
    ("added", "vectorized", "xla"),
)


def clipped(clip_norm=0.3):
    return kpg.Vectorized(kpg.ClippedMean(clip_norm))


@functools.cache
def in_one_piece(name):
    """The same aggregation on the batches of 10, 10 and 3."""
    return ours(name, clipped(), jit_compile=False)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("name", "inner", "execution"),
    few([(n, "vectorized", "graph") for n in WHOLE] + list(FEW), QUICK),
)
def test_in_microbatches(name, inner, execution):
    inner = INNER[inner](aggregation=kpg.ClippedMean(clip_norm=0.3))
    mode = kpg.Accumulated(microbatch_size=4, inner=inner)
    weights, history = ours(name, mode, **EXECUTION[execution])
    assert 0 < history["clipped_fraction"][0] <= 1
    right, right_history = in_one_piece(name)
    assert_same((weights, {}), (right, {}))
    # Keras 3.8 rounds what an eager step logs to single precision.
    limits = {"rtol": 1e-6} if execution == "eager" else {}
    assert_same(([], history), ([], right_history), **limits)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("name", "inner", "execution"),
    [(n, "vectorized", "graph") for n in SPREAD]
    + [("outputs-means", "per_sample", "graph")]
    + [(SPREAD[0], "vectorized", "xla"), (SPREAD[0], "per_sample", "eager")],
)
def test_over_several_steps(name, inner, execution):
    inner = INNER[inner](aggregation=kpg.ClippedMean(clip_norm=0.3))
    mode = kpg.Accumulated(steps=3, microbatch_size=3, inner=inner)
    weights, _ = ours(name, mode, sizes=SIZES, **EXECUTION[execution])
    assert_same((weights, {}), (in_one_piece(name)[0], {}))


@pytest.mark.usefixtures("float64")
def test_against_the_oracle():
    name = "sum_over_batch_size-weighted"
    mode = kpg.Accumulated(steps=2, inner=clipped())
    how = {"optimizer": keras.optimizers.SGD(1.0), "gradient_mode": mode}
    model = big_batch.compiled(name, kpg.PerGradModel, **how)
    before = model.get_weights()
    x, y, weights = big_batch.batches(name, [23])[0]
    gradients = oracle.per_sample_gradients(model, x, y, weights)
    norms = np.sqrt(sum((g**2).reshape(23, -1).sum(1) for g in gradients))
    factors = 0.3 / np.maximum(norms, 0.3)
    assert 0 < np.mean(factors < 1) < 1
    for rows in (slice(0, 9), slice(9, 23)):
        model.train_on_batch(x[rows], y[rows], weights[rows])
    for k, (old, new) in enumerate(zip(before, model.get_weights())):
        expected = np.tensordot(factors, gradients[k], 1) / 23
        if k == 0:  # The weight regulariser is added after aggregation.
            expected += 0.02 * old
        np.testing.assert_allclose(old - new, expected, atol=1e-10)


@pytest.mark.parametrize("steps", [1, 4])
def test_noise_once_an_update(steps):
    layer = keras.layers.Dense(100, use_bias=False)
    model = net(layer, shape=(100,), units=None)
    aggregation = kpg.ClippedMean(0.5, noise_multiplier=3.0, seed=1)
    inner = kpg.Vectorized(aggregation=aggregation)
    mode = kpg.Accumulated(steps=steps, microbatch_size=2, inner=inner)
    model = compiled(model, mode, rate=1.0)
    before = layer.kernel.numpy()
    # No input: the gradient is noise alone.
    x, y = np.zeros((24, 100)), np.zeros((24, 100))
    trained(model, x, y, batch_size=24 // steps)
    noise = layer.kernel.numpy() - before
    assert int(model.optimizer.iterations) == 1
    deviation = 3.0 * 0.5 / 24
    assert np.std(noise) == pytest.approx(deviation, rel=0.03)
    assert abs(np.mean(noise)) < 4 * deviation / 100


def test_a_sample_that_is_not_finite_counts_zero():
    mode = kpg.Accumulated(steps=2, microbatch_size=2, inner=clipped(1.0))
    model = compiled(big_batch.dense(kpg.PerGradModel), mode)
    x = np.ones((10, 5))
    x[3] = np.nan
    trained(model, x, np.ones((10, 3)), batch_size=5)
    assert model.history.history["nonfinite_samples"] == [1]
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("inner", ["vectorized", "per_sample"])
def test_plain_means_are_the_batch(inner):
    mode = kpg.Accumulated(steps=3, microbatch_size=3, inner=inner)
    name = "masked-mean_with_sample_weight-weighted"
    found, _ = ours(name, mode, sizes=SIZES, jit_compile=False)
    assert_same((found, {}), (plain(name, "graph")[0], {}))


@pytest.mark.parametrize(
    "name", ["sum-plain", "mean_with_sample_weight-plain", "masked-sum-plain"]
)
def test_scales_that_cannot_be_known_are_refused(name):
    mode = kpg.Accumulated(steps=2, inner=clipped())
    with pytest.raises(ValueError, match="is not known before it is clipped"):
        ours(name, mode)


@pytest.mark.parametrize("execution", EXECUTION)
def test_a_sum_in_add_loss_over_steps_is_refused(execution):
    mode = kpg.Accumulated(steps=2, inner=clipped())
    arguments = {"gradient_mode": mode, **EXECUTION[execution]}
    model = big_batch.compiled("added-only", kpg.PerGradModel, **arguments)
    with unchanged(model):
        with pytest.raises(ValueError, match="`add_loss` is a sum over"):
            model.fit(X, batch_size=23, verbose=0)
        assert int(model.gradient_state.count) == 0


@pytest.mark.parametrize("inner", ["vectorized", clipped()], ids=repr)
def test_batch_normalization_is_refused(inner):
    mode = kpg.Accumulated(inner=inner)
    model = compiled(net(keras.layers.BatchNormalization()), mode)
    with pytest.raises(ValueError, match=r"\(BatchNormalization\) makes"):
        model.train_on_batch(np.ones((4, 5)), np.ones((4, 3)))


def test_inner_as_name_object_or_config():
    inner = kpg.PerSample(aggregation=kpg.ClippedMean(0.7))
    mode = kpg.Accumulated(2, microbatch_size=7, inner=inner, tail="keep")
    config = keras.saving.serialize_keras_object(mode)
    again = kpg.modes.get(config)
    assert again.get_config() == mode.get_config()
    assert again.microbatch_size == 7
    assert again.inner.aggregation.clip_norm == 0.7
    assert type(kpg.Accumulated(inner="vectorized").inner) is kpg.Vectorized


class Own(kpg.modes.GradientMode):
    """A mode that can do whole batches only."""


@pytest.mark.parametrize(
    ("inner", "error", "why"),
    [
        ("nonesuch", ValueError, "Unknown gradient mode: 'nonesuch'"),
        (3, TypeError, "Received: 3"),
        ("accumulated", ValueError, "one of 'batch', .*: Accumulated"),
        (Own(), ValueError, "'per_sample', 'vectorized', .*: Own"),
        (kpg.PerSample(updates="sample"), ValueError, "updates='sample'"),
    ],
    ids=["unknown", "number", "itself", "own", "online"],
)
def test_bad_inner(inner, error, why):
    with pytest.raises(error, match=why):
        kpg.Accumulated(inner=inner)


def sequences(length=None, mode=None, model=None, **arguments):
    """A model of sequences, or `model`, compiled."""
    if model is None:
        keras.utils.set_random_seed(1)
        model = net(layers.Embedding(9, 4), shape=(length,), dtype="int32")
    mode = mode or kpg.Accumulated(steps=2, inner=clipped(0.05))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    arguments = {"rate": 1.0, "jit_compile": False, **arguments}
    return compiled(model, mode, loss, **arguments)


def tokens(length=6):
    return integers(9, 8, length), integers(3, 8, length, seed=1)


@pytest.mark.parametrize("length", [6, None])
def test_sequences_whose_arrays_have_one_length(length):
    found = trained(sequences(length), *tokens(), batch_size=4).get_weights()
    whole = trained(sequences(6, clipped(0.05)), *tokens(), batch_size=8)
    assert_equal(found, whole.get_weights(), rtol=1e-5, atol=1e-6)


def test_sequences_of_another_length_are_refused():
    model = trained(sequences(run_eagerly=False), *tokens(), batch_size=4)
    refused = pytest.raises(ValueError, match=r"Pad|pad .*to one length")
    with unchanged(model), refused:
        trained(model, *tokens(3), batch_size=4)
    model = trained(sequences(model=model), *tokens(3), batch_size=4)
    assert int(model.optimizer.iterations) == 1


def test_both_lengths_are_named_where_they_are_known():
    data = [tf.data.Dataset.from_tensors(tokens(k)) for k in (6, 3)]
    model = trained(sequences(), data[0])
    model.train_function = None
    with pytest.raises(ValueError, match=r"has 3 values .* and had 6"):
        trained(model, data[1])


def test_a_length_that_is_not_known_while_tracing_is_refused():
    kinds = tuple(tf.TensorSpec((None, None), "int32") for _ in range(2))
    data = tf.data.Dataset.from_generator(
        lambda: iter([tokens()]), output_signature=kinds
    )
    with pytest.raises(ValueError, match=r"for one sample is not known.*pad"):
        trained(sequences(), data)


@pytest.mark.parametrize("microbatch_size", [2, 5])
def test_layers_with_a_rule_first_in_an_eager_step(microbatch_size):
    def update(mode):
        keras.utils.set_random_seed(0)
        model = net(layers.GRU(2), shape=(4, 3), units=2)
        model = compiled(model, mode, rate=1.0, run_eagerly=True)
        before = model.get_weights()
        model.train_on_batch(normal(5, 4, 3), normal(5, 2, seed=1))
        return [b - a for a, b in zip(before, model.get_weights())]

    parts = kpg.Accumulated(microbatch_size=microbatch_size, inner=clipped())
    found = update(parts)
    assert all(abs(step).max() > 1e-4 for step in found)
    assert_equal(found, update(clipped()), rtol=1e-4, atol=1e-6)
