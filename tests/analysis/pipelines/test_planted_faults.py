"""Faults planted into pipelines: named first, and mended by what is printed."""

import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.analysis.pipelines.advice_table import advise
from keras_pergrad.analysis.pipelines.diagnosis import diagnose
from keras_pergrad.analysis.pipelines.pipeline_facts import gather
from keras_pergrad.analysis.pipelines.tfdata_model import (
    RunningPipeline,
    RunningStage,
)
from keras_pergrad.callbacks import DataStall
from tests.analysis.pipelines import planted_faults
from tests.analysis.pipelines.recorded import Epoch
from tests.analysis.pipelines.slow_data import as_batch
from tests.callbacks import recorded_stalls
from tests.callbacks.stall_truth import (
    BATCH,
    Clock,
    Loader,
    TimedStepModel,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


def fit(data, step=0.003, epochs=1, **settings):
    model = TimedStepModel(Clock(), step)
    model.compile("sgd", "mse", jit_compile=False)
    stall = DataStall(**settings)
    model.fit(data, epochs=epochs, verbose=0, callbacks=[stall])
    return stall


def printed_code(stall, name):
    """The lines to write of one advice, out of the message."""
    codes = re.findall(
        r"^     Write:  (.*\n(?: {13}.*\n)*)",
        stall.message + "\n",
        re.MULTILINE,
    )
    assert len(codes) == len(stall.advice)
    at = [advice.name for advice in stall.advice].index(name)
    return re.sub(r"^ {13}", "", codes[at], flags=re.MULTILINE)


def followed(fault, stall):
    """The pipeline after what is printed was written."""
    fault.names |= {"tf": tf, "np": np, "keras": keras}
    exec(printed_code(stall, fault.advice), fault.names)
    data = fault.names["dataset"]
    return fault.finish(data) if fault.finish else data


EVERY = (*planted_faults.FAULTS, *planted_faults.OTHERS)


def told(fault, when, data):
    """What is said of a planted fault's data, with its recorded figures."""
    epoch, stall = Epoch.of(fault, when), DataStall()
    facts, stall.reports = epoch.facts(data), [epoch.report]
    stall.message, stall.advice = diagnose(
        epoch.report, facts, stall.warn_above
    )
    return stall


@pytest.mark.slow
@pytest.mark.parametrize("plant", EVERY, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_named_and_mended_as_printed(plant, tmp_path):
    fault = plant(tmp_path)
    before = told(plant.__name__, "before", fault.data)
    assert_named(fault, before, first=plant in planted_faults.FAULTS)
    data = followed(fault, before)
    if isinstance(data, tf.data.Dataset):
        assert data.element_spec == fault.data.element_spec
    trained = fit(data, fault.step, fault.epochs)
    if "pool" in fault.names:  # of processes, which must not live on
        fault.names["pool"].shutdown()
    assert trained.reports[-1].steps > 0
    after = told(plant.__name__, "after", data)
    assert fault.advice not in [advice.name for advice in after.advice]


@pytest.mark.timing
@pytest.mark.parametrize("plant", EVERY, ids=lambda plant: plant.__name__)
def test_a_fault_costs_less_after_the_advice(plant, tmp_path):
    fault = plant(tmp_path)
    before = fit(fault.data, fault.step, fault.epochs)
    assert_named(fault, before, first=plant in planted_faults.FAULTS)
    after = fit(followed(fault, before), fault.step, fault.epochs)
    print(f"{fault.advice}: {_lost(before):.3g} -> {_lost(after):.3g} s")
    if fault.stalls:
        assert _lost(after) < 0.8 * _lost(before)


def assert_named(fault, stall, first):
    assert_short(stall)
    names = [advice.name for advice in stall.advice]
    assert fault.advice in names, stall.reports
    waits = [report.wait_ms for report in stall.reports]
    for advice in stall.advice:  # no gain but a measured one
        assert advice.gain_ms is None or advice.gain_ms <= max(waits)
    if first:
        assert names[0] == fault.advice


GUIDE = pathlib.Path(__file__).parents[3] / "docs/guides/slow_training.md"


def assert_short(stall):
    """Six lines an advice; a generator's as many as in the guide's own code."""
    code = GUIDE.read_text().split("```python\ndef batch(i):")[1]
    lines = code.split("train(")[0].split("\n")
    own = 1 + sum(bool(line.strip()) for line in lines)
    head, *parts = re.split(r"^  \d\. ", stall.message, flags=re.MULTILINE)
    assert head.startswith("DataStall: ")
    assert len(parts) == len(stall.advice)
    for advice, part in zip(stall.advice, parts):
        lines = part.split("  Verdict: ")[0].rstrip("\n").split("\n")
        if advice.name == "from_generator":
            assert len(advice.code.split("\n")) <= own
        else:
            assert len(lines) <= 6, part
    assert parts[-1].rsplit("\n", 1)[-1].startswith("  Verdict: ")


def test_files_that_are_read_in_turn_are_read_together_as_printed(tmp_path):
    files = [str(tmp_path / name) for name in "ab"]
    for path in files:
        with tf.io.TFRecordWriter(path) as writer:
            writer.write(path.encode())
    data = tf.data.TFRecordDataset(files)
    running = RunningPipeline([RunningStage("FlatMap", 1.0)])
    facts = gather(data, running, 20.0, 1.0)
    (advice,) = (a for a in advise(facts) if a.name == "parallel reads")
    scope = {"tf": tf, "files": files}
    exec(advice.code, scope)
    assert sorted(scope["dataset"].as_numpy_iterator()) == [
        path.encode() for path in files
    ]
    facts = gather(scope["dataset"], running, 20.0, 1.0)
    assert "parallel reads" not in [a.name for a in advise(facts)]
    alone = gather(tf.data.TFRecordDataset(files[:1]), running, 20.0, 1.0)
    assert "parallel reads" not in [a.name for a in advise(alone)]


def test_a_python_generator_becomes_a_pydataset_as_printed(monkeypatch):
    recorded_stalls.say(monkeypatch, {"wait_ms": 15.0, "step_ms": 3.0})
    asked_for = becomes_a_pydataset()[1]
    assert sorted(set(asked_for)) == list(range(48))


@pytest.mark.timing
def test_a_pydataset_of_several_workers_waits_less():
    (before, after), _ = becomes_a_pydataset()
    assert _lost(after) < 0.8 * _lost(before)


def becomes_a_pydataset():
    """Stalls before and after, and the batches that the printed code loads."""
    slow, asked_for = planted_faults.one_worker(None).data.load, []

    def load(i):
        asked_for.append(i)
        return slow(i)

    before = fit(load(i) for i in range(48))
    asked_for.clear()
    stalls = [DataStall(warn_above=1)]
    model = TimedStepModel(Clock(), 0.003)
    model.compile("sgd", "mse", jit_compile=False)
    fit_plain = model.fit
    model.fit = lambda data: fit_plain(data, verbose=0, callbacks=stalls)
    names = {"keras": keras, "batches": 48, "load": load, "model": model}
    exec(printed_code(before, "python generator"), names)
    assert stalls[0].reports[-1].steps == 48
    return (before, *stalls), asked_for


def _lost(stall):
    """Seconds of the epoch that went by waiting, with the first batch."""
    report = stall.reports[-1]
    return report.data_stall_s + report.first_batch_s


def _parallel():
    data = tf.data.Dataset.range(96)
    calls = tf.data.AUTOTUNE
    return data.map(lambda i: 2 * i, num_parallel_calls=calls)


SOUND = {
    "tf.data": lambda: _parallel().shuffle(32).batch(4).map(as_batch),
    "cached": lambda: _parallel().cache().shuffle(96).batch(4).map(as_batch),
    "interleaved": lambda: (
        tf.data.Dataset.range(4)
        .interleave(lambda i: _parallel().take(24), num_parallel_calls=2)
        .batch(4)
        .map(as_batch)
        .prefetch(tf.data.AUTOTUNE)
    ),
    "PyDataset": lambda: Loader(lambda i: BATCH, 24, workers=2),
    "generator": lambda: (BATCH for _ in range(24)),
}


@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_pipeline_gets_no_word(kind, capsys, monkeypatch):
    recorded_stalls.say(monkeypatch, {"wait_ms": 0.3, "step_ms": 31.0})
    stall = fit(SOUND[kind](), 0)
    (report,) = stall.reports
    assert report.steps == 24
    assert stall.advice == []
    assert stall.message is None
    assert "DataStall" not in capsys.readouterr().out
