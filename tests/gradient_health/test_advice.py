"""Advice names each planted fault, and accuses no sound training."""

import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.gradient_health import evidence
from keras_pergrad.gradient_health.fit_record import FitRecord, FitRecorder
from keras_pergrad.gradient_health.judgements import advise
from keras_pergrad.runs.store import HealthReading
from tests.gradient_health import trainings
from tests.gradient_health.recorded import recorded
from tests.marks import few
from tests.models.making import assert_equal, compiled, integers, net, normal
from tests.models.making import weights as weights_of

layers = keras.layers


def names(advice):
    return [one.name for one in advice]


def accused(advice):
    return {one.name for one in advice if one.is_fault}


# Recorded trainings.


LAYERS = {
    "layer_dead": "inner",
    "untrained_layer_frozen": "inner",
    "inputs_not_normalised": "outer",
}


@pytest.mark.parametrize("fault", [*trainings.FAULTS, *trainings.SOUND])
@pytest.mark.parametrize("task", trainings.TASKS)
def test_a_recorded_fault_is_named_alone(task, fault):
    """With its figures and its layer; what is sound is not accused."""
    advice = advise(*recorded(task, fault))
    assert accused(advice) == {fault} - {*trainings.SOUND}
    for one in advice:
        assert not one.figures or any(c.isdigit() for c in one.text)
        assert all(isinstance(v, (int, float)) for v in one.figures.values())
    if fault in LAYERS:
        (one,) = advice
        assert one.layer == LAYERS[fault]
        assert repr(one.layer) in one.text


def test_what_is_not_known_is_not_judged():
    readings, fit = recorded("mlp", "rate_too_high")
    bare = [
        dataclasses.replace(r, figures={}, by_variable={}) for r in readings
    ]
    unknown = FitRecord(losses=fit.losses, first_loss=fit.first_loss)
    assert advise(bare, unknown) == []
    assert advise([], fit) == []
    assert advise(readings, FitRecord()) == []


def test_a_loss_that_is_not_finite_is_named():
    readings, fit = recorded("mlp", "sound")
    losses = (*fit.losses[:-1], math.nan)
    (one,) = advise(readings, dataclasses.replace(fit, losses=losses))
    assert one.name == "rate_too_high"
    assert f"nan after {readings[-1].step} updates" in one.text


# The batch size and when to stop, from made-up readings.


def made(snr, evidence=-1.0, n=64, count=4):
    figures = {"gradient_snr": snr, "gradient_early_stopping": evidence}
    norms = {"norm": (1.0,)}
    return [
        HealthReading(k, n, figures, norms, ("dense/kernel",))
        for k in range(count)
    ]


def sound(**more):
    losses = more.pop("losses", (1.0, 0.5, 0.3, 0.2))
    return FitRecord(losses=losses, first_loss=2.0, **more)


def test_the_noise_scale_is_averaged_by_the_way_that_updates_go():
    """The harmonic mean: noise scales of 32 and 96 with 64 samples."""
    readings = [*made(2.0, count=2), *made(2 / 3, count=2)]
    assert evidence.noise_scale(readings) == pytest.approx(48)
    assert evidence.noise_scale(made(-0.1)) is None


@pytest.mark.parametrize(
    ("snr", "advised"), [(1.0, 16), (0.5, 32), (0.51, 16), (16.0, 1)]
)
def test_the_advised_batch_is_the_largest_within_a_quarter(snr, advised):
    assert evidence.advised_batch_size(made(snr)) == advised


@pytest.mark.parametrize(
    ("size", "optimizer", "expected"),
    [
        (129, "SGD", ["batch_too_large"]),
        (256, "Adam", ["batch_too_large"]),
        (128, "SGD", []),
        (8, "SGD", []),
        (7, "SGD", ["batch_too_small"]),
        (None, "SGD", []),
    ],
)
def test_a_batch_far_from_the_noise_scale_is_told(size, optimizer, expected):
    """The rate of Adam goes with the root."""
    advice = advise(made(1.0), sound(batch_size=size, optimizer=optimizer))
    assert names(advice) == expected
    assert not accused(advice)
    if advice:
        assert advice[0].figures["noise_scale"] == 64
        assert "Batches of 16 take 1.25" in advice[0].text
        rate = (16 / size) ** (0.5 if optimizer == "Adam" else 1)
        assert f"rate by {rate:.2g}." in advice[0].text


