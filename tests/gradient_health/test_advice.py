"""Advice names each planted fault, and accuses no sound training."""

import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.gradient_health import evidence, premises
from keras_pergrad.gradient_health.advice import RULES, advise
from keras_pergrad.gradient_health.fit_record import FitRecord, FitRecorder
from keras_pergrad.runs import Reading
from keras_pergrad.runs.figures import FIGURES
from tests.gradient_health import trainings
from tests.gradient_health.health_models import OwnLoss, OwnStep
from tests.gradient_health.recorded import recorded
from tests.marks import few
from tests.models.making import assert_equal, compiled, integers, net, normal
from tests.models.making import weights as weights_of
from tests.privacy import tiny

layers = keras.layers


def names(advice):
    return [one.name for one in advice]


def accused(advice):
    return {one.name for one in advice if one.is_fault}


def test_rules_ask_figures_and_premises_that_exist():
    for rule in RULES:
        assert FIGURES.keys() >= set(rule.needs)
        assert all(hasattr(FitRecord(), name) for name in rule.premises)


# Recorded trainings.


@pytest.mark.parametrize("fault", [*trainings.FAULTS, *trainings.SOUND])
@pytest.mark.parametrize("task", trainings.TASKS)
def test_a_recorded_fault_is_named_alone(task, fault):
    """With its figures and its layer; what is sound is not accused."""
    advice = advise(*recorded(task, fault))
    assert accused(advice) == {fault} - {*trainings.SOUND}
    for one in advice:
        assert not one.figures or any(c.isdigit() for c in one.text)
        assert all(isinstance(v, (int, float)) for v in one.figures.values())
    if fault == "layer_dead":
        (one,) = advice
        assert one.layer == "inner"
        assert "'inner'" in one.text


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
    """One that was not finite before is no fault of the rate."""
    readings, fit = recorded("mlp", "sound")
    losses = (*fit.losses[:-1], math.nan)
    (one,) = advise(readings, dataclasses.replace(fit, losses=losses))
    assert one.name == "rate_too_high"
    assert f"nan after {readings[-1].step} updates" in one.text
    nan = (math.nan,) * len(readings)
    fit = dataclasses.replace(fit, first_loss=math.nan, losses=nan)
    assert "rate_too_high" not in names(advise(readings, fit))


# The batch size and when to stop, from made-up readings.


def made(snr, count=4):
    figures = {"gradient_snr": snr, "gradient_early_stopping": -1.0}
    return [
        Reading(
            step=k,
            samples=64,
            figures=figures,
            by_variable={"norm": np.ones(1, "float32")},
            variable_names=("dense/kernel",),
        )
        for k in range(count)
    ]


def sound(losses=(1.0, 0.5, 0.3, 0.2), **more):
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
    assert evidence.largest_batch_within(64 / snr) == advised


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
    """The rate of Adam goes with the root. Under clipping nothing is told."""
    fit = sound(batch_size=size, optimizer=optimizer)
    advice = advise(made(1.0), fit)
    assert names(advice) == expected
    assert not accused(advice)
    under_clipping = dataclasses.replace(fit, follows_mean=False)
    assert advise(made(1.0), under_clipping) == []
    if advice:
        assert advice[0].figures["noise_scale"] == 64
        assert "batches of 16 would take 1.2 times" in advice[0].text
        rate = (16 / size) ** (0.5 if optimizer == "Adam" else 1)
        assert f"multiply the learning rate by {rate:.2g}." in advice[0].text


def test_no_batch_is_advised_where_all_samples_agree():
    """As with targets far from 0: batches of one sample would help nobody."""
    assert advise(made(100.0), sound(batch_size=64, optimizer="Adam")) == []


def test_no_batch_is_advised_while_nothing_is_learned():
    """As with labels that no input tells."""
    for loss, expected in ((1.9, []), (0.5, ["batch_too_small"])):
        advice = advise(made(0.1), sound((loss,) * 4, batch_size=4))
        assert names(advice) == expected


# The premises: what updates follow, and which advice is given then.

