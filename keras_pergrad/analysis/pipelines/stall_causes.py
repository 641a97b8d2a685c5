"""Causes of a stall in `tf.data`: when each row of advice applies.

A public function here is the `when` of one row, or of two. It looks at the
`Facts` of data of the row's kind and returns None: it does not apply, or the
values that the row's texts name. Those of other data are in `loader_causes`.
"""

import tensorflow as tf

from keras_pergrad.analysis.pipelines.device_copy import (
    accelerator,
    has_iterators,
)
from keras_pergrad.analysis.pipelines.pipeline_facts import cores
from keras_pergrad.analysis.pipelines.stages import (
    files_in_turn,
    reader_buffer,
)
from keras_pergrad.keras_internals.dataset_parts import batch_size, buffer_size

MAPS, BATCHES = ("Map", "ParallelMap"), ("Batch", "ParallelBatch")
ONE_BY_ONE = ("FlatMap", "Interleave")
FUSED_MAPS = ("MapAndBatch", "ParallelMapAndBatch")
NESTED = (*ONE_BY_ONE, "ParallelInterleave")
LARGE = 0.3  # a stage with less of the work is not the cause
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
# Lines and records of 1 KB from a local disk: buffers of 16, 64 and 256 bytes
# took 40, 10 and 2 times as long as TensorFlow's own, one of 1 KB no longer.
SMALL_READ = 1024
FEW_ELEMENTS = 8  # in a file: opening it costs more than reading it
WAITS = " It waits (a disk, a network): more threads than cores help."
PYTHON = " It runs Python: threads help while it waits or frees the lock."
POOL = """
options = tf.data.Options()
options.threading.private_threadpool_size = {}
dataset = dataset.with_options(options)"""


def _of(stage, **more):
    """Return a stage's values for the texts, and more; None without one."""
    if stage is None:
        return None
    name = stage.function or ""
    name = name if name.isidentifier() else "function"
    return {"stage": stage.label, "function": name, **more}


def _first(stages, holds):
    """Return the first stage, from the last one on, for which this holds."""
    return next((stage for stage in stages if holds(stage)), None)


def _places(facts, kinds):
    return [at for at, stage in enumerate(facts.stages) if stage.kind in kinds]


def _calls(facts, waits):
    """Return the parallel calls to write: more than cores where they wait."""
    if not waits:
        return {"calls": "tf.data.AUTOTUNE", "pool": ""}
    threads = facts.threads_to_hide
    return {"calls": threads, "pool": POOL.format(threads)}


def _works(facts):
    """Return a test whether a stage does a large part of the work."""
    return lambda stage: facts.share_of(stage) >= LARGE


def _is_cheap(stage, facts):
    """Whether a map takes less time for an element than calling it does."""
    took = facts.element_ms(stage)
    if stage.runs_python or took is None:
        return False
    # With a few plain ops the call itself takes the time, on any machine.
    return took < (10 * CHEAP_MS if stage.ops <= SIMPLE_OPS else CHEAP_MS)


def _is_repeated(facts, at):
    """Whether the elements of a stage of finite data are needed again."""
    repeats = any(stage.kind == "Repeat" for stage in facts.stages[:at])
    if facts.passes is None or repeats:
        return True
    # With `steps_per_epoch` an epoch can be only a part of a pass.
    batches = int(facts.data.cardinality())
    steps = batches if facts.steps is None else facts.steps
    return facts.passes * min(steps / batches, 1.0) >= 2


def _few_in_a_file(facts):
    """Return how many elements a nested pipeline gives, if they are few."""
    for stage in facts.running or ():
        if stage.name in NESTED and stage.sources and stage.elements:
            each = stage.elements / stage.sources
            if stage.sources > FEW_ELEMENTS and each <= FEW_ELEMENTS:
                return each
    return None


def frozen(facts):
    """Whether a random map stands before a cache, which keeps its draws."""
    for at in _places(facts, ["Cache"])[:1]:
        for stage in facts.stages[at:]:
            if stage.kind in MAPS and stage.is_random:
                return _of(stage)
    return None