def test_no_batch_is_advised_where_all_samples_agree():
    """As with targets far from 0: batches of one sample would help nobody."""
    fit = sound(batch_size=64, optimizer="Adam", target_moments=(5.0, 1.0))
    (one,) = advise(made(100.0), fit)
    assert one.name == "samples_agree"
    assert "0.64 samples" in one.text
    assert "atches" not in one.text


@pytest.mark.parametrize(
    "fault", ["rate_too_high", "rate_too_low", "labels_unrelated"]
)
def test_unscaled_targets_are_named_instead_of_what_follows(fault):
    readings, fit = recorded("mlp", fault)
    fit = dataclasses.replace(fit, target_moments=(-391.0, 43.0))
    (one,) = advise(readings, fit)
    assert one.name == "targets_not_scaled"
    assert one.is_fault
    assert "mean -391 and the standard deviation 43" in one.text


@pytest.mark.parametrize("snr", [100.0, 4.0])
def test_no_batch_is_advised_while_targets_are_not_scaled(snr):
    far = sound(batch_size=1024, target_moments=(-391.0, 43.0))
    (one,) = advise(made(snr), far)
    assert (one.name, one.is_fault) == ("targets_not_scaled", False)
    near = sound(batch_size=1024, target_moments=(0.0, 1.0))
    assert "targets_not_scaled" not in names(advise(made(snr), near))


@pytest.mark.parametrize(
    ("evidence", "losses", "told"),
    [
        (0.2, (1.0, 0.5, 0.3, 0.2), "does not stand out of the noise"),
        (-0.2, (0.3, 0.4, 0.5, 0.6), "after 0 updates"),
        (-0.2, (0.3, 0.4, 0.5, 0.45), None),
        (-0.2, (0.3, 0.301, 0.302, 0.303), None),
    ],
)
def test_when_to_stop_is_told(evidence, losses, told):
    advice = advise(made(1.0, evidence), sound(losses=losses))
    assert names(advice) == (["stop"] if told else [])
    assert not told or told in advice[0].text


def test_the_scale_of_inputs_that_change_their_sign():
    """Two samples, of inputs 100 and −100: the mean of gradients is zero."""
    slope = 3.0  # ‖gradient of the bias‖, in both samples
    kernel = np.array([1, -1]) * 100 * slope * 2  # of four inputs
    moments = {
        "norm": (0.0, slope),
        "variance": (kernel.var(ddof=1), 0.0),
    }
    names = "dense/kernel", "dense/bias"
    reading = HealthReading(1, 2, {}, moments, names)
    fit = sound(input_scale=100.0, shapes=((4, 3), (3,)))
    (one,) = advise([reading], fit)
    assert one.name == "inputs_not_normalised"
    assert one.figures["layer_scale"] == pytest.approx(100)


# What is noted of a fit.


def record(model, x, y, sample_weight=None):
    batch = [
        None if p is None else tf.constant(p) for p in (x, y, sample_weight)
    ]
    recorder = FitRecorder(model, batch, 8)
    recorder.record_reading(1.0)
    return recorder.record()


def test_targets_are_measured_where_they_are_what_the_output_is():
    y = np.array([100.0, 300.0, 100.0, 300.0])
    model = compiled(net(shape=(4,), units=1))
    assert record(model, np.eye(4), y).target_moments == (200.0, 100.0)
    classes = net(shape=(4,), units=900)
    compiled(classes, loss="sparse_categorical_crossentropy")
    assert record(classes, np.eye(4), y).target_moments == ()


def classifier(**loss):
    model = net(
        layers.Dense(5, name="one"),
        layers.Dropout(0.5),
        layers.LayerNormalization(name="norm"),
        layers.Dense(3, name="two", kernel_regularizer="l2"),
        shape=(4,),
        units=None,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(True, **loss)
    return compiled(model, loss=loss, optimizer="adam")


def batch(n=12):
    return normal(n, 4), integers(3, n)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "mean"])
