"""The rules of advice on a `tf.data` pipeline, the first to follow first.

Mistakes come first, then what costs one line, then what takes work. A rule
looks at the `Facts` of an epoch and returns its `Advice`, or None where it does
not apply. A gain is given only where it was measured; otherwise
`profile_pipeline` tells.
"""

from keras_pergrad.keras_internals.data.sources import batch_size, buffer_size
from keras_pergrad.stalls.advice import Advice
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
AUTOTUNE = "tf.data.AUTOTUNE"


def random_cache(facts):
    """Advise against a cache that keeps random draws."""
    caches = _places(facts, "Cache")
    cached_stages = facts.stages[caches[0] :] if caches else []
    stage = _first(cached_stages, lambda s: s.kind in MAPS and s.is_random)
    return stage and Advice(
        "cache after random augmentation",
        f"`cache` comes after `{stage.label}`, which draws random numbers, so "
        "every epoch repeats the draws of the first. Cache before the draws.",
        "dataset = dataset.cache()\n"
        "dataset = dataset.map(\n"
        f"    {_function(stage)}, num_parallel_calls={AUTOTUNE})",
        is_mistake=True,
    )


def prefetch(facts):
    """Advise to make batches while the model computes."""
    gain = min(facts.wait_ms, facts.step_ms)
    # With a smaller gain it is simply too slow: little could be hidden.
    if facts.overlaps or gain < 0.1 * facts.wait_ms:
        return None
    return Advice(
        "prefetch",
        "The pipeline does not end in a prefetch, so it stops while the model "
        "computes, and the model waits while the pipeline works.",
        f"dataset = dataset.prefetch({AUTOTUNE})",
        gain_ms=gain,
    )


def prefetch_to_device(facts):
    """Advise to copy batches to the device ahead."""
    copy, step = facts.report.copy_ms or 0.0, facts.step_ms
    device = accelerator()
    is_short = copy < max(LONG_COPY * step, LONG_COPY_MS)
    if is_short or not has_iterators(device):
        return None
    return Advice(
        "prefetch to device",
        f"The copy of a batch to {device} takes {copy:.3g} of the {step:.3g} "
        "ms of a step. Add this as the last stage, to copy ahead:",
        f'copied = tf.data.experimental.prefetch_to_device("{device}")\n'
        "dataset = dataset.apply(copied)",
        gain_ms=min(copy, max(step - copy, 0.0)),
    )


def shuffle_buffer(facts):
    """Advise on a shuffle that fills its buffer with much before it begins."""
    shuffles, batches = _places(facts, "Shuffle"), _places(facts, *BATCHES)
    first_ms = 1e3 * (facts.report.first_batch_s or 0.0)
    is_late = first_ms > LONG_START * facts.pipeline_ms
    if not is_late or not shuffles or not batches:
        return None
    at, batch = shuffles[0], batches[0]
    buffer = buffer_size(facts.stages[at].dataset)
    size = batch_size(facts.stages[batch].dataset)
    if at < batch:
        content = "whole batches"
        instead = "single samples instead, before `batch`"
        then = f".batch({size or 'batch_size'})"
    else:
        feeding = facts.stages[at + 1]
        is_large = buffer and size and buffer >= LONG_START * size
        if not is_large or feeding.kind not in MAPS:
            return None
        content = f"results of `{feeding.label}`"
        instead = "its inputs instead"
        calls = f"num_parallel_calls={AUTOTUNE}"
        then = f".map(\n    {_function(feeding)}, {calls})"
    buffer = buffer or "buffer_size"
    return Advice(
        "shuffle buffer",
        f"`shuffle({buffer})` fills its buffer with {content} before the "
        f"first batch, which came after {first_ms / 1e3:.3g} s. Shuffle "
        f"{instead}.",
        f"dataset = dataset.shuffle({buffer}){then}",
    )


