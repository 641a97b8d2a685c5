"""Advice on the maps of `tf.data` pipelines."""

from keras_pergrad.analysis.pipelines.pipeline_facts import (
    CHEAP_MS,
    LARGE,
    Advice,
    cores,
)
from keras_pergrad.analysis.pipelines.tfdata_code import (
    parallel_gain,
    thread_pool_code,
    written_as,
)
from keras_pergrad.keras_internals.dataset_parts import batch_size

ALL_MAPS = ("Map", "MapAndBatch", "ParallelMap", "ParallelMapAndBatch")
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


def _is_repeated(facts, stage):
    """Whether the elements of a stage of finite data are needed again."""
    if facts.passes is None:
        return True
    after = facts.stages[: facts.stages.index(stage)]
    if any(s.kind == "Repeat" for s in after):
        return True
    # With `steps_per_epoch` an epoch can be only a part of a pass.
    batches = int(facts.data.cardinality())
    steps = batches if facts.steps is None else facts.steps
    return facts.passes * min(steps / batches, 1.0) >= 2


def _serial_map(facts):
    """Return the sequential map with the most work, and its share."""
    share, stage = 0.0, None
    for this in facts.stages:
        if this.kind != "Map":
            continue
        its_share = facts.share_of(this) or 0.0
        if its_share > share:
            share, stage = its_share, this
    return stage, share


def _is_cheap(stage, facts):
    """Whether a map takes less time for an element than calling it does."""
    if stage.runs_python:
        return False
    took = facts.element_ms(stage)
    if took is None:
        return False
    # With a few plain ops the call itself takes the time, on any machine.
    return took < (10 * CHEAP_MS if stage.ops <= SIMPLE_OPS else CHEAP_MS)


def _in_python_alone(stage, facts):
    """Whether a stage surely computes, and in Python."""
    return stage.runs_python and facts.computes


def parallel_map(facts):
    """Advise where a map with much of the work takes one element at a time."""
    stage, share = _serial_map(facts)
    if stage is None or share < LARGE or _is_cheap(stage, facts):
        return None
    if _in_python_alone(stage, facts):
        return None
    cause = f"`{stage.label}` handles one element at a time."
    name, calls = written_as(stage), "tf.data.AUTOTUNE"
    pool, gain = "", parallel_gain(facts, share)
    if facts.sleeps:
        threads = facts.threads_to_hide
        cause += (
            " It waits more than it computes (a disk, a network), so it "
            "gains from more threads than there are cores."
        )
        calls, gain = str(threads), parallel_gain(facts, share, threads)
        pool = thread_pool_code(threads)
    elif stage.runs_python:
        cause += (
            " It runs Python: threads help as far as it waits or works "
            "outside of Python's lock; TensorFlow ops always can."
        )
    return Advice(
        "parallel map",
        cause,
        f"dataset = dataset.map({name}, num_parallel_calls={calls}){pool}",
        gain,
    )


def thread_pool(facts):
    """Advise where parallel calls sleep and there are no more than cores."""
    if facts.kind != "dataset" or not facts.sleeps:
        return None
    stages = [s for s in facts.stages if s.kind == "ParallelMap"]
    share = facts.share_of(stages[0]) if stages else None
    if share is None or share < LARGE:
        return None
    pool = facts.data.options().threading.private_threadpool_size or 0
    if pool > cores():
        return None
    threads = facts.threads_to_hide
    return Advice(
        "thread pool",
        f"`{stages[0].label}` waits more than it computes (a disk, a "
        f"network), and TensorFlow runs no more calls of it than there are "
        f"cores ({cores()}).",
        f"dataset = dataset.map({written_as(stages[0])}, "
        f"num_parallel_calls={threads})" + thread_pool_code(threads),
        facts.pipeline_ms * share * (1 - cores() / threads),
    )


def python_map(facts):
    """Advise where a map computes in Python, where threads take turns."""
    for stage in facts.stages:
        if stage.kind not in ("Map", "ParallelMap"):
            continue
        share = facts.share_of(stage) or 0.0
        if share >= LARGE and _in_python_alone(stage, facts):
            break
    else:
        return None
    count = max(cores(), 2)
    return Advice(
        "python map",
        f"`{stage.label}` computes in Python (py_function, numpy_function), "
        "where threads take turns. Write it with TensorFlow ops, or let "
        "worker processes run its Python function:",
        "import concurrent.futures, multiprocessing\n"
        "pool = concurrent.futures.ProcessPoolExecutor(\n"
        f"    {count}, multiprocessing.get_context('fork'))\n"
        "def in_process(*parts):\n"
        "    return pool.submit(python_function, *parts).result()\n"
        "# tf.numpy_function(in_process, ...) in the place of\n"
        "# tf.numpy_function(python_function, ...), and then\n"
        f"dataset = dataset.map({written_as(stage)}, "
        f"num_parallel_calls={2 * count})",
        parallel_gain(facts, share, count),
    )


def batch_first(facts):
    """Advise where a map of single elements costs less than its calls."""
    for stage in facts.stages:
        at = facts.stages.index(stage)
        batched = facts.stages[at - 1] if at else None
        if stage.kind not in ("Map", "ParallelMap") or batched is None:
            continue
        if batched.kind not in ("Batch", "ParallelBatch"):
            continue
        if stage.is_random or not _is_cheap(stage, facts):
            continue
        size = batch_size(batched.dataset) or 0
        share = facts.share_of(stage) or 0.0
        if size < 16 or share < LARGE:
            continue
        return Advice(
            "batch first",
            f"`{stage.label}` is called for each of the {size} elements of "
            "a batch, which costs more than what it does. Called once for a "
            "whole batch it is the same for functions that take every "
            "element alike.",
            f"dataset = dataset.batch({size}).map({written_as(stage)})",
            facts.pipeline_ms * share * (1 - 1 / size),
        )
    return None


def cache(facts):
    """Advise where maps with much of the work compute the same again later."""
    if any(s.kind == "Cache" for s in facts.stages):
        return None
    if facts.kind != "dataset" or not int(facts.data.cardinality()) > 0:
        return None
    maps = [s for s in facts.stages if s.kind in ("Map", "ParallelMap")]
    if maps and not _is_repeated(facts, maps[0]):
        return None
    if not maps or any(s.is_random or s.runs_python for s in maps):
        return None  # not the same in every epoch, or nobody can know
    share = facts.share(*ALL_MAPS)
    if share is None or share < LARGE or _is_cheap(maps[0], facts):
        return None
    return Advice(
        "cache",
        f"All up to `{maps[0].label}` computes the same in every epoch.",
        "dataset = dataset.cache()  # after the map, before shuffle\n"
        "# cache('a_file_name') if memory is short",
        min(facts.wait_ms, facts.pipeline_ms * share),
    )


def frozen_augmentation(facts):
    """Advise where a cache keeps what a random map drew in the first epoch."""
    kinds = [s.kind for s in facts.stages]
    if "Cache" not in kinds:
        return None
    at = kinds.index("Cache")
    frozen = [
        s
        for s in facts.stages[at + 1 :]
        if s.kind in ("Map", "ParallelMap") and s.is_random
    ]
    if not frozen:
        return None
    stage = frozen[0]
    return Advice(
        "cache after random augmentation",
        f"`cache` stands after `{stage.label}`, which draws random numbers: "
        "every epoch gets the draws of the first one again. Cache what goes "
        "in, and draw afterwards.",
        "dataset = dataset.cache()\n"
        f"dataset = dataset.map({written_as(stage)}, "
        "num_parallel_calls=tf.data.AUTOTUNE)",
        None,
        is_mistake=True,
    )
