"""Causes of a stall: when each row of advice applies.

A public function here is the `when` of one row. It looks at the `Facts` of
data of the row's kind and returns None: it does not apply, or the values that
the row's texts name.
"""

from keras_pergrad.keras_internals.data.sources import (
    batch_size,
    buffer_size,
    is_grain,
    read_threads,
    worker_processes,
)
from keras_pergrad.stalls.facts import cores
from keras_pergrad.stalls.stages import reads_files_in_turn
from keras_pergrad.stalls.stopwatch import accelerator, has_iterators

MAPS, BATCHES = ("Map", "ParallelMap"), ("Batch", "ParallelBatch")
ONE_BY_ONE = ("FlatMap", "Interleave")
FUSED_MAPS = ("MapAndBatch", "ParallelMapAndBatch")
LARGE_SHARE = 0.3  # a stage with less of the work is not the cause
# Handing one element from stage to stage takes 10 to 20 us (measured): a
# function that takes no longer costs less than being called.
CHEAP_MS = 0.03
#: Ops that take less time than being called, on a single small element.
SIMPLE_OPS = frozenset(
    {
        *("Placeholder", "_Arg", "_Retval", "NoOp", "Const", "Identity"),
        *("Cast", "Shape", "StridedSlice", "Reshape", "ExpandDims"),
        *("Squeeze", "Pack", "Unpack", "OneHot", "Neg", "Abs", "AddV2"),
        *("Add", "Sub", "Mul", "RealDiv", "FloorDiv", "FloorMod"),
        *("Maximum", "Minimum", "Square", "Sqrt", "StringLength"),
    }
)
# The share of the step, and the least time, of a copy worth a message.
LONG_COPY, LONG_COPY_MS = 0.05, 0.2
LONG_START = 4  # times the making of a batch, before the first one is there
MOST_WORKERS = 64
POOL = """
options = tf.data.Options()
options.threading.private_threadpool_size = {}
dataset = dataset.with_options(options)"""


def _optional_values(stage, **more):
    """Return the values of a stage for the texts; None without a stage."""
    return None if stage is None else _stage_values(stage, **more)


def _stage_values(stage, **more):
    name = stage.function or ""
    name = name if name.isidentifier() else "function"
    return {"stage": stage.label, "function": name, **more}


def _first(stages, condition):
    """Return the stage nearest to the end that meets a condition, or None."""
    return next((stage for stage in stages if condition(stage)), None)


def _places(facts, *kinds):
    return [at for at, stage in enumerate(facts.stages) if stage.kind in kinds]


def _parallel_calls(facts, waits):
    """Return how many parallel calls to write: many where they wait."""
    if not waits:
        return {"calls": "tf.data.AUTOTUNE", "pool": ""}
    threads = facts.threads_to_hide
    return {"calls": threads, "pool": POOL.format(threads)}


def _is_large_part(facts):
    """Return a function: whether a stage does a large part of the work."""
    return lambda stage: facts.share_of(stage) >= LARGE_SHARE


def _is_cheap(stage, facts):
    """Whether a map takes less time for an element than calling it does."""
    element_ms = facts.element_ms(stage)
    if stage.runs_python or element_ms is None:
        return False
    # With a few plain ops the call itself takes the time, on any machine.
    return element_ms < (10 * CHEAP_MS if stage.ops <= SIMPLE_OPS else CHEAP_MS)


def random_cache(facts):
    """Whether a random map stands before a cache, which keeps its draws."""
    for at in _places(facts, "Cache")[:1]:
        for stage in facts.stages[at:]:
            if stage.kind in MAPS and stage.is_random:
                return _optional_values(stage)
    return None


def no_prefetch(facts):
    """Whether nothing works while the model does."""
    gain = min(facts.wait_ms, facts.step_ms)
    # With a smaller gain it is simply too slow: little could be hidden.
    slow = gain < 0.1 * facts.wait_ms
    return None if facts.overlaps or slow else {"gain": gain}


def long_copy(facts):
    """Whether the copy of a batch to the device takes long."""
    copy, step = facts.copy_ms or 0.0, facts.step_ms
    if copy < max(LONG_COPY * step, LONG_COPY_MS):
        return None
    device = accelerator()
    if not has_iterators(device):
        return None
    gain = min(copy, max(step - copy, 0.0))
    return {"device": device, "copy": copy, "step": step, "gain": gain}