def generator(facts):
    """Advise to load by number what a Python generator gives."""
    stage = _first(facts.stages, lambda s: s.is_generator)
    work_share = facts.share("FlatMap", "Generator", "Interleave")
    if stage is None or (work_share is not None and work_share < LARGE_SHARE):
        return None
    calls, pool = _parallel_calls(facts, facts.surely_waits)
    return Advice(
        "from_generator",
        "`from_generator` runs in one Python thread. Load the elements by "
        "their numbers, in parallel: `load(i)` returns element i of `count`, "
        "a tuple.",
        "specs = dataset.element_spec\n"
        "types = [spec.dtype for spec in specs]\n"
        "def read(i):\n"
        "    parts = tf.py_function(lambda i: load(int(i)), [i], types)\n"
        "    return tuple(tf.ensure_shape(part, spec.shape)\n"
        "                 for part, spec in zip(parts, specs))\n"
        "dataset = tf.data.Dataset.range(count)\n"
        f"dataset = dataset.map(read, num_parallel_calls={calls}){pool}",
    )


def batch_first(facts):
    """Advise to batch before a map of single elements that does little."""
    for batched, stage in zip(facts.stages, facts.stages[1:]):
        if batched.kind not in BATCHES or stage.kind not in MAPS:
            continue
        size = batch_size(batched.dataset) or 0
        is_cause = _is_cheap(stage, facts) and _is_large(facts)(stage)
        if size >= 16 and is_cause and not stage.is_random:
            return Advice(
                "batch first",
                f"Calling `{stage.label}` for each of the {size} elements of "
                "a batch costs more than the work that it does. If it can "
                "process a whole batch, call it once:",
                f"dataset = dataset.batch({size}).map({_function(stage)})",
            )
    return None


def interleave(facts):
    """Advise to read several files or shards at a time."""
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
        code = (
            f"dataset = tf.data.{stage.kind}Dataset(\n"
            f"    files, num_parallel_reads={AUTOTUNE})"
        )
    else:
        # Reading waits for a disk or a network, unless it surely computes.
        waits = not facts.surely_computes
        calls, pool = _parallel_calls(facts, waits)
        cycle = f" cycle_length={calls}," if waits else ""
        code = (
            "dataset = files.interleave(\n"
            f"    {_function(stage)}, num_parallel_calls={calls},{cycle} "
            f"deterministic=False){pool}"
        )
    return Advice(
        "interleave",
        f"`{stage.label}` reads one source (a file, a shard) at a time.",
        code,
    )


def parallel_map(facts):
    """Advise on a map whose calls are in turn, or wait in too few threads."""
    serial_maps = (stage for stage in facts.stages if stage.kind == "Map")
    stage = max(serial_maps, key=facts.share_of, default=None)
    if stage is None or not _is_large(facts)(stage):
        return _more_threads(facts)
    if _is_cheap(stage, facts) or (stage.runs_python and facts.surely_computes):
        return None  # threads would bring nothing, or take turns
    how = "handles one element at a time."
    if facts.surely_waits:
        how += " It waits (a disk, a network): more threads than cores help."
    elif stage.runs_python:
        how += " It runs Python: threads help while it waits or frees the lock."
    return _of_calls(stage, how, facts, waits=facts.surely_waits)


def _more_threads(facts):
    """Advise on a parallel map that waits; if it is in Python, or may."""
    maps = [s for s in facts.stages if s.kind == "ParallelMap"]
    stage = _first(maps, _is_large(facts))
    pool = facts.data.options().threading.private_threadpool_size or 0
    if stage is None or pool > facts.cores:
        return None
    if not (facts.may_wait if stage.runs_python else facts.surely_waits):
        return None
    waits = "waits" if facts.surely_waits else "may wait"
    how = (
        f"{waits} (a disk, a network), and TensorFlow runs at most as many "
        f"calls at a time as there are cores ({facts.cores})."
    )
    return _of_calls(stage, how, facts, waits=True)


def _of_calls(stage, how, facts, *, waits):
    calls, pool = _parallel_calls(facts, waits)
    return Advice(
        "parallel map",
        f"`{stage.label}` {how}",
        f"dataset = dataset.map({_function(stage)}, "
        f"num_parallel_calls={calls}){pool}",
    )