def no_prefetch(facts):
    """Whether nothing works while the model does."""
    gain = min(facts.wait_ms, facts.step_ms)
    # With a smaller gain it is simply too slow: little could be hidden.
    slow = gain < 0.1 * facts.wait_ms
    return None if facts.overlaps or slow else {"gain": gain}


def long_copy(facts):
    """Whether the copy of a batch to the device takes long."""
    device = accelerator()
    copy, step = facts.copy_ms or 0.0, facts.step_ms
    long = copy >= max(LONG_COPY * step, LONG_COPY_MS)
    if not has_iterators(device) or not long:
        return None
    gain = min(copy, max(step - copy, 0.0))
    return {"device": device, "copy": copy, "step": step, "gain": gain}


def late_shuffle(facts, of_batches):
    """Whether a shuffle fills its buffer with much before a first batch."""
    # Of whole batches, or of samples that a map has worked on, many batches.
    shuffles, batches = _places(facts, ["Shuffle"]), _places(facts, BATCHES)
    late = facts.first_batch_ms > LONG_START * facts.pipeline_ms
    if not late or not shuffles or not batches:
        return None
    at, batch = shuffles[0], batches[0]
    buffer = buffer_size(facts.stages[at].dataset)
    size = batch_size(facts.stages[batch].dataset)
    values = {
        "late": f"{facts.first_batch_ms / 1e3:.3g} s",
        "buffer": buffer or "buffer_size",
        "size": size or "batch_size",
    }
    if of_batches or at < batch:
        return values if of_batches and at < batch else None
    below = facts.stages[at + 1]
    large = buffer and size and buffer >= LONG_START * size
    return _of(below, **values) if large and below.kind in MAPS else None


def python_map(facts):
    """Whether a map computes in Python, which takes turns."""
    python = [s for s in facts.stages if s.kind in MAPS and s.runs_python]
    stage, count = _first(python, _works(facts)), max(cores(), 2)
    return _of(stage, count=count, calls=2 * count) if facts.computes else None


def generator(facts):
    """Whether a Python generator gives the elements."""
    stage = _first(facts.stages, lambda s: s.is_generator)
    share = facts.share("FlatMap", "Generator", "Interleave")
    if stage is None or (share is not None and share < LARGE):
        return None
    return _calls(facts, facts.sleeps) | _reading(stage.dataset.element_spec)


class _Code(str):
    __repr__ = str.__str__


def _reading(spec):
    """Return code for parts of these types, and of these shapes."""
    parts, shaped = tf.nest.flatten(spec), []
    for at, part in enumerate(parts):
        shape = None if part.shape.rank is None else tuple(part.shape)
        shaped.append(_Code(f"tf.ensure_shape(p[{at}], {shape})"))
    flat = parts in ([spec], list(spec) if isinstance(spec, tuple) else spec)
    packed = repr(tf.nest.pack_sequence_as(spec, shaped))
    return {
        "load": "load(int(i))" if flat else "tf.nest.flatten(load(int(i)))",
        "types": ", ".join(f"tf.{part.dtype.name}" for part in parts),
        "shaped": packed[1:-1] if isinstance(spec, tuple) else packed,
    }


def tiny_files(facts):
    """Whether many files with few elements each are opened."""
    few, share = _few_in_a_file(facts), facts.share(*NESTED) or 0.0
    stage = _first(facts.stages, lambda s: s.kind in NESTED and s.reads_files)
    return _of(stage, few=few) if few and share >= LARGE else None


def one_source_at_a_time(facts):
    """Whether nested pipelines are read one after the other."""
    stage = _first(
        facts.stages, lambda s: s.kind in ONE_BY_ONE and not s.is_generator
    )
    share = facts.share(*ONE_BY_ONE) or 0.0
    if stage is None or share < LARGE or _few_in_a_file(facts):
        return None
    # Reading waits for a disk or a network, unless it surely computes.
    values = _calls(facts, not facts.computes)
    if values["pool"]:
        values["calls"] = f"{values['calls']}, cycle_length={values['calls']}"
    return _of(stage, **values)


