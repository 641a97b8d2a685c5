"""One line at the end says whether the data is the bottleneck."""

import re

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.callbacks import DataStall
from keras_pergrad.stalls.accounting import StallReport
from keras_pergrad.stalls.diagnosis import diagnose
from keras_pergrad.stalls.facts import Facts
from keras_pergrad.stalls.profile import PipelineProfile, profile_pipeline
from tests.stalls import recorded_stalls
from tests.stalls.slow_data import PARALLEL, as_batch, serial_map
from tests.stalls.stall_truth import (
    BATCH,
    QUIET,
    batches,
    no_hidden_prefetch,
    of_generator,
    timed,
)

pytestmark = QUIET

N = 12


def mapped():
    data = tf.data.Dataset.range(4 * N).map(lambda i: 2 * i, **PARALLEL)
    return data.batch(4).map(as_batch).prefetch(2)


def arrays():
    return np.zeros((32 * N, 3)), np.zeros((32 * N, 1))


def generated():
    return of_generator(lambda i: BATCH, N)


SOUND = {"wait_ms": 0.1, "step_ms": 60.0}
STALL = {"wait_ms": 20.0, "step_ms": 1.0}


def sound(data, with_model):
    return SOUND if with_model else {**SOUND, "step_ms": 1}


def slow(data, with_model):
    """What is measured of a slow map, of its cache and of one batch."""
    if int(tf.data.Dataset.cardinality(data)) == tf.data.INFINITE_CARDINALITY:
        return {"wait_ms": 0.1, "step_ms": 1.0}
    cached = "Cache" in type(data).__name__
    return {"wait_ms": 0.2 if cached else 16.0, "step_ms": float(with_model)}


def profiled(monkeypatch, make, figures, *, with_model=True):
    work = {"MapAndBatch": 1.0}
    recorded_stalls.say_in_profile(monkeypatch, figures, work)
    model = timed(built=True) if with_model else None
    return profile_pipeline(make(), model, batches=N - 2)


@pytest.mark.parametrize(
    ("make", "figures", "with_model", "words"),
    [
        (mapped, sound, True, "not the bottleneck: the pipeline gives"),
        (arrays, sound, True, "not the bottleneck: the pipeline gives"),
        (
            serial_map,
            slow,
            True,
            "the bottleneck: the model .*best of the changes: cache",
        ),
        (serial_map, slow, False, "none without a model"),
    ],
)
def test_a_profile_ends_in_its_verdict(
    make, figures, with_model, *, words, monkeypatch
):
    profile = profiled(monkeypatch, make, figures, with_model=with_model)
    assert re.match(words, profile.verdict)
    assert str(profile).rstrip("\n").endswith(f"\nVerdict: {profile.verdict}.")
    if with_model:
        times = profile.pipeline_batches_per_s / profile.model_batches_per_s
        assert (times > 2) == (figures is sound)
    if figures is slow:
        assert profile.slowest_stage[0] == "map(call) + batch"
    marked = [row.name for row in profile.stages if row.is_bottleneck]
    stalls = figures is slow and with_model
    assert marked == ["map(call) + batch"] * stalls
    assert str(profile).count("<- bottleneck") == stalls


def rated(rate, share=0.0, wait_ms=0.0):
    """A report at so many batches a second, with such waits."""
    step_ms = 1e3 / rate - wait_ms
    return StallReport(101, 0.1 * wait_ms, share, step_ms=step_ms)


def measured(
    rate=3400.0, together=98.0, *, share=0.01, wait_ms=0.1, changes=(), spread=0
):
    """A profile of a model that takes 100 batches a second."""
    rates = {"prefetch": 99.0, "cache": 105.0, **dict(changes)}
    return PipelineProfile(
        alone=rated(rate),
        model=rated(100.0),
        together=rated(together, share, wait_ms),
        changes={name: rated(rate) for name, rate in rates.items()},
        spread=spread,
    )


CACHED = {"share": 0.3, "wait_ms": 4.0, "together": 70.0}
CACHED["changes"] = {"cache": 95.0, "prefetch": 70.0}
SLOWER = {"changes": {"prefetch": 98.0, "cache": 98.0}, "wait_ms": 5.0}