def python_map(facts):
    """Advise processes for a map that computes in Python, or may."""
    maps = [s for s in facts.stages if s.kind in MAPS and s.runs_python]
    stage, count = _first(maps, _is_large(facts)), max(facts.cores, 2)
    if stage is None or not facts.may_compute:
        return None
    computes = "computes" if facts.surely_computes else "may compute"
    return Advice(
        "python map",
        f"`{stage.label}` {computes} in Python, where threads take turns. "
        "Processes do not; they import `python_function` from a file, with "
        'your code below `if __name__ == "__main__":`.',
        "import concurrent.futures as futures, multiprocessing as mp\n"
        f"pool = futures.ProcessPoolExecutor({count}, mp.get_context('spawn'))"
        "\nin_process = lambda *a: pool.submit(python_function, *a).result()\n"
        "# in the map: tf.numpy_function(in_process, ...), or TensorFlow ops\n"
        f"dataset = dataset.map({_function(stage)}, "
        f"num_parallel_calls={2 * count})",
    )


def cache(facts):
    """Advise to cache maps that give the same in every epoch."""
    places = _places(facts, *MAPS)
    maps = [facts.stages[at] for at in places]
    if not maps or _places(facts, "Cache"):
        return None
    if any(stage.is_random or stage.runs_python for stage in maps):
        return None  # not the same in every epoch, or nobody can know
    is_finite = int(facts.data.cardinality()) > 0
    if not is_finite or not _is_repeated(facts, places[0]):
        return None
    share = facts.share(*MAPS, *FUSED_MAPS) or 0.0
    # The map that works most decides: the last one may only cast a batch.
    if share < LARGE_SHARE or _is_cheap(max(maps, key=facts.share_of), facts):
        return None
    return Advice(
        "cache",
        f"All stages up to `{maps[0].label}` compute the same in every epoch.",
        "dataset = dataset.cache()  # after the map, before shuffle\n"
        "# cache('a_file_name') if memory is short",
        gain_ms=min(facts.wait_ms, facts.pipeline_ms * share),
    )


RULES = (
    random_cache,
    prefetch,
    prefetch_to_device,
    shuffle_buffer,
    generator,
    batch_first,
    interleave,
    parallel_map,
    python_map,
    cache,
)
#: Those that apply where the data comes in time, too.
WITHOUT_STALL = (random_cache, prefetch_to_device)
#: Those that look at how late the first batch was.
OF_THE_START = (shuffle_buffer,)


def _first(stages, condition):
    """Return the stage nearest to the end that meets a condition, or None."""
    return next((stage for stage in stages if condition(stage)), None)


def _places(facts, *kinds):
    return [at for at, stage in enumerate(facts.stages) if stage.kind in kinds]


def _function(stage):
    """Return the name of the stage's function, as it is to be written."""
    name = stage.function or ""
    return name if name.isidentifier() else "function"


def _parallel_calls(facts, waits):
    """Return how many parallel calls to write, and the pool they need."""
    if not waits:
        return AUTOTUNE, ""
    threads = facts.threads_to_hide
    return threads, (
        "\noptions = tf.data.Options()\n"
        f"options.threading.private_threadpool_size = {threads}\n"
        "dataset = dataset.with_options(options)"
    )


def _is_large(facts):
    """Return a function: whether a stage does a large part of the work."""
    return lambda stage: facts.share_of(stage) >= LARGE_SHARE


def _is_cheap(stage, facts):
    """Whether a map takes less time for an element than calling it does."""
    element_ms = facts.element_ms(stage)
    if stage.runs_python or element_ms is None:
        return False
    # With a few plain ops the call itself takes the time, on any machine.
    return element_ms < (10 * CHEAP_MS if stage.ops <= SIMPLE_OPS else CHEAP_MS)


def _is_repeated(facts, at):
    """Whether the elements of a stage of finite data are needed again."""
    repeats = any(stage.kind == "Repeat" for stage in facts.stages[:at])
    if facts.passes is None or repeats:
        return True
    # With `steps_per_epoch` an epoch can be only a part of a pass.
    batches = int(facts.data.cardinality())
    return facts.passes * min((facts.report.steps or 0) / batches, 1.0) >= 2