def late_shuffle(facts):
    """Whether a shuffle fills its buffer with much before a first batch."""
    shuffles, batches = _places(facts, "Shuffle"), _places(facts, *BATCHES)
    is_late = facts.first_batch_ms > LONG_START * facts.pipeline_ms
    if not is_late or not shuffles or not batches:
        return None
    at, batch = shuffles[0], batches[0]
    buffer = buffer_size(facts.stages[at].dataset)
    size = batch_size(facts.stages[batch].dataset)
    values = {
        "late": f"{facts.first_batch_ms / 1e3:.3g} s",
        "buffer": buffer or "buffer_size",
    }
    if at < batch:
        return values | {
            "content": "whole batches",
            "instead": "single samples, before `batch`",
            "then": f".batch({size or 'batch_size'})",
        }
    feeding_stage = facts.stages[at + 1]
    is_large = buffer and size and buffer >= LONG_START * size
    stage_values = _stage_values(feeding_stage, **values)
    if not is_large or feeding_stage.kind not in MAPS:
        return None
    return stage_values | {
        "content": f"results of `{feeding_stage.label}`",
        "instead": "what goes into it",
        "then": (
            f".map(\n    {stage_values['function']}, "
            "num_parallel_calls=tf.data.AUTOTUNE)"
        ),
    }


def python_map(facts):
    """Whether a map computes in Python, which takes turns."""
    python = [s for s in facts.stages if s.kind in MAPS and s.runs_python]
    stage, count = _first(python, _is_large_part(facts)), max(cores(), 2)
    if not facts.computes:
        return None
    return _optional_values(stage, count=count, calls=2 * count)


def generator(facts):
    """Whether a Python generator gives the elements."""
    stage = _first(facts.stages, lambda s: s.is_generator)
    work_share = facts.share("FlatMap", "Generator", "Interleave")
    if stage is None or (work_share is not None and work_share < LARGE_SHARE):
        return None
    return _parallel_calls(facts, facts.sleeps)


def cheap_map(facts):
    """Whether a map of single elements takes less than its calls."""
    for batched, stage in zip(facts.stages, facts.stages[1:]):
        if batched.kind not in BATCHES or stage.kind not in MAPS:
            continue
        size = batch_size(batched.dataset) or 0
        cheap = _is_cheap(stage, facts) and _is_large_part(facts)(stage)
        if size >= 16 and cheap and not stage.is_random:
            return _optional_values(stage, size=size)
    return None


def one_source_at_a_time(facts):
    """Whether files or shards are read one after the other."""
    stage = _first(
        facts.stages,
        lambda s: (
            reads_files_in_turn(s)
            or (s.kind in ONE_BY_ONE and not s.is_generator)
        ),
    )
    if stage is None or (facts.share(*ONE_BY_ONE) or 0.0) < LARGE_SHARE:
        return None
    if stage.is_reader:
        call = f"tf.data.{stage.kind}Dataset(\n    files, num_parallel_reads="
        return _optional_values(stage, pool="", call=f"{call}tf.data.AUTOTUNE)")
    # Reading waits for a disk or a network, unless it surely computes.
    values = _parallel_calls(facts, not facts.computes)
    cycle = f" cycle_length={values['calls']}," if values["pool"] else ""
    stage_values = _stage_values(stage, pool=values["pool"])
    call = (
        f"files.interleave(\n    {stage_values['function']}, "
        "num_parallel_calls="
        f"{values['calls']},{cycle} deterministic=False)"
    )
    return stage_values | {"call": call}


def too_few_calls(facts):
    """Whether a map's calls are in turn, or wait in too few threads."""
    serial = (stage for stage in facts.stages if stage.kind == "Map")
    stage = max(serial, key=facts.share_of, default=None)
    if stage is None or not _is_large_part(facts)(stage):
        return _too_few_threads(facts)
    if _is_cheap(stage, facts) or (stage.runs_python and facts.computes):
        return None  # threads would bring nothing, or take turns
    how = "handles one element at a time."
    if facts.sleeps:
        how += " It waits (a disk, a network): more threads than cores help."
    elif stage.runs_python:
        how += " It runs Python: threads help while it waits or frees the lock."
    return _optional_values(
        stage, how=how, **_parallel_calls(facts, facts.sleeps)
    )


def _too_few_threads(facts):
    parallel_maps = [s for s in facts.stages if s.kind == "ParallelMap"]
    pool = facts.data.options().threading.private_threadpool_size or 0
    if not facts.sleeps or pool > cores():
        return None
    how = (
        "waits (a disk, a network), and TensorFlow runs no more calls of it "
        f"than there are cores ({cores()})."
    )
    stage = _first(parallel_maps, _is_large_part(facts))
    return _optional_values(
        stage, how=how, **_parallel_calls(facts, waits=True)
    )