@pytest.mark.parametrize(
    ("rate", "figures", "words"),
    [
        (
            3400.0,
            {},
            "not the bottleneck: the pipeline gives 34 times what the model "
            "takes",
        ),
        (134.0, SLOWER, "gives 1.3 times what the model takes"),
        (4.7, SLOWER, "gives 4.7% of what the model takes"),
        (134.0, {**SLOWER, "share": 0.9}, "1.3 times what it takes"),
        (4.7, {**SLOWER, "share": 0.9}, "gives 4.7% of what it takes"),
        (
            3400.0,
            {**CACHED, "spread": 0.2},
            "; best of the changes: cache, 1.4 times",
        ),
        # A change within the spread of repeats is not named.
        (3400.0, {**CACHED, "spread": 0.4}, "gives 34 times what it takes"),
    ],
)
def test_how_many_times_the_pipeline_suffices(rate, figures, words):
    assert measured(rate, **figures).verdict.endswith(words)


def stalled(steps, seconds, **figures):
    """A report of steps of 10 ms that waited so long in all."""
    share = seconds / (seconds + 0.01 * (steps - 1))
    return StallReport(steps, seconds, share, step_ms=10.0, **figures)


@pytest.mark.parametrize(
    ("wait_ms", "words"),
    [(0.7, "nearly fast enough"), (1.3, "not fast enough beside the model")],
)
def test_a_fit_and_a_profile_of_one_pipeline_agree(wait_ms, words):
    """Alone it gives 6.1 times what the model takes: no bottleneck."""
    share = wait_ms / (wait_ms + 10)
    figures = {"wait_ms": wait_ms, "share": share}
    figures["changes"] = {"prefetch": 96.0, "cache": 90.0}
    profile = measured(610.0, 100 * (1 - share), **figures)
    assert profile.verdict == (
        f"{words}: the model waits {share:.0%} of the time; alone the pipeline "
        "gives 6.1 times what it takes"
    )
    report = stalled(101, wait_ms / 10)
    said = Facts(report, (BATCH[0] for _ in range(16))).verdict
    assert said.text.startswith(f"{words}: {share:.0%} of the time")


def test_the_spread_is_that_of_two_measurements(monkeypatch):
    waits = iter([16.0, 8.0])

    def figures(data, with_model):
        if with_model and "Prefetch" not in type(data).__name__:
            cached = "Cache" in type(data).__name__
            return {"wait_ms": 16.0 if cached else next(waits), "step_ms": 1.0}
        return slow(data, with_model)

    profile = profiled(monkeypatch, serial_map, figures)
    assert profile.spread == pytest.approx(17 / 9 - 1)
    assert profile.together_batches_per_s == pytest.approx(1e3 / 9)


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({}, None),
        (
            {"changes": {"cache": 160.0}},
            "`cache` gives 160 batches/s, more than the model alone (100)",
        ),
        (
            {"together": 130.0},
            "`together` gives 130 batches/s, more than the model alone",
        ),
        (
            {"rate": 50.0},
            "`together` gives 98 batches/s, more than the pipeline alone (50)",
        ),
    ],
)
def test_figures_that_contradict_each_other_are_named(figures, words):
    profile = measured(**figures)
    lines = str(profile).split("\n")
    warned = [line for line in lines if line.startswith("Warning: ")]
    assert len(profile.warnings) == len(warned) == (words is not None)
    for warning in profile.warnings:
        assert words in warning
        assert "measure again" in warning
    assert lines[-1].startswith("Verdict: ")


def fit(data, stall, **settings):
    timed().fit(data, callbacks=[stall], **settings)
    return stall


@pytest.mark.parametrize(
    ("figures", "make", "epochs", "words"),
    [
        ([SOUND], mapped, None, "not the bottleneck: "),  # evaluate
        ([SOUND], mapped, 3, "not the bottleneck: "),
        ([SOUND], generated, 2, "not the bottleneck: "),
        ([STALL], generated, 1, "the bottleneck: the pipeline must give"),
        ([STALL, SOUND], generated, 3, "not the bottleneck: "),
        ([SOUND], lambda: batches(1), 1, "unknown: it takes two batches"),
    ],
)
def test_a_run_ends_in_its_verdict(
    figures, make, epochs, *, words, capsys, monkeypatch
):
    recorded_stalls.say(monkeypatch, *figures)
    model, stall = timed(), DataStall()
    if epochs is None:
        model.evaluate(make(), callbacks=[stall])
    else:
        model.fit(make(), epochs=epochs, callbacks=[stall])
    printed = capsys.readouterr().out
    assert stall.verdict.startswith(words)
    assert printed.count(stall.verdict) == 1
    assert printed.count("DataStall:") == len(figures)
    if figures == [STALL]:
        assert printed.endswith(f"{stall.message}\n")
        assert stall.message.endswith(f"\n  Verdict: {stall.verdict}.")
    else:
        assert printed.endswith(f"\nDataStall: {stall.verdict}.\n")
    assert ("Verdict: the bottleneck" in str(stall.message)) == (
        STALL in figures
    )
    assert (stall.message is None) == (STALL not in figures)
    # The bar ends first, also where Keras does not know its length.
    bar = printed.partition("\nDataStall: ")[0].rsplit("\n", 1)[-1]
    report = stall.reports[0]
    assert f"{report.steps}/{report.steps}" in bar.rsplit("\r", 1)[-1]
    told = report.data_stall_s, report.data_stall_fraction
    assert (told == (None, None)) == (report.steps == 1)


