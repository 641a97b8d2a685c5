"""Samples are clipped as in one big batch, however that is taken apart."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle
from tests.marks import few
from tests.models.making import assert_equal
from tests.modes.big_batch import (
    CASES,
    EXECUTION,
    X,
    assert_same,
    batches,
    compiled,
    dense,
    train,
)

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
_big = {}


def clipped():
    return kpg.ClippedMean(clip_norm=0.3)


def big_batch(name):
    """The same aggregation on the batches of 10, 10 and 3, in one piece."""
    if name not in _big:
        mode = kpg.Vectorized(aggregation=clipped())
        _big[name] = train(
            name, kpg.PerGradModel, gradient_mode=mode, jit_compile=False
        )
    return _big[name]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("name", "inner", "execution"),
    few([(n, "vectorized", "graph") for n in WHOLE] + list(FEW), QUICK),
)
def test_in_microbatches(name, inner, execution):
    inner = INNER[inner](aggregation=clipped())
    mode = kpg.Accumulated(microbatch_size=4, inner=inner)
    found = train(
        name, kpg.PerGradModel, gradient_mode=mode, **EXECUTION[execution]
    )
    assert 0 < found[1]["clipped_fraction"][0] <= 1
    (weights, history), (right, right_history) = found, big_batch(name)
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
    inner = INNER[inner](aggregation=clipped())
    mode = kpg.Accumulated(steps=3, microbatch_size=3, inner=inner)
    weights, _ = train(
        name,
        kpg.PerGradModel,
        gradient_mode=mode,
        sizes=(4, 4, 2, 4, 4, 2, 3),
        **EXECUTION[execution],
    )
    assert_same((weights, {}), (big_batch(name)[0], {}))


@pytest.mark.usefixtures("float64")
def test_against_the_oracle():
    model = compiled(
        "sum_over_batch_size-weighted",
        kpg.PerGradModel,
        keras.optimizers.SGD(1.0),
        gradient_mode=kpg.Accumulated(
            steps=2, inner=kpg.Vectorized(aggregation=clipped())
        ),
    )
    before = model.get_weights()
    x, y, weights = batches("sum_over_batch_size-weighted", [23])[0]
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
    inputs = keras.Input((100,))
    layer = keras.layers.Dense(100, use_bias=False)
    model = kpg.PerGradModel(inputs, layer(inputs))
    aggregation = kpg.ClippedMean(0.5, noise_multiplier=3.0, seed=1)
    mode = kpg.Accumulated(
        steps=steps,
        microbatch_size=2,
        inner=kpg.Vectorized(aggregation=aggregation),
    )
    model.compile(keras.optimizers.SGD(1.0), "mse", gradient_mode=mode)
    before = layer.kernel.numpy()
    # No input: the gradient is noise alone.
    x, y = np.zeros((24, 100)), np.zeros((24, 100))
    model.fit(x, y, batch_size=24 // steps, verbose=0)
    noise = layer.kernel.numpy() - before
    assert int(model.optimizer.iterations) == 1
    deviation = 3.0 * 0.5 / 24
    assert np.std(noise) == pytest.approx(deviation, rel=0.03)
    assert abs(np.mean(noise)) < 4 * deviation / 100


def test_a_sample_that_is_not_finite_counts_zero():
    model = dense(kpg.PerGradModel)
    inner = kpg.Vectorized(aggregation=kpg.ClippedMean(1.0))
    mode = kpg.Accumulated(steps=2, microbatch_size=2, inner=inner)
    model.compile("sgd", "mse", gradient_mode=mode)
    x = np.ones((10, 5))
    x[3] = np.nan
    logs = model.fit(x, np.ones((10, 3)), batch_size=5, verbose=0).history
    assert logs["nonfinite_samples"] == [1]
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("inner", ["vectorized", "per_sample"])
def test_plain_means_are_the_batch(inner):
    mode = kpg.Accumulated(steps=3, microbatch_size=3, inner=inner)
    name = "masked-mean_with_sample_weight-weighted"
    sizes = (4, 4, 2, 4, 4, 2, 3)
    arguments = {"jit_compile": False}
    found, _ = train(
        name, kpg.PerGradModel, gradient_mode=mode, sizes=sizes, **arguments
    )
    expected, _ = train(name, keras.Model, **arguments)
    assert_same((found, {}), (expected, {}))


@pytest.mark.parametrize(
    "name", ["sum-plain", "mean_with_sample_weight-plain", "masked-sum-plain"]
)
def test_scales_that_cannot_be_known_are_refused(name):
    inner = kpg.Vectorized(aggregation=clipped())
    mode = kpg.Accumulated(steps=2, inner=inner)
    with pytest.raises(ValueError, match="is not known before it is clipped"):
        train(name, kpg.PerGradModel, gradient_mode=mode)


@pytest.mark.parametrize("execution", EXECUTION)
def test_a_sum_in_add_loss_over_steps_is_refused(execution):
    # Only the data show that it is a sum.
    inner = kpg.Vectorized(aggregation=clipped())
    mode = kpg.Accumulated(steps=2, inner=inner)
    arguments = {"gradient_mode": mode, **EXECUTION[execution]}
    model = compiled("added-only", kpg.PerGradModel, **arguments)
    before = model.get_weights()

    def fit():
        return model.fit(X, batch_size=23, verbose=0)

    if execution == "xla":  # Which drops assertions: nothing is trained.
        assert fit().history["nonfinite_samples"] == [23]
    else:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="`add_loss` is a sum over"
        ):
            fit()
        assert int(model.gradient_state.count) == 0
    assert_equal(model.get_weights(), before)


def test_batch_normalization_is_refused():
    inputs = keras.Input((5,))
    outputs = keras.layers.BatchNormalization()(inputs)
    for inner in (kpg.Vectorized(), kpg.Vectorized(aggregation=clipped())):
        model = kpg.PerGradModel(inputs, keras.layers.Dense(3)(outputs))
        mode = kpg.Accumulated(inner=inner)
        model.compile("sgd", "mse", gradient_mode=mode)
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
        ("accumulated", ValueError, r"one of \['batch', .*: Accumulated"),
        (Own(), ValueError, r"'per_sample', 'vectorized'\].*: Own"),
        (kpg.PerSample(updates="sample"), ValueError, "updates='sample'"),
    ],
    ids=["unknown", "number", "itself", "own", "online"],
)
def test_bad_inner(inner, error, why):
    with pytest.raises(error, match=why):
        kpg.Accumulated(inner=inner)


def test_every_case_exists():
    assert set(WHOLE + SPREAD) <= set(CASES)
    assert tf.executing_eagerly()


def sequences(length=None, **arguments):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((length,), dtype="int32")
    h = keras.layers.Embedding(9, 4)(inputs)
    model = kpg.PerGradModel(inputs, keras.layers.Dense(3)(h))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.SGD(1.0), loss, jit_compile=False, **arguments
    )
    return model


def tokens(length=6):
    rng = np.random.default_rng(0)
    shape = 8, length
    return rng.integers(0, 9, shape), rng.integers(0, 3, shape)


def over_two_steps():
    inner = kpg.Vectorized(aggregation=kpg.ClippedMean(0.05))
    return kpg.Accumulated(steps=2, inner=inner)


@pytest.mark.parametrize("length", [6, None])
def test_sequences_whose_arrays_have_one_length(length):
    model = sequences(length, gradient_mode=over_two_steps())
    model.fit(*tokens(), batch_size=4, shuffle=False, verbose=0)
    clips = kpg.Vectorized(aggregation=kpg.ClippedMean(0.05))
    whole = sequences(6, gradient_mode=clips)
    whole.fit(*tokens(), batch_size=8, shuffle=False, verbose=0)
    assert_equal(model.get_weights(), whole.get_weights(), rtol=1e-5, atol=1e-6)


def test_sequences_of_another_length_are_refused():
    model = sequences(run_eagerly=False, gradient_mode=over_two_steps())
    model.fit(*tokens(), batch_size=4, verbose=0)
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"Pad|pad .*to one length"):
        model.fit(*tokens(3), batch_size=4, verbose=0)
    assert_equal(model.get_weights(), before)
    model.compile(
        keras.optimizers.SGD(1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        gradient_mode=over_two_steps(),
        jit_compile=False,
    )
    model.fit(*tokens(3), batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == 1


def test_both_lengths_are_named_where_they_are_known():
    model = sequences(gradient_mode=over_two_steps())
    data = [tf.data.Dataset.from_tensors(tokens(k)) for k in (6, 3)]
    model.fit(data[0], epochs=1, verbose=0, shuffle=False)
    model.train_function = None
    with pytest.raises(ValueError, match=r"has 3 values .* and had 6"):
        model.fit(data[1], epochs=1, verbose=0, shuffle=False)


def test_a_length_that_is_not_known_while_tracing_is_refused():
    model = sequences(gradient_mode=over_two_steps())
    kinds = tuple(tf.TensorSpec((None, None), "int64") for _ in range(2))
    data = tf.data.Dataset.from_generator(
        lambda: iter([tokens()]), output_signature=kinds
    )
    with pytest.raises(ValueError, match=r"for one sample is not known.*pad"):
        model.fit(data, verbose=0, shuffle=False)


@pytest.mark.parametrize("microbatch_size", [2, 5])
def test_layers_with_a_rule_first_in_an_eager_step(microbatch_size):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 4, 3)), rng.normal(size=(5, 2))

    def trained(mode):
        keras.utils.set_random_seed(0)
        layers = [keras.Input((4, 3)), keras.layers.GRU(2)]
        model = kpg.PerGradModel.from_model(
            keras.Sequential([*layers, keras.layers.Dense(2)])
        )
        sgd = keras.optimizers.SGD(1.0)
        model.compile(sgd, "mse", gradient_mode=mode, run_eagerly=True)
        before = model.get_weights()
        model.train_on_batch(x, y)
        return [b - a for a, b in zip(before, model.get_weights())]

    whole = kpg.Vectorized(clipped())
    parts = kpg.Accumulated(microbatch_size=microbatch_size, inner=whole)
    for a, b in zip(trained(parts), trained(whole), strict=True):
        assert abs(b).max() > 1e-4
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