def test_only_a_sum_is_taken_for_one(reduction, weighted):
    x, y = batch()
    weights = np.arange(12.0, dtype="float32") if weighted else None
    fit = record(classifier(reduction=reduction), x, y, weights)
    advice = advise(made(1.0), fit)
    assert ("loss_is_a_sum" in names(advice)) == (reduction == "sum")


def test_a_record_leaves_the_model_as_it_was():
    model, (x, y) = classifier(), batch()
    before = weights_of(model)
    fit = record(model, x, y)
    assert_equal(model, before)
    assert fit.optimizer == "Adam"
    assert fit.learning_rates == pytest.approx((1e-3,))
    assert fit.shapes[0] == (4, 5)
    assert fit.input_scale == pytest.approx(np.sqrt(np.mean(x**2)))
    assert len(fit.label_losses) == 100


def test_layers_are_told_by_whether_training_has_moved_them():
    model, (x, y) = classifier(), batch()

    def told(kind):
        paths = getattr(record(model, x, y), kind)
        return [path.rpartition("/")[2] for path in paths]

    assert told("untrained") == ["one", "norm", "two"]
    model.fit(x, y, verbose=0)
    assert told("trained_before") == ["one", "norm", "two"]
    model.get_layer("two").trainable = False
    assert not told("untrained_frozen")
    model.get_layer("two").bias.assign([0, 0, 0])
    assert told("untrained_frozen") == ["two"]


def test_what_is_set_from_outside_is_not_taken_for_frozen():
    model, (x, y) = classifier(), batch()
    model.get_layer("two").trainable = False
    recorder = FitRecorder(model, (tf.constant(x), tf.constant(y), None))
    model.get_layer("two").bias.assign([1, 2, 3])
    assert not recorder.record().untrained_frozen


def test_the_bias_of_an_lstm_is_made_of_zeros_and_ones():
    model = compiled(net(layers.LSTM(2), shape=(3, 4), units=None))
    fit = record(model, np.ones((4, 3, 4), "f4"), np.ones((4, 2), "f4"))
    assert not fit.trained_before
    assert len(fit.untrained) == 1


class Own(keras.Model):
    """Has a loss of its own."""

    def compute_loss(self, x=None, y=None, y_pred=None, *rest, **more):
        return keras.ops.mean(y_pred**2)


def test_whole_numbers_and_losses_without_labels_are_served():
    table = layers.Embedding(5, 2)
    model = net(table, shape=(3,), dtype="int32", units=None, cls=Own)
    fit = record(compiled(model, loss=None), np.ones((4, 3), "int32"), None)
    assert fit.input_scale is None
    assert fit.label_losses == ()
    assert fit.trained_before == fit.untrained == ()


def test_scaled_inputs_behind_a_normalisation_are_sound():
    x, y = batch()
    model = net(layers.Rescaling(1e-3), shape=(4,))
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    compiled(model, loss=loss, rate=0.01)
    watch = kpg.callbacks.GradientVariance((1000 * x, y), instruments="all")
    model.fit(1000 * x, y, verbose=0, callbacks=[watch])
    assert not watch.advice


# Whole trainings: task, fault, seed, epochs.

TASKS, FAULTS = list(trainings.TASKS), trainings.FAULTS
SHORT = ["rate_too_high", "rate_too_low", "layer_dead"]
SHORT += ["inputs_not_normalised", "loss_is_a_sum"]
QUICK = [("mlp", fault, 1, 1) for fault in SHORT]
QUICK += [("mlp", "labels_unrelated", 1, 5)]
ANOTHER = [(TASKS[k % 3], fault, 10, 6) for k, fault in enumerate(FAULTS)]
#: Twenty seeds, which the thresholds have not seen, on three tasks.
SOUND = [(TASKS[seed % 3], "sound", seed, 6) for seed in range(10, 30)]


@pytest.mark.parametrize(
    ("task", "fault", "seed", "epochs"),
    few([*QUICK, *ANOTHER, *SOUND], QUICK, SOUND[:6]),
)
def test_a_training_is_accused_of_its_fault_alone(task, fault, seed, epochs):
    advice, *_ = trainings.watched(task, fault, seed, epochs)
    assert accused(advice) == {fault} - {"sound"}