@pytest.mark.parametrize("figures", [SOUND, STALL])
@pytest.mark.parametrize(
    ("verbose", "verbose_fit"), [(0, 0), (0, "auto"), (1, 0)]
)
def test_what_is_not_to_be_printed_is_kept(
    figures, verbose, verbose_fit, *, capsys, monkeypatch
):
    recorded_stalls.say(monkeypatch, figures)
    stall = fit(mapped(), DataStall(verbose=verbose), verbose=verbose_fit)
    printed = capsys.readouterr().out
    assert ("not the bottleneck" in stall.verdict) == (figures is SOUND)
    assert (stall.message is not None) == (figures is STALL)
    assert printed == "" or verbose or verbose_fit
    # A message is printed even where the bar is not.
    assert ("DataStall" in printed) == (verbose == 1 and figures is STALL)


def test_a_model_and_a_pipeline_that_wait_for_each_other(monkeypatch):
    figures = {"wait_ms": 20.0, "step_ms": 40.0}
    recorded_stalls.say(monkeypatch, figures, work={"FlatMap": 1.0})
    stall = fit(no_hidden_prefetch(generated()), DataStall(), verbose=0)
    last = stall.message.rsplit("\n", 1)[-1]
    assert "take turns" in last
    assert "the bottleneck" not in last


def test_without_its_advice_a_message_has_its_verdict(monkeypatch):
    recorded_stalls.say(monkeypatch, STALL)
    stall = fit(generated(), DataStall(advise=False), verbose=0)
    headline, last = stall.message.split("\n")
    assert "of the time went by waiting" in headline
    assert last == f"  Verdict: {stall.verdict}."


def test_a_stall_without_advice_is_to_be_measured_again():
    facts = Facts(stalled(11, 0.02), np.zeros(3))
    message, given = diagnose(facts, 0.1)
    assert given == []
    assert "keras_pergrad.diagnose.profile_pipeline(data, model)" in message


def paused(longest_ms, others_ms, steps=16):
    """A report of steps of 10 ms with one wait unlike the others, its facts."""
    seconds = 1e-3 * (longest_ms + others_ms * (steps - 2))
    longest = {"wait_longest_ms": longest_ms, "wait_longest_step": 7}
    report = stalled(steps, seconds, **longest)
    return report, Facts(report, (BATCH[0] for _ in range(16)))


@pytest.mark.parametrize("longest_ms", [100.0, 90_000.0])
def test_one_long_wait_is_the_machines_and_no_stall(longest_ms):
    report, facts = paused(longest_ms, others_ms=0.1)
    assert diagnose(facts, 0.05) == (None, [])
    assert facts.verdict.text == (
        f"not the bottleneck, but for one wait of {longest_ms:.0f} ms "
        "(step 7): 0.9% without it"
    )
    assert not report.stalls()
    assert report.stalls(0)  # whoever asks for all is told of all


def test_one_long_wait_hides_no_stall():
    _, facts = paused(90_000.0, others_ms=2.0)
    message, (advice,) = diagnose(facts, 0.05)
    assert advice.name == "python generator"
    assert "the bottleneck: the pipeline must give" in message


@pytest.mark.parametrize(
    ("figures", "make", "work", "stage"),
    [
        (SOUND, generated, {"FlatMap": 1.0}, "from_generator"),
        (STALL, generated, {"FlatMap": 1.0}, "from_generator"),
        (STALL, mapped, {"Map": 0.9, "Range": 0.1}, "map(as_batch)"),
    ],
)
def test_only_a_stage_that_holds_up_the_model_is_marked(
    figures, make, work, *, stage, capsys, monkeypatch
):
    recorded_stalls.say(monkeypatch, figures, work=work)
    stall = fit(make(), DataStall(warn_above=1, verbose=2))
    printed, stalls = capsys.readouterr().out, figures is STALL
    assert "ms/element" in printed
    assert "AUTOTUNE may use" in printed
    assert stage in [row.name for row in stall.stages]
    assert sum(row.share for row in stall.stages) == pytest.approx(1)
    assert ("<- bottleneck" in printed) == stalls
    assert any(row.is_bottleneck for row in stall.stages) == stalls