#: Advice that is given under clipping, and that which noise leaves.
CLIPPED = {"loss_is_a_sum", "layer_dead", "rate_too_low"}
NOISY = CLIPPED - {"rate_too_low"}


@pytest.mark.parametrize("fault", trainings.FAULTS)
@pytest.mark.parametrize("task", trainings.TASKS)
def test_advice_is_given_only_where_its_premises_hold(task, fault):
    readings, fit = recorded(task, fault)

    def told(**facts):
        return accused(advise(readings, dataclasses.replace(fit, **facts)))

    clipped = told(follows_mean=False)
    if fault == "rate_too_high":
        # One update that replaces all weights shows by itself.
        largest = max(r.figures["gradient_update_ratio"] for r in readings)
        assert clipped == ({fault} if largest > 0.1 else set())
    else:
        assert clipped == {fault} & CLIPPED
    noisy = told(follows_mean=False, adds_noise=True)
    if fault == "rate_too_high":  # What it killed is seen on the probe.
        noisy -= {"layer_dead"}
    assert noisy == {fault} & NOISY


def clipped(norm):
    return kpg.Vectorized(kpg.ClippedMean(norm))


opt = keras.optimizers
SCALED = opt.LossScaleOptimizer
NOISY_MEAN = kpg.ClippedMean(1.0, noise_multiplier=1.0)
#: What most of these do: they differ in the first two.
MEAN, OTHER, NOISE = (True, False, 1), (False, False, 1), (False, True, 1)
#: Mode, optimizer → follows the mean, adds noise, calls an update.
UPDATES = {
    "keras.Model": (None, "sgd", MEAN),
    "batch": ("batch", "adamw", MEAN),
    "mean": ("vectorized", "adam", MEAN),
    "momentum": (None, opt.SGD(0.1, momentum=0.9), MEAN),
    "loss scale": (None, SCALED(opt.SGD(0.1)), MEAN),
    "small clip": (clipped(0.01), "adam", OTHER),
    "large clip": (clipped(1e6), "sgd", OTHER),
    "noise": (kpg.Vectorized(NOISY_MEAN), "adam", NOISE),
    "private": (tiny.private().gradient_mode, "adam", NOISE),
    "Gramian": (kpg.Vectorized("upgrad"), "sgd", OTHER),
    "accumulated": (kpg.Accumulated(steps=4), "sgd", (True, False, 4)),
    "accumulated, clipped": (
        kpg.Accumulated(steps=2, inner=clipped(1.0)),
        "sgd",
        (False, False, 2),
    ),
    "Keras accumulates": (
        None,
        opt.Adam(0.1, gradient_accumulation_steps=3),
        (True, False, 3),
    ),
    "by sample": (kpg.PerSample(updates="sample"), "sgd", OTHER),
    "clipnorm": (None, opt.SGD(0.1, clipnorm=1.0), OTHER),
    "clipvalue": (None, opt.Adam(clipvalue=1.0), OTHER),
    "global clipnorm inside": (
        None,
        SCALED(opt.SGD(0.1, global_clipnorm=1.0)),
        OTHER,
    ),
    "own step": ("batch", "sgd", OTHER),
}


@pytest.mark.parametrize("name", UPDATES)
def test_what_updates_follow_is_known(name):
    mode, optimizer, expected = UPDATES[name]
    model = net(cls=OwnStep if name == "own step" else keras.Model)
    model = compiled(model, mode, optimizer=opt.get(optimizer))
    facts = premises.facts_of_updates(model)
    found = [facts[k] for k in ("follows_mean", "adds_noise")]
    assert (*found, premises.calls_per_update(model)) == expected
    if "loss scale" in name:
        assert facts["optimizer"] == "SGD"
    assert facts["has_single_updates"] == (name != "by sample")