def files_one_by_one(facts):
    """Whether one reader reads its list of files in turn."""
    readers = [stage for stage in facts.stages if stage.kind == "TFRecord"]
    large = (facts.share("FlatMap") or 0.0) >= LARGE
    return _of(_first(readers, files_in_turn)) if large else None


def cheap_map(facts):
    """Whether a map of single elements takes less than its calls."""
    for batched, stage in zip(facts.stages, facts.stages[1:]):
        if batched.kind not in BATCHES or stage.kind not in MAPS:
            continue
        size = batch_size(batched.dataset) or 0
        cheap = _is_cheap(stage, facts) and _works(facts)(stage)
        if size >= 16 and cheap and not stage.is_random:
            return _of(stage, size=size)
    return None


def serial_map(facts):
    """Whether a map works on one element at a time."""
    serial = (stage for stage in facts.stages if stage.kind == "Map")
    stage = max(serial, key=facts.share_of, default=None)
    if stage is None or not _works(facts)(stage):
        return None
    if _is_cheap(stage, facts) or (stage.runs_python and facts.computes):
        return None  # threads would bring nothing, or take turns
    why = PYTHON if stage.runs_python else ""
    why = WAITS if facts.sleeps else why
    return _of(stage, why=why, **_calls(facts, facts.sleeps))


def too_small_a_pool(facts):
    """Whether parallel maps wait, and threads are too few for them."""
    parallel = [s for s in facts.stages if s.kind == "ParallelMap"]
    pool = facts.data.options().threading.private_threadpool_size or 0
    if not facts.sleeps or pool > cores():
        return None
    stage = _first(parallel, _works(facts))
    return _of(stage, cores=cores(), **_calls(facts, waits=True))


def no_cache(facts):
    """Whether each epoch repeats maps that give the same again."""
    places = _places(facts, MAPS)
    maps = [facts.stages[at] for at in places]
    if not maps or _places(facts, ["Cache"]):
        return None
    if any(stage.is_random or stage.runs_python for stage in maps):
        return None  # not the same in every epoch, or nobody can know
    finite = int(facts.data.cardinality()) > 0
    if not finite or not _is_repeated(facts, places[0]):
        return None
    share = facts.share(*MAPS, *FUSED_MAPS) or 0.0
    # The map that works most decides: the last one may only cast a batch.
    if share < LARGE or _is_cheap(max(maps, key=facts.share_of), facts):
        return None
    return _of(maps[0], gain=min(facts.wait_ms, facts.pipeline_ms * share))


def in_order(facts):
    """Whether slow elements hold up others, for the sake of an order."""
    # TensorFlow fuses a map with its batch, which awaits all its samples.
    pairs = zip(facts.stages, facts.stages[1:])
    fused = [stage for batch, stage in pairs if batch.kind == "Batch"]
    parallel = [
        stage
        for stage in facts.stages
        if stage.kind in ("ParallelMap", "ParallelInterleave")
        and stage not in fused
    ]
    stage = _first(parallel, lambda s: s.deterministic)
    if facts.data.options().deterministic is False:
        return None
    # Without single slow elements none holds up the others.
    bursts = facts.burst_ms >= 0.2 * facts.wait_ms
    return _of(stage) if bursts and _places(facts, ["Shuffle"]) else None


def small_buffer(facts):
    """Whether a reader asks for few bytes at a time."""
    # TensorFlow does not account for readers, so no share is known.
    for stage in facts.stages:
        size = reader_buffer(stage) or SMALL_READ
        if size < SMALL_READ:
            fixed = stage.kind == "FixedLengthRecord"
            files = "files, record_bytes" if fixed else "files"
            return _of(stage, size=size, kind=stage.kind, files=files)
    return None
