"""Each advice: a pipeline that calls for it, and what following it brings."""

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.analysis.pipelines import stall_causes
from keras_pergrad.analysis.pipelines.advice_table import RULES, advise
from keras_pergrad.analysis.pipelines.pipeline_facts import gather
from keras_pergrad.analysis.pipelines.tfdata_model import (
    RunningPipeline,
    RunningStage,
)
from keras_pergrad.callbacks import DataStall
from tests.analysis.pipelines import slow_data
from tests.analysis.pipelines.slow_data import PARALLEL, as_batch, numbers
from tests.callbacks import recorded_stalls
from tests.callbacks.stall_truth import (
    BATCH,
    Clock,
    Loader,
    TimedStepModel,
    no_hidden_prefetch,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]

# For each rule: words of its message, data before and after following it.
CASES = {
    "prefetch": (
        "dataset.prefetch(tf.data.AUTOTUNE)",
        lambda _: slow_data.generated_plainly(),
        lambda _: slow_data.generated_plainly().prefetch(tf.data.AUTOTUNE),
    ),
    "parallel map": (
        "dataset.map(call, num_parallel_calls=",
        lambda _: slow_data.serial_map(),
        lambda _: slow_data.parallel_map(),
    ),
    "from_generator": (
        "`from_generator` runs in one Python thread",
        lambda _: slow_data.generated(),
        lambda _: slow_data.loaded_by_number(),
    ),
    "few workers": (
        "dataset.workers = ",
        lambda _: slow_data.py_dataset(),
        lambda _: slow_data.py_dataset(workers=4),
    ),
    "python generator": (
        "class Data(keras.utils.PyDataset)",
        lambda _: slow_data.python_generator(),
        lambda _: slow_data.py_dataset(workers=4),
    ),
    "num_workers": (
        "drop_last=loader.drop_last, num_workers=",
        lambda _: slow_data.torch_loader(),
        lambda _: slow_data.torch_loader(num_workers=2),
    ),
    "cache": (
        "dataset.cache()",
        lambda _: slow_data.computed(),
        lambda _: slow_data.computed().cache(),
    ),
    "unordered": (
        "options.deterministic = False",
        lambda _: slow_data.in_bursts(deterministic=True),
        lambda _: slow_data.in_bursts(deterministic=False),
    ),
    "shuffle after batch": (
        "`shuffle` stands after `batch`",
        lambda _: slow_data.shuffled(late=True),
        lambda _: slow_data.shuffled(late=False),
    ),
    "tiny reads": (
        "reads 16 bytes at a time",
        lambda folder: slow_data.read_lines(folder, buffer_size=16),
        lambda folder: slow_data.read_lines(folder),
    ),
}
# A generator lasts one epoch. For the others the second one counts: tracing
# gives a pipeline time to run ahead, and a cache must be filled.
EPOCHS = {"python generator": 1}
# Where the data computes instead of sleeping, or half of it is there before
# the first step, the step itself takes next to nothing; so too where a busy
# machine must not make the step of the one epoch longer than the loading.
STEPS = dict.fromkeys(
    ("cache", "tiny reads", "shuffle after batch", "python generator"), 0
)


#: In test_planted_faults.py, in test_grain.py, and below.
ELSEWHERE = (
    *("python map", "batch first", "interleave", "tiny files", "thread pool"),
    *("cache after random augmentation", "shuffle buffer", "parallel reads"),
    *("too many workers", "threads that compute"),
    *("grain read threads", "grain processes", "too many workers"),
    "prefetch to device",
)


class Case:
    """One rule, and its pipelines."""

    def __init__(self, name, folder):
        self.name = name
        self.words, before, after = CASES[name]
        self.before = lambda: before(folder)
        self.after = lambda: after(folder)
        self.settings = {
            "epochs": EPOCHS.get(name, 2),
            "step": STEPS.get(name, 0.01),
        }
        self.running = working(RUNNING[name]) if name in RUNNING else None

    def fires_on(self, data):
        """Without running it, on what it would measure before."""
        times = {"burst_ms": 16.0, "first_batch_ms": 1e3}
        facts = gather(data, None, 20.0, 10.0, **times)
        facts.running = self.running
        return self.name in [given.name for given in advise(facts)]


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    if request.param == "num_workers":
        pytest.importorskip("torch.utils.data")
    return Case(request.param, tmp_path)


def fit(data, epochs=1, step=0.003):
    model = TimedStepModel(Clock(), step)
    model.compile("sgd", "mse", jit_compile=False)
    stall = DataStall()
    model.fit(data, epochs=epochs, verbose=0, callbacks=[stall])
    return stall