def test_a_rate_is_judged_at_the_largest_of_a_schedule():
    readings, fit = recorded("mlp", "rate_too_low")
    count, peak = len(readings), fit.rate
    decay = tuple(peak * 0.5**k for k in range(count))

    def told(rates, readings=readings):
        return advise(readings, dataclasses.replace(fit, learning_rates=rates))

    constant, fast = told((peak,) * count), told(decay)
    assert f"rate ({peak:.2g})" in constant[0].text
    assert fast == []  # at two of the readings alone the rate is high
    rising = tuple(peak * (k + 1) / count for k in range(count))
    assert told(rising) == []  # a schedule that has yet to come to its rate
    late = (*(0.1 * peak,) * 3, *(peak,) * (count - 3))
    (one,) = told(late)
    assert f"rate (at most {peak:.2g})" in one.text
    # A call that only accumulates moves nothing.
    nothing = {"gradient_alpha": -1.0, "gradient_update_ratio": 0.0}
    still = [reading.with_figures(nothing) for reading in readings]
    assert told((peak,) * count, still) == []


def test_a_rate_that_clipping_needs_is_no_fault():
    """A loss that clipping keeps high, at the rate that is best."""
    x, noise = normal(1500, 11), normal(1500, seed=2)
    y = (x @ normal(11, seed=1) + 2 * noise > 1.5).astype("float32")
    keras.utils.set_random_seed(0)
    parts = layers.Dense(32, "relu"), layers.Dense(1, "sigmoid")
    model = net(*parts, shape=(11,), units=None)
    loss, optimizer = "binary_crossentropy", keras.optimizers.Adam(0.02)
    model = compiled(model, clipped(0.5), loss, optimizer=optimizer)
    watch = kpg.callbacks.GradientVariance(
        (x[1200:], y[1200:]), instruments=("update_ratio", "distance")
    )
    advice, readings, fit = trainings.fit_watched(
        model, x[:1200], y[:1200], watch=watch, batch_size=64
    )
    assert advice == []
    # The same readings of a training by the mean gradient are a fault.
    fit = dataclasses.replace(fit, follows_mean=True)
    assert accused(advise(readings, fit)) == {"rate_too_high"}


# What is noted of a fit.


def record(model, x, y, *, sample_weight=None):
    parts = x, y, sample_weight
    batch = [None if p is None else tf.constant(p) for p in parts]
    recorder = FitRecorder(model, batch, batch_size=8)
    recorder.record_reading(1.0)
    return recorder.record


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


def batch():
    return normal(12, 4), integers(3, 12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "mean"])
def test_only_a_sum_is_taken_for_one(reduction, weighted):
    x, y = batch()
    weights = np.arange(12.0, dtype="float32") if weighted else None
    fit = record(classifier(reduction=reduction), x, y, sample_weight=weights)
    advice = advise(made(1.0), fit)
    assert ("loss_is_a_sum" in names(advice)) == (reduction == "sum")


def test_a_record_leaves_the_model_as_it_was():
    model, (x, y) = classifier(), batch()
    before = weights_of(model)
    fit = record(model, x, y)
    assert_equal(model, before)
    assert fit.optimizer == "Adam"
    assert fit.learning_rates == pytest.approx((1e-3,))
    norms = [np.linalg.norm(v) for v in model.trainable_variables]
    assert fit.weight_norms == pytest.approx(norms)
    assert fit.frozen_norm == 0


def test_whole_numbers_and_losses_without_labels_are_served():
    table = layers.Embedding(5, 2)
    model = net(table, shape=(3,), dtype="int32", units=None, cls=OwnLoss)
    fit = record(compiled(model, loss=None), np.ones((4, 3), "int32"), None)
    assert fit.first_loss == pytest.approx(np.mean(fit.half_losses))


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
QUICK = [("mlp", fault, 1, 1) for fault in FAULTS]
ANOTHER = [(TASKS[k % 3], fault, 10, 6) for k, fault in enumerate(FAULTS)]
#: Twenty seeds, which the thresholds have not seen, on three tasks.
SOUND = [(TASKS[seed % 3], "sound", seed, 6) for seed in range(10, 30)]


@pytest.mark.parametrize(
    ("task", "fault", "seed", "epochs"),
    few([*QUICK, *ANOTHER, *SOUND], QUICK, SOUND[:6]),
)
def test_a_training_is_accused_of_its_fault_alone(task, fault, seed, *, epochs):
    advice, *_ = trainings.watched(task, fault, seed, epochs=epochs)
    assert accused(advice) == {fault} - {*trainings.SOUND}
