"""Each advice: a planted fault that calls for it, mended as it is printed."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.callbacks import DataStall
from keras_pergrad.stalls import dataset_advice
from keras_pergrad.stalls.accounting import StallReport
from keras_pergrad.stalls.diagnosis import RULES, advise, diagnose
from keras_pergrad.stalls.facts import Facts
from keras_pergrad.stalls.running import RunningPipeline, RunningStage
from tests.privacy import tiny
from tests.stalls import planted_faults, recorded_stalls, slow_data
from tests.stalls.recorded import Epoch
from tests.stalls.recorded_stalls import lasting
from tests.stalls.slow_data import PARALLEL, as_batch, numbers
from tests.stalls.stall_truth import (
    BATCH,
    QUIET,
    Loader,
    no_hidden_prefetch,
    timed,
)

pytestmark = [*QUIET, pytest.mark.usefixtures("two_cores")]

EVERY = (*planted_faults.FAULTS, *planted_faults.OTHERS)
#: Rules that are tested below, or in test_grain.py.
ELSEWHERE = ("prefetch to device", "python generator", "num_workers")
STALL = {"wait_ms": 20.0, "step_ms": 10.0}


def fit(data, step=0.003, epochs=1, **settings):
    stall = DataStall(**settings)
    timed(step).fit(data, epochs=epochs, verbose=0, callbacks=[stall])
    return stall


def printed_code(message, advice, name):
    """The lines to write of one advice, out of the message."""
    codes = re.findall(
        r"^     Write:  (.*\n(?: {13}.*\n)*)", f"{message}\n", re.MULTILINE
    )
    assert len(codes) == len(advice)
    at = [each.name for each in advice].index(name)
    return re.sub(r"^ {13}", "", codes[at], flags=re.MULTILINE)


def followed(fault, stall):
    """The pipeline after what is printed was written."""
    fault.names |= {"tf": tf, "np": np, "keras": keras}
    exec(printed_code(stall.message, stall.advice, fault.advice), fault.names)
    data = fault.names["dataset"]
    return fault.finish(data) if fault.finish else data


def told(fault, when, data):
    """What is said of a planted fault's data, with its recorded figures."""
    epoch, stall = Epoch.of(fault, when), DataStall()
    facts = epoch.facts(data)
    stall.message, stall.advice = diagnose(facts, stall.warn_above)
    return stall


def given(
    data, wait_ms=20.0, step_ms=10.0, *, running=None, passes=None, **figures
):
    """The advice on data with these figures of a report, by name."""
    if isinstance(running, str):
        running = RunningPipeline([RunningStage(running, 1.0)])
    steps = figures.pop("steps", 101)
    report = lasting(StallReport(steps), wait_ms, step_ms, **figures)
    facts = Facts(report, data, running, passes=passes)
    return {advice.name: advice for advice in advise(facts)}


