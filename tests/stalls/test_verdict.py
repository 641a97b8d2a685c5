"""One line at the end says whether the data is the bottleneck."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.callbacks import DataStall
from keras_pergrad.stalls.accounting import StallReport
from keras_pergrad.stalls.diagnosis import diagnose, verdict
from keras_pergrad.stalls.facts import Facts, facts_of
from keras_pergrad.stalls.profile import PipelineProfile, profile_pipeline
from tests.stalls import recorded_stalls
from tests.stalls.slow_data import PARALLEL, as_batch, serial_map
from tests.stalls.stall_truth import (
    BATCH,
    SPEC,
    Clock,
    TimedStepModel,
    no_hidden_prefetch,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]

N = 12


def model(step):
    made = TimedStepModel(Clock(), step)
    made.compile("sgd", "mse", jit_compile=False)
    made(BATCH[0])
    return made


def mapped():
    data = tf.data.Dataset.range(4 * N).map(lambda i: 2 * i, **PARALLEL)
    return data.batch(4).map(as_batch).prefetch(2)


HEALTHY = {
    "dataset": mapped,
    "arrays": lambda: (np.zeros((32 * N, 3)), np.zeros((32 * N, 1))),
}


def last_line(text):
    return str(text).rstrip("\n").rsplit("\n", 1)[-1]


SOUND = {"wait_ms": 0.1, "step_ms": 60.0}
STALL = {"wait_ms": 20.0, "step_ms": 1.0}
IN_THE_MAP = {"MapAndBatch": 1.0}


def slow(data, with_model):
    """What is measured of a slow map, of its cache and of one batch."""
    if int(tf.data.Dataset.cardinality(data)) == tf.data.INFINITE_CARDINALITY:
        return {"wait_ms": 0.1, "step_ms": 1.0}
    cached = "Cache" in type(data).__name__
    return {"wait_ms": 0.2 if cached else 16.0, "step_ms": float(with_model)}


@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_pipeline_is_said_to_be_no_bottleneck(kind, monkeypatch):
    recorded_stalls.say_in_profile(
        monkeypatch,
        lambda data, with_model: (
            SOUND if with_model else {**SOUND, "step_ms": 1}
        ),
    )
    profile = profile_pipeline(HEALTHY[kind](), model(0), batches=N - 2)
    times = profile.pipeline_batches_per_s / profile.model_batches_per_s
    assert times > 2
    assert last_line(profile) == f"Verdict: {profile.verdict}."
    assert profile.verdict.startswith("not the bottleneck: the pipeline gives")
    assert "<- bottleneck" not in str(profile)
    assert not any(row.is_bottleneck for row in profile.stages)


def test_a_slow_pipeline_is_the_bottleneck_and_its_best_change_is_named(
    monkeypatch,
):
    recorded_stalls.say_in_profile(monkeypatch, slow, IN_THE_MAP)
    profile = profile_pipeline(serial_map(), model(0), batches=N - 2)
    assert last_line(profile).startswith("Verdict: the bottleneck: the model ")
    assert "best of the changes: cache" in profile.verdict
    assert str(profile).count("<- bottleneck") == 1
    (row,) = (row for row in profile.stages if row.is_bottleneck)
    assert row.name == "map(call) + batch"


def test_without_a_model_nothing_is_called_a_bottleneck(monkeypatch):
    recorded_stalls.say_in_profile(monkeypatch, slow, IN_THE_MAP)
    profile = profile_pipeline(serial_map(), batches=N - 2)
    assert last_line(profile).startswith("Verdict: none without a model")
    assert "<- bottleneck" not in str(profile)
    assert profile.slowest_stage[0] == "map(call) + batch"


def measured(**figures):
    """A profile of a model that takes 100 batches a second."""
    return PipelineProfile(
        **{
            "pipeline_batches_per_s": 3400.0,
            "model_batches_per_s": 100.0,
            "together_batches_per_s": 98.0,
            "wait_ms": 0.1,
            "stall_fraction": 0.01,
            "slowest_stage": None,
            "what_if": {"prefetch": (99.0, 0.1), "cache": (105.0, 0.0)},
            **figures,
        }
    )


def test_how_many_times_the_pipeline_suffices():
    profile = measured()
    assert profile.warnings == []
    assert profile.verdict == (
        "not the bottleneck: the pipeline gives 34 times what the model takes"
    )
    for rate, words in ((134.0, "1.3 times"), (4.7, "4.7% of")):
        slower = dataclasses.replace(
            profile, pipeline_batches_per_s=rate, what_if={}, wait_ms=200.0
        )
        assert f"gives {words} what" in slower.verdict
        waiting = dataclasses.replace(slower, stall_fraction=0.9)
        assert waiting.verdict.endswith(f"gives {words} what it takes")


@pytest.mark.parametrize(
    ("wait_ms", "words"),
    [(0.7, "nearly fast enough"), (1.3, "not fast enough beside the model")],
)
def test_a_fit_and_a_profile_of_one_pipeline_agree(wait_ms, words):
    """Alone it gives 6.1 times what the model takes: no bottleneck."""
    share = wait_ms / (wait_ms + 10)
    profile = measured(
        pipeline_batches_per_s=610.0,
        together_batches_per_s=100 * (1 - share),
        wait_ms=wait_ms,
        stall_fraction=share,
        what_if={"prefetch": (96.0, 0.4)},
    )
    assert profile.verdict == (
        f"{words}: the model waits {share:.0%} of the time; alone the pipeline "
        "gives 6.1 times what it takes"
    )
    report = StallReport(
        steps=101,
        data_stall_s=wait_ms / 10,
        data_stall_fraction=share,
        step_ms=10.0,
    )
    said = verdict(report, facts_of(report, (BATCH[0] for _ in range(16))))
    assert said.startswith(f"{words}: {share:.0%} of the time")


def test_a_change_within_the_spread_of_repeats_is_not_named():
    slow = {"stall_fraction": 0.3, "wait_ms": 4.0}
    figures = {"together_batches_per_s": 70.0, "what_if": {"cache": (95.0, 0)}}
    named = measured(**slow, **figures, spread=0.2)
    assert named.verdict.endswith("; best of the changes: cache, 1.4 times")
    unclear = measured(**slow, **figures, spread=0.4)
    assert "cache" not in unclear.verdict


def test_the_spread_is_that_of_two_measurements(monkeypatch):
    waits = iter([16.0, 8.0])

    def figures(data, with_model):
        if with_model and "Prefetch" not in type(data).__name__:
            cached = "Cache" in type(data).__name__
            return {"wait_ms": 16.0 if cached else next(waits), "step_ms": 1.0}
        return slow(data, with_model)

    recorded_stalls.say_in_profile(monkeypatch, figures)
    profile = profile_pipeline(serial_map(), model(0), batches=N - 2)
    assert profile.spread == pytest.approx(17 / 9 - 1)
    assert profile.together_batches_per_s == pytest.approx(1e3 / 9)


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        (
            {"what_if": {"cache": (160.0, 0.0)}},
            "`cache` gives 160 batches/s, more than the model alone (100)",
        ),
        (
            {"together_batches_per_s": 130.0, "what_if": {}},
            "`together` gives 130 batches/s, more than the model alone",
        ),
        (
            {"pipeline_batches_per_s": 50.0},
            "`together` gives 98 batches/s, more than the pipeline alone (50)",
        ),
    ],
)
def test_figures_that_contradict_each_other_are_named(figures, words):
    profile = measured(**figures)
    (warning,) = profile.warnings
    assert words in warning
    assert "measure again" in warning
    lines = str(profile).split("\n")
    assert [line for line in lines if line.startswith("Warning: ")]
    assert lines[-1].startswith("Verdict: ")


def generated():
    load = itertools.repeat(BATCH, N).__iter__
    return tf.data.Dataset.from_generator(load, output_signature=SPEC)


def fit(data, stall, **settings):
    model(0).fit(data, callbacks=[stall], **settings)
    return stall


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_a_sound_run_ends_in_one_line(method, capsys, monkeypatch):
    recorded_stalls.say(monkeypatch, SOUND)
    stall = DataStall()
    epochs = {"epochs": 3} if method == "fit" else {}
    getattr(model(0), method)(mapped(), callbacks=[stall], **epochs)
    printed = capsys.readouterr().out
    assert stall.message is None
    assert stall.verdict.startswith("not the bottleneck: ")
    assert printed.endswith(f"\nDataStall: {stall.verdict}.\n")
    assert printed.count("DataStall:") == 1


@pytest.mark.parametrize("quiet", [{"verbose": 0}, {}])
def test_where_nothing_is_to_be_printed_the_verdict_is_kept(
    quiet, capsys, monkeypatch
):
    recorded_stalls.say(monkeypatch, SOUND)
    stall = DataStall(verbose=0 if not quiet else 1)
    fit(mapped(), stall, **quiet)
    assert "not the bottleneck" in stall.verdict
    assert "DataStall" not in capsys.readouterr().out


def test_a_message_ends_in_the_verdict_which_comes_once(capsys, monkeypatch):
    recorded_stalls.say(monkeypatch, STALL)
    stall = fit(generated(), DataStall())
    printed = capsys.readouterr().out
    assert last_line(stall.message) == f"  Verdict: {stall.verdict}."
    assert stall.verdict.startswith("the bottleneck: the pipeline must give")
    assert printed.endswith(f"{stall.message}\n")
    assert printed.count(stall.verdict) == 1


def test_a_stall_that_is_over_ends_in_its_own_line(capsys, monkeypatch):
    recorded_stalls.say(monkeypatch, STALL, SOUND)
    stall = fit(generated().cache(), DataStall(), epochs=3)
    printed = capsys.readouterr().out
    assert "Verdict: the bottleneck" in stall.message
    assert stall.verdict.startswith("not the bottleneck")
    assert printed.endswith(f"\nDataStall: {stall.verdict}.\n")


def test_a_model_and_a_pipeline_that_wait_for_each_other(monkeypatch):
    figures = {"wait_ms": 20.0, "step_ms": 40.0}
    recorded_stalls.say(monkeypatch, figures, work={"FlatMap": 1.0})
    stall = fit(no_hidden_prefetch(generated()), DataStall(), verbose=0)
    assert "take turns" in last_line(stall.message)
    assert "the bottleneck" not in last_line(stall.message)


def test_without_its_advice_a_message_has_its_verdict(monkeypatch):
    recorded_stalls.say(monkeypatch, STALL)
    stall = fit(generated(), DataStall(advise=False), verbose=0)
    headline, last = stall.message.split("\n")
    assert "of the time went by waiting" in headline
    assert last == f"  Verdict: {stall.verdict}."


def test_a_stall_without_advice_is_to_be_measured_again():
    report = StallReport(
        steps=11,
        data_stall_s=0.02,
        data_stall_fraction=0.17,
        step_ms=10.0,
    )
    facts = Facts("arrays", None, wait_ms=2.0, step_ms=10.0)
    message, given = diagnose(report, facts, 0.1)
    assert given == []
    assert "keras_pergrad.diagnose.profile_pipeline(data, model)" in message


def paused(longest_ms, others_ms, steps=16):
    """A report of steps of 10 ms with one wait unlike the others."""
    stall = 1e-3 * (longest_ms + others_ms * (steps - 2))
    return StallReport(
        steps=steps,
        data_stall_s=stall,
        data_stall_fraction=stall / (stall + 0.01 * (steps - 1)),
        step_ms=10.0,
        wait_longest_ms=longest_ms,
        wait_longest_step=7,
    )


@pytest.mark.parametrize("longest_ms", [100.0, 90_000.0])
def test_one_long_wait_is_the_machines_and_no_stall(longest_ms):
    report = paused(longest_ms, others_ms=0.1)
    facts = facts_of(report, (BATCH[0] for _ in range(16)))
    assert diagnose(report, facts, 0.05) == (None, [])
    assert verdict(report, facts) == (
        f"not the bottleneck, but for one wait of {longest_ms:.0f} ms "
        "(step 7): 0.9% without it"
    )
    assert not report.stalls()
    assert report.stalls(0)  # whoever asks for all is told of all


def test_one_long_wait_hides_no_stall():
    report = paused(90_000.0, others_ms=2.0)
    facts = facts_of(report, (BATCH[0] for _ in range(16)))
    message, (advice,) = diagnose(report, facts, 0.05)
    assert advice.name == "python generator"
    assert "the bottleneck: the pipeline must give" in message


def test_one_batch_gives_no_verdict(capsys):
    one = tf.data.Dataset.from_tensors(BATCH)
    stall = fit(one, DataStall())
    assert stall.verdict.startswith("unknown: it takes two batches")
    assert capsys.readouterr().out.endswith(f"DataStall: {stall.verdict}.\n")


@pytest.mark.parametrize("figures", [SOUND, STALL])
def test_only_a_stage_that_holds_up_the_model_is_marked(
    figures, capsys, monkeypatch
):
    recorded_stalls.say(monkeypatch, figures, work={"FlatMap": 1.0})
    stall = fit(generated(), DataStall(warn_above=1, verbose=2))
    printed, stalls = capsys.readouterr().out, figures is STALL
    assert "ms/element" in printed
    assert ("<- bottleneck" in printed) == stalls
    assert any(row.is_bottleneck for row in stall.stages) == stalls


@pytest.mark.parametrize(("figures", "epochs"), [(SOUND, 2), (STALL, 1)])
def test_a_bar_of_unknown_length_ends_before_the_words(
    figures, epochs, capsys, monkeypatch
):
    recorded_stalls.say(monkeypatch, figures)
    data = generated()
    assert int(data.cardinality()) < 0
    stall = fit(data, DataStall(), epochs=epochs)
    lines = capsys.readouterr().out.split("\n")
    assert lines[-1] == ""
    (first, *_) = (at for at, line in enumerate(lines) if "DataStall" in line)
    assert lines[first].startswith("DataStall: ")
    assert f"{N}/{N}" in lines[first - 1].rsplit("\r", 1)[-1]
    assert lines[-2].endswith(f"{stall.verdict}.")