def message_of(stall):
    """On one line: causes are wrapped."""
    return " ".join((stall.message or "").split())


def names(data, wait_ms, step_ms, **times):
    facts = gather(data, None, wait_ms, step_ms, **times)
    return [given.name for given in advise(facts)]


# Stages that do all the work, as TensorFlow would name them.
RUNNING = {
    "prefetch": "FlatMap",
    "parallel map": "MapAndBatch",
    "from_generator": "FlatMap",
    "cache": "Map",
}
# What would be measured of any of the pipelines.
STALL = {
    "wait_ms": 20.0,
    "step_ms": 10.0,
    "wait_p50_ms": 4.0,
    "first_batch_s": 1.0,
}


def working(name):
    """A pipeline in which one stage does all the work."""
    return RunningPipeline([RunningStage(name, 1.0)])


def test_every_rule_has_a_case():
    rules = [rule.name for table in RULES.values() for rule in table]
    assert sorted([*CASES, *ELSEWHERE]) == sorted(rules)


def test_advice_is_given_once_and_not_where_it_was_followed(
    case, capsys, monkeypatch
):
    work = dict.fromkeys([RUNNING.get(case.name), "MapAndBatch"], 1.0)
    recorded_stalls.say(monkeypatch, STALL, work=work)
    stall = fit(case.before(), epochs=case.settings["epochs"], step=0)
    assert case.words in message_of(stall), stall.reports
    assert capsys.readouterr().out.count(f"{stall.message}\n") == 1
    assert case.fires_on(case.before())
    assert not case.fires_on(case.after())


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
    monkeypatch, device, copy_ms, gain
):
    monkeypatch.setattr(stall_causes, "accelerator", lambda: device)
    facts = gather(tf.data.Dataset.range(9), None, 0.0, 10.0, copy_ms=copy_ms)
    gains = {advice.name: advice.gain_ms for advice in advise(facts)}
    assert gains.get("prefetch to device") == gain


@pytest.mark.timing
def test_following_the_advice_cuts_the_wait(case):
    stall = fit(case.before(), **case.settings)
    followed = fit(case.after(), **case.settings)
    figure = "wait_ms"
    if case.name == "shuffle after batch":
        figure = "first_batch_s"  # it promises no more than that
    before, after = (getattr(s.reports[-1], figure) for s in (stall, followed))
    print(f"{case.name}: {figure} {before:.4g} -> {after:.4g}")
    assert after < 0.7 * before
    assert case.words not in message_of(followed)


FINE = {
    "dataset": lambda: numbers().batch(4).map(as_batch, **PARALLEL),
    "float32": lambda: np.zeros((64, 3), "float32"),
    # Keras converts such arrays once, before training: nothing to gain.
    "float64": lambda: np.zeros((64, 3)),
    "PyDataset": lambda: Loader(lambda i: BATCH, 16),
    "generator": lambda: (BATCH for _ in range(16)),
}


@pytest.mark.parametrize("kind", FINE)
def test_a_pipeline_that_is_fine_gets_no_message(kind, monkeypatch):
    recorded_stalls.say(monkeypatch, {"wait_ms": 0.3, "step_ms": 50.0})
    data = FINE[kind]()
    model = TimedStepModel(Clock(), 0)
    model.compile("sgd", "mse", jit_compile=False)
    stall = DataStall()
    arrays = isinstance(data, np.ndarray)
    y, batch_size = (data[:, :1], 4) if arrays else (None, None)
    model.fit(data, y, batch_size=batch_size, verbose=0, callbacks=[stall])
    assert stall.reports[0].steps == 16
    assert stall.message is None


@pytest.mark.parametrize(
    ("workers", "cpu_ms", "advised"),
    [
        (2, 1.0, "dataset.workers = 36"),  # 2 · 2 · ⌈(15 + 2) / 2⌉
        (2, None, None),  # perhaps they compute
        (2, 40.0, "dataset.use_multiprocessing = True"),
        (64, 1.0, None),  # as many as are worth it
    ],
)
def test_workers_that_sleep_are_too_few(workers, cpu_ms, advised):
    data = Loader(lambda i: BATCH, 16, workers=workers)
    facts = gather(data, None, 15.0, 2.0, cpu_ms=cpu_ms)
    given = [a.code for a in advise(facts) if a.name != "too many workers"]
    assert given == ([] if advised is None else [advised])


def test_a_buffer_of_usual_size_is_no_tiny_read(tmp_path):
    fine = slow_data.read_lines(tmp_path, buffer_size=4096)
    assert "tiny reads" not in names(fine, 1.0, 1.0)