@pytest.mark.parametrize("plant", EVERY, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_named_and_mended_as_printed(plant):
    fault = plant()
    before = told(plant.__name__, "before", fault.data)
    names = [advice.name for advice in before.advice]
    assert fault.advice in names
    if plant in planted_faults.FAULTS:
        assert names[0] == fault.advice
    data = followed(fault, before)
    if isinstance(data, tf.data.Dataset):
        assert data.element_spec == fault.data.element_spec
        next(iter(data))  # it runs
    if "pool" in fault.names:  # of processes, which must not live on
        assert "mp.get_context('spawn')" in before.message
        fault.names["pool"].shutdown()
    after = told(plant.__name__, "after", data)
    assert fault.advice not in [advice.name for advice in after.advice]


def test_every_rule_has_a_fault():
    named = {plant().advice for plant in EVERY} | {*ELSEWHERE, "grain workers"}
    # Each name is asked for in a test, and a rule gives one alone.
    assert len(named) == sum(map(len, RULES.values())) <= 15


def test_a_message_is_printed_once_and_names_the_slowest_stage(
    capsys, monkeypatch
):
    recorded_stalls.say(monkeypatch, STALL, work={"MapAndBatch": 1.0})
    stall = fit(slow_data.serial_map(), 0, epochs=2)
    names = [advice.name for advice in stall.advice]
    assert names == ["parallel map", "python map"]  # nobody knows if it waits
    assert "Slowest stage: map(call) + batch, 100%" in stall.message
    assert "dataset.map(call, num_parallel_calls=" in stall.message
    assert capsys.readouterr().out.count(f"{stall.message}\n") == 1


@pytest.mark.parametrize(
    ("device", "copy_ms", "gain"),
    [
        ("GPU:0", 4.0, 4.0),
        ("GPU:0", 7.0, 3.0),  # the rest of the step hides no more
        ("GPU:0", 0.4, None),  # of a step of 10 ms
        ("GPU:0", None, None),
        ("METAL:0", 4.0, None),  # for which there are no iterators
        (None, 4.0, None),
    ],
)
def test_what_is_copied_ahead_hides_behind_the_step(
    monkeypatch, device, copy_ms, *, gain
):
    monkeypatch.setattr(dataset_advice, "accelerator", lambda: device)
    advice = given(tf.data.Dataset.range(9), 0.0, copy_ms=copy_ms)
    found = advice.get("prefetch to device")
    assert (found and found.gain_ms) == gain


def test_files_that_are_read_in_turn_are_read_together_as_printed(tmp_path):
    files = [str(tmp_path / name) for name in "ab"]
    for path in files:
        with tf.io.TFRecordWriter(path) as writer:
            writer.write(path.encode())
    advice = given(tf.data.TFRecordDataset(files), 20.0, 1.0, running="FlatMap")
    scope = {"tf": tf, "files": files}
    exec(advice["interleave"].code, scope)
    read = sorted(scope["dataset"].as_numpy_iterator())
    assert read == [path.encode() for path in files]
    for mended in (scope["dataset"], tf.data.TFRecordDataset(files[:1])):
        assert "interleave" not in given(mended, 20.0, 1.0, running="FlatMap")


def test_a_python_generator_becomes_a_pydataset_as_printed():
    code = given(BATCH for _ in range(3))["python generator"].code
    trained = []

    class Model:
        fit = trained.append

    names = {"keras": keras, "batches": 3, "load": str, "model": Model}
    exec(code, names)
    (data,) = trained
    assert [data[i] for i in range(len(data))] == ["0", "1", "2"]


def test_a_torch_loader_gets_workers_as_printed():
    torch = pytest.importorskip("torch")
    loader = slow_data.torch_loader()
    names = {"torch": torch, "loader": loader}
    exec(given(loader)["num_workers"].code, names)
    assert names["loader"].num_workers == 2
    assert names["loader"].batch_size == loader.batch_size
    assert "num_workers" not in given(names["loader"])
    # Each worker would give all of it; and batches that are drawn elsewhere.
    stream = type("Stream", (torch.utils.data.IterableDataset,), {})()
    sampler = torch.utils.data.BatchSampler(range(8), 4, False)
    for other in (
        torch.utils.data.DataLoader(stream, batch_size=4),
        torch.utils.data.DataLoader(loader.dataset, batch_sampler=sampler),
    ):
        assert "num_workers" not in given(other)


PROCESSES = "dataset.workers = 2\ndataset.use_multiprocessing = True"


@pytest.mark.parametrize(
    ("workers", "cpu_ms", "advised"),
    [
        (1, 1.0, ["dataset.workers = 18"]),
        (1, 40.0, [PROCESSES]),
        (2, 1.0, ["dataset.workers = 36"]),  # 2 · 2 · ⌈(15 + 2) / 2⌉
        (2, None, ["dataset.workers = 36", PROCESSES]),  # nobody knows
        (2, 40.0, [PROCESSES]),
        (32, 40.0, [PROCESSES]),
        (64, 1.0, []),  # as many as are worth it
    ],
)
def test_workers_by_what_they_do(workers, cpu_ms, advised):
    data = Loader(lambda i: BATCH, 16, workers=workers)
    advice = given(data, 15.0, 2.0, cpu_ms=cpu_ms).values()
    assert [a.code for a in advice] == advised


def same(data):
    return data


@pytest.mark.parametrize(
    ("passes", "steps", "change", "cached"),
    [
        (1, 16, same, False),
        (2, 16, same, True),
        (None, 16, same, True),
        (3, 4, same, False),  # three quarters of a pass
        (8, 4, same, True),
        (1, 32, lambda data: data.repeat(2), True),
        (1, 32, lambda data: data.repeat(2).map(lambda x, y: (x, y)), False),
    ],
)
def test_a_cache_is_for_data_that_is_read_again(
    passes, steps, change, *, cached
):
    data, times = change(slow_data.computed()), {"passes": passes}
    advice = given(data, 9.0, 1.0, running="Map", steps=steps, **times)
    assert ("cache" in advice) == cached


@pytest.mark.parametrize(
    ("cast_ms", "map_ms", "cached"),
    [
        (0.001, 5.0, True),  # the map that works decides
        (0.5, 5.0, True),
        (0.006, 0.02, False),  # it costs less than being called
    ],
)
def test_the_map_that_works_decides_whether_to_cache(cast_ms, map_ms, cached):
    stages = [
        ("Prefetch", 0.0, 16, {}),
        ("Map", cast_ms, 16, {}),
        ("MapAndBatch", map_ms, 16, {"ratio": 4.0}),
        ("Map", map_ms / 8, 64, {}),
        ("Range", 0.0, 64, {}),
    ]
    running = RunningPipeline(
        RunningStage(name, 1e-3 * ms * elements, elements=elements, **more)
        for name, ms, elements, more in stages
    )
    advice = given(slow_data.computed(), 9.0, 1.0, running=running)
    assert ("cache" in advice) == cached


def test_a_shuffle_that_starts_quickly_is_left_alone():
    data = slow_data.shuffled_batches()
    late = given(data, 10.0, 3.0, first_batch_s=0.16)["shuffle buffer"]
    assert "whole batches" in late.cause
    assert "came after 0.16 s" in late.cause
    assert "shuffle buffer" not in given(data, 10.0, 3.0, first_batch_s=0.02)


@pytest.mark.parametrize(
    ("make", "wait_ms", "prefetch"),
    [
        (lambda: no_hidden_prefetch(numbers().batch(4)), 20.0, True),
        # Of waits this long it would hide nothing.
        (lambda: no_hidden_prefetch(numbers().batch(4)), 200.0, False),
        (lambda: slow_data.generated_plainly().repeat(), 20.0, True),
        (lambda: slow_data.generated_plainly().prefetch(2), 20.0, False),
        (lambda: slow_data.generated_plainly().prefetch(2).repeat(), 20, False),
        (lambda: numbers().batch(4), 20.0, False),  # TensorFlow adds one
    ],
)
def test_prefetch_where_nothing_overlaps(make, wait_ms, prefetch):
    assert ("prefetch" in given(make(), wait_ms, 10.0)) == prefetch


def _parallel():
    return tf.data.Dataset.range(96).map(lambda i: 2 * i, **PARALLEL)


#: What `fit` gets: 24 batches.
FINE = {
    "tf.data": lambda: [_parallel().shuffle(32).batch(4).map(as_batch)],
    "cached": lambda: [_parallel().cache().shuffle(96).batch(4).map(as_batch)],
    # Keras converts such arrays once, before training: nothing to gain.
    "float64": lambda: [np.zeros((768, 3)), np.zeros((768, 1))],
    "PyDataset": lambda: [Loader(lambda i: BATCH, 24)],
    "generator": lambda: [(BATCH for _ in range(24))],
}


@pytest.mark.parametrize("kind", FINE)
def test_a_sound_pipeline_gets_no_word(kind, capsys, monkeypatch):
    recorded_stalls.say(monkeypatch, {"wait_ms": 0.3, "step_ms": 31.0})
    stall = DataStall()
    timed().fit(*FINE[kind](), verbose=0, callbacks=[stall])
    assert stall.reports[0].steps == 24
    assert (stall.advice, stall.message) == ([], None)
    assert "DataStall" not in capsys.readouterr().out


class Rows:
    """Examples by their numbers."""

    def __len__(self):
        return 40

    def __getitem__(self, k):
        return tiny.X[k], tiny.Y[k]


def four_rows(k):
    return tiny.X[4 * k : 4 * k + 4], tiny.Y[4 * k : 4 * k + 4]


#: Python's names of what examples are drawn from, and how.
DRAWN_FROM = {
    "arrays": (lambda: (tiny.X, tiny.Y), {}),
    "views": (lambda: (tiny.X, tiny.Y), tiny.VIEWS),
    "Rows": (lambda: (Rows(),), {}),
    "Loader": (lambda: (Loader(four_rows, 10),), {}),
    "tf.data.Dataset": (
        lambda: (tf.data.Dataset.from_tensor_slices((tiny.X, tiny.Y)),),
        {},
    ),
}


@pytest.mark.parametrize("source", DRAWN_FROM)
def test_stages_of_the_package_itself_are_not_advised_on(source, monkeypatch):
    recorded_stalls.say(monkeypatch, STALL, work={"FlatMap": 1.0})
    data, settings = DRAWN_FROM[source]
    training, stall = tiny.private(**settings), DataStall()
    net, batches = tiny.model(training), training.batches(*data())
    tiny.fit(net, training, callbacks=[stall], data=batches)
    assert stall.advice == []
    if source != "views":
        assert f"Slowest stage: the {source}, " in stall.message
    assert "drawn in one thread beside the step" in stall.message
    assert "from_generator" not in stall.message


#: Of a loading of 15 ms beside a step of 2 ms: processor time and time without
#: a core, in ms a batch; on a quiet machine, then on some with other work.
BUSY = {
    "waits": [(2.0, 0.1), (4.0, 12.0), (8.0, 30.0), (10.0, 0.0)],
    "computes": [(19.0, 0.1), (9.0, 9.0), (4.0, 14.0)],
}
#: What is wrong of it.
WRONG = {
    "waits": ("` computes in Python", "are threads and compute,"),
    "computes": ("It waits (a disk", " waits (a disk", "which wait (a disk"),
}
LOADINGS = {
    "Map": lambda: slow_data.python_map(slow_data.slow, numbers()),
    "ParallelMap": lambda: slow_data.python_map(
        slow_data.slow, numbers(), **PARALLEL
    ),
    "worker": lambda: Loader(lambda i: BATCH, 16),
    "workers": lambda: Loader(lambda i: BATCH, 16, workers=2),
}


@pytest.mark.parametrize("loading", LOADINGS)
@pytest.mark.parametrize("kind", BUSY)
def test_other_work_of_the_machine_brings_no_wrong_advice(kind, loading):
    for cpu_ms, ready_ms in BUSY[kind]:
        times = {"cpu_ms": cpu_ms, "ready_ms": ready_ms}
        advice = given(LOADINGS[loading](), 15.0, 2.0, running=loading, **times)
        text = "\n".join(f"{a.cause} {a.code}" for a in advice.values())
        assert not any(words in text for words in WRONG[kind])
        threads = advice.keys() & {"parallel map", "few workers"}
        processes = "Process" in text or "use_multiprocessing" in text
        assert threads if kind == "waits" else processes


@pytest.mark.timing
def test_a_mended_pipeline_waits_less():
    fault = planted_faults.slow_read()
    before = fit(fault.data, fault.step)
    assert before.advice[0].name == fault.advice
    after = fit(followed(fault, before), fault.step)
    waits = [stall.reports[0].data_stall_s for stall in (before, after)]
    assert waits[1] < 0.8 * waits[0]