def no_cache(facts):
    """Whether each epoch repeats maps that give the same again."""
    places = _places(facts, *MAPS)
    maps = [facts.stages[at] for at in places]
    if not maps or _places(facts, "Cache"):
        return None
    if any(stage.is_random or stage.runs_python for stage in maps):
        return None  # not the same in every epoch, or nobody can know
    finite = int(facts.data.cardinality()) > 0
    if not finite or not _is_repeated(facts, places[0]):
        return None
    share = facts.share(*MAPS, *FUSED_MAPS) or 0.0
    # The map that works most decides: the last one may only cast a batch.
    if share < LARGE_SHARE or _is_cheap(max(maps, key=facts.share_of), facts):
        return None
    return _optional_values(
        maps[0], gain=min(facts.wait_ms, facts.pipeline_ms * share)
    )


def _is_repeated(facts, at):
    """Whether the elements of a stage of finite data are needed again."""
    repeats = any(stage.kind == "Repeat" for stage in facts.stages[:at])
    if facts.passes is None or repeats:
        return True
    # With `steps_per_epoch` an epoch can be only a part of a pass.
    batches = int(facts.data.cardinality())
    steps = batches if facts.steps is None else facts.steps
    return facts.passes * min(steps / batches, 1.0) >= 2


def few_workers(facts):
    """Whether a `PyDataset` has one worker, or too few for loads that sleep."""
    workers = facts.data.workers
    count, more, how = max(4, cores()), "", "in one thread"
    if facts.sleeps:
        count = min(max(workers, 1) * facts.threads_to_hide, MOST_WORKERS)
    if workers > 1:
        if not facts.sleeps or count <= workers:
            return None
        how = f"by {workers} workers, which wait (a disk, a network)"
    elif facts.computes:
        count = max(cores(), 2)
        more = "\ndataset.use_multiprocessing = True"
    elif not facts.sleeps:
        more = (
            "\n# and dataset.use_multiprocessing = True if it computes in "
            "Python"
        )
    name = type(facts.data).__name__
    return {"name": name, "how": how, "count": count, "more": more}


def computing_threads(facts):
    """Whether threads of a `PyDataset` compute."""
    threads = 0 if facts.data.use_multiprocessing else facts.data.workers
    if threads < 2 or not facts.computes:
        return None
    return {"threads": threads, "count": max(cores(), 2)}


def no_loader_workers(facts):
    """Whether a PyTorch loader loads in the training process."""
    loader = facts.data
    # Without a batch size it cannot be made again as it is printed, and each
    # worker of an iterable dataset would give all of it.
    kinds = [base.__name__ for base in type(loader.dataset).__mro__]
    if loader.batch_size is None or "IterableDataset" in kinds:
        return None
    # PyTorch warns of more workers than cores.
    return None if loader.num_workers else {"count": min(4, cores())}


def no_grain_workers(facts):
    """Whether Grain reads by few threads, or computes in them."""
    if worker_processes(facts.data):
        return None
    threads = read_threads(facts.data)
    needed_threads = max(facts.threads_to_hide, 16)
    map_data = "map_dataset"
    first = ""
    if is_grain(facts.data, "DataLoader"):
        # Keras 3.15 copies a DataLoader with functions that worker processes
        # cannot load (RecursionError): only datasets have workers.
        first = (
            "map_dataset = grain.MapDataset.source(source)\n"
            "for each in operations: map_dataset = map_dataset.apply(each)\n"
        )
    if not facts.computes and threads < (needed_threads if facts.sleeps else 8):
        how = f"in {threads or 'no'} thread(s) beside training."
        call = (
            ".to_iter_dataset(\n    "
            f"grain.ReadOptions(num_threads={needed_threads}))"
        )
    elif facts.sleeps:
        return None
    else:
        how = (
            "in threads, where Python computes in turn. Processes need "
            "picklable data, and your code below "
            '`if __name__ == "__main__":`.'
        )
        call = (
            ".to_iter_dataset().mp_prefetch(\n"
            f"    grain.MultiprocessingOptions(num_workers={max(cores(), 2)}))"
        )
        if is_grain(facts.data, "IterDataset"):
            map_data, call = "dataset", call.replace(".to_iter_dataset()", "")
    return {"how": how, "code": f"{first}dataset = {map_data}{call}"}