def test_unordered_needs_bursts_and_a_shuffle():
    data = slow_data.in_bursts(deterministic=True)
    assert "unordered" in names(data, 5.0, 1.0, burst_ms=4.0)
    assert "unordered" not in names(data, 5.0, 1.0, burst_ms=0.1)
    in_order = slow_data.parallel_map()
    assert "unordered" not in names(in_order, 5.0, 1.0, burst_ms=4.0)


@pytest.mark.parametrize(
    ("passes", "steps", "change", "given"),
    [
        (1, 16, lambda data: data, False),
        (2, 16, lambda data: data, True),
        (None, 16, lambda data: data, True),
        (3, 4, lambda data: data, False),  # three quarters of a pass
        (8, 4, lambda data: data, True),
        (1, 32, lambda data: data.repeat(2), True),
        (1, 32, lambda data: data.repeat(2).map(lambda x, y: (x, y)), False),
    ],
)
def test_a_cache_is_for_data_that_is_read_again(passes, steps, change, given):
    facts = gather(
        change(slow_data.computed()), None, 9, 1, passes=passes, steps=steps
    )
    facts.running = working("Map")
    assert ("cache" in [advice.name for advice in advise(facts)]) == given


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_no_cache_for_a_single_pass(method, monkeypatch):
    work = {"Map": 1.0, "MapAndBatch": 1.0}
    recorded_stalls.say(monkeypatch, STALL, work=work)
    model = TimedStepModel(Clock(), 0)
    model.compile("sgd", "mse", jit_compile=False)
    stall = DataStall()
    data = slow_data.computed()
    getattr(model, method)(data, verbose=0, callbacks=[stall])
    assert "`map(heavy)` handles one element" in message_of(stall)
    assert "dataset.cache()" not in message_of(stall)


@pytest.mark.parametrize("ms", [0.001, 0.02, 0.5])
def test_a_cast_of_each_batch_is_no_reason_against_a_cache(ms):
    """The map that works decides, on a fast machine and on a slow one."""
    running = [
        RunningStage("Prefetch", 0.0, elements=16),
        RunningStage("Map", 1e-3 * ms * 16, elements=16),
        RunningStage("MapAndBatch", 0.08, elements=16, ratio=4.0),
        RunningStage("Map", 0.04, elements=64),
        RunningStage("Range", 0.0, elements=64),
    ]
    facts = gather(slow_data.computed(), RunningPipeline(running), 9.0, 1.0)
    assert "cache" in [advice.name for advice in advise(facts)]


def test_cheap_maps_are_not_to_be_cached():
    names = ["Prefetch", "Map", "MapAndBatch", "Map", "Range"]
    work = [0.0, 1e-4, 1e-3, 5e-4, 0.0]
    stages = map(RunningStage, names, work, [16, 16, 16, 64, 64])
    facts = gather(slow_data.computed(), RunningPipeline(stages), 9.0, 1.0)
    facts.running[2].ratio = 4.0
    assert "cache" not in [advice.name for advice in advise(facts)]


def test_a_late_shuffle_that_starts_quickly_is_left_alone():
    data = slow_data.shuffled(late=True)
    late = "shuffle after batch"
    assert late in names(data, 10.0, 3.0, first_batch_ms=160.0)
    assert late not in names(data, 10.0, 3.0, first_batch_ms=20.0)


def test_no_prefetch_advice_where_it_would_hide_nothing():
    data = no_hidden_prefetch(numbers().batch(4))
    assert "prefetch" not in names(data, 100.0, 1.0)


def test_a_prefetch_before_repeat_is_seen(monkeypatch):
    data = slow_data.generated_plainly()
    assert "prefetch" in names(data.repeat(), 20.0, 10.0)
    data = data.prefetch(2).repeat().take(16)
    assert "prefetch" not in names(data, 20.0, 10.0)
    recorded_stalls.say(monkeypatch, STALL, work={"FlatMap": 1.0})
    stall = DataStall(warn_above=0)
    model = TimedStepModel(Clock(), 0)
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(data, verbose=0, callbacks=[stall])
    assert "from_generator" in message_of(stall)
    assert "does not end in a prefetch" not in message_of(stall)


def test_a_slow_pipeline_is_told_what_it_must_reach(monkeypatch):
    recorded_stalls.say(monkeypatch, STALL, work={"FlatMap": 1.0})
    message = message_of(fit(slow_data.generated().prefetch(2)))
    assert "the pipeline must give" in message
    assert "Slowest stage: from_generator" in message
    assert "prefetch(tf" not in message
