"""Advice on `tf.data` pipelines."""

from keras_pergrad.pipelines.facts import CHEAP_MS, LARGE, Advice, cores
from keras_pergrad.pipelines.stages import files_in_turn, reader_buffer, size_of

# Lines and records of 1 KB from a local disk: buffers of 16, 64 and 256 bytes
# took 40, 10 and 2 times as long as TensorFlow's own, one of 1 KB no longer.
SMALL_READ = 1024
LONG_START = 4  # times the making of a batch, before the first one is there
FEW_ELEMENTS = 8  # in a file: opening it costs more than reading it
MAPS = ("Map", "MapAndBatch")
ALL_MAPS = (*MAPS, "ParallelMap", "ParallelMapAndBatch")
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
NESTED = ("FlatMap", "Interleave", "ParallelInterleave")


def _parallel_gain(facts, share, workers=None):
    workers = workers or max(cores(), 2)
    return facts.pipeline_ms * share * (1 - 1 / workers)


def _fused_with_batch(stage, facts):
    """TensorFlow makes one stage, MapAndBatch, of a map and its batch."""
    at = facts.stages.index(stage)
    return at > 0 and facts.stages[at - 1].kind == "Batch"


def _written_as(stage, default="function"):
    """The name of a stage's function where it is one to write."""
    name = stage.function or ""
    return name if name.isidentifier() else default


def _is_repeated(facts, stage):
    """Whether what a stage of finite data gives is needed again later."""
    if facts.passes is None:
        return True
    after = facts.stages[: facts.stages.index(stage)]
    if any(s.kind == "Repeat" for s in after):
        return True
    # An epoch of `steps_per_epoch` can be a part of a pass.
    batches = int(facts.data.cardinality())
    steps = batches if facts.steps is None else facts.steps
    return facts.passes * min(steps / batches, 1.0) >= 2


def _serial_map(facts):
    """The map that takes one element at a time and works most, its share."""
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
    # Of a few plain ops the time is the call's, whatever the machine does.
    return took < (10 * CHEAP_MS if stage.ops <= SIMPLE_OPS else CHEAP_MS)


def _in_python_alone(stage, facts):
    """Whether a stage surely computes, and in Python."""
    return stage.runs_python and facts.computes


def prefetch(facts):
    """Nothing overlaps, and a step is long enough to hide something."""
    if facts.kind != "dataset" or facts.overlaps:
        return None
    gain = min(facts.wait_ms, facts.step_ms)
    if gain < 0.1 * facts.wait_ms:
        return None  # simply too slow: overlapping would hide almost nothing
    return Advice(
        "prefetch",
        "The pipeline does not end in a prefetch, so it stands still while "
        "the model computes, and the model stands still while it works.",
        "dataset = dataset.prefetch(tf.data.AUTOTUNE)",
        gain,
    )


def parallel_map(facts):
    """A map that does much of the work takes one element at a time."""
    stage, share = _serial_map(facts)
    if stage is None or share < LARGE or _is_cheap(stage, facts):
        return None
    if _in_python_alone(stage, facts):
        return None
    cause = f"`{stage.label}` handles one element at a time."
    name, calls = _written_as(stage), "tf.data.AUTOTUNE"
    pool, gain = "", _parallel_gain(facts, share)
    if facts.sleeps:
        threads = facts.threads_to_hide
        cause += (
            " It waits more than it computes (a disk, a network), so it "
            "gains from more threads than there are cores."
        )
        calls, gain = str(threads), _parallel_gain(facts, share, threads)
        pool = _thread_pool_code(threads)
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


def _thread_pool_code(threads):
    return (
        "\noptions = tf.data.Options()\n"
        f"options.threading.private_threadpool_size = {threads}\n"
        "dataset = dataset.with_options(options)"
    )


def thread_pool(facts):
    """Parallel calls that sleep, and no more of them than cores."""
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
        f"dataset = dataset.map({_written_as(stages[0])}, "
        f"num_parallel_calls={threads})" + _thread_pool_code(threads),
        facts.pipeline_ms * share * (1 - cores() / threads),
    )


def python_map(facts):
    """A map computes in Python, where threads take turns."""
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
        f"dataset = dataset.map({_written_as(stage)}, "
        f"num_parallel_calls={2 * count})",
        _parallel_gain(facts, share, count),
    )


def batch_first(facts):
    """A map of single elements costs less than being called for each."""
    for stage in facts.stages:
        at = facts.stages.index(stage)
        batched = facts.stages[at - 1] if at else None
        if stage.kind not in ("Map", "ParallelMap") or batched is None:
            continue
        if batched.kind not in ("Batch", "ParallelBatch"):
            continue
        if stage.is_random or not _is_cheap(stage, facts):
            continue
        size = size_of(batched, "_batch_size") or 0
        share = facts.share_of(stage) or 0.0
        if size < 16 or share < LARGE:
            continue
        return Advice(
            "batch first",
            f"`{stage.label}` is called for each of the {size} elements of "
            "a batch, which costs more than what it does. Called once for a "
            "whole batch it is the same for functions that take every "
            "element alike.",
            f"dataset = dataset.batch({size}).map({_written_as(stage)})",
            facts.pipeline_ms * share * (1 - 1 / size),
        )
    return None


def interleave(facts):
    """Files are read one after the other."""
    stages = [
        s
        for s in facts.stages
        if s.kind in ("FlatMap", "Interleave") and not s.is_generator
    ]
    share = facts.share("FlatMap", "Interleave") or 0.0
    if not stages or share < LARGE or _few_in_a_file(facts):
        return None
    stage = stages[0]
    calls, pool, workers = "tf.data.AUTOTUNE", "", None
    if not facts.computes:  # reading waits for a disk or a network
        workers = facts.threads_to_hide
        calls = f"{workers}, cycle_length={workers}"
        pool = _thread_pool_code(workers)
    return Advice(
        "interleave",
        f"`{stage.label}` reads one source (a file, a shard) at a time.",
        f"dataset = files.interleave(\n    {_written_as(stage, 'read')}, "
        f"num_parallel_calls={calls}, deterministic=False){pool}",
        _parallel_gain(facts, share, workers),
    )


def parallel_reads(facts):
    """A reader of several files reads one after the other."""
    for stage in facts.stages:
        if not files_in_turn(stage) or stage.kind != "TFRecord":
            continue
        if (facts.share("FlatMap") or 0.0) < LARGE:
            return None
        return Advice(
            "parallel reads",
            f"`{stage.label}` reads its files one after the other.",
            "dataset = tf.data.TFRecordDataset(\n"
            "    files, num_parallel_reads=tf.data.AUTOTUNE)",
            _parallel_gain(facts, facts.share("FlatMap") or 0.0),
        )
    return None


def _few_in_a_file(facts):
    """Elements that a nested pipeline gives, where they are few."""
    for stage in facts.running or ():
        if stage.name in NESTED and stage.sources and stage.elements:
            a_source = stage.elements / stage.sources
            if stage.sources > FEW_ELEMENTS and a_source <= FEW_ELEMENTS:
                return a_source
    return None


def tiny_files(facts):
    """Opening the files costs more than reading them."""
    few = _few_in_a_file(facts)
    stages = [
        s
        for s in facts.stages
        if s.kind in NESTED and s.reads_files and not s.is_generator
    ]
    share = facts.share(*NESTED) or 0.0
    if few is None or not stages or share < LARGE:
        return None
    return Advice(
        "tiny files",
        f"`{stages[0].label}` opens a file for every {few:.2g} elements, and "
        "opening costs more than reading. Written once into a few large "
        "files, the same elements come in one go.",
        "dataset.save(folder)  # once\ndataset = tf.data.Dataset.load(folder)",
        facts.pipeline_ms * share * (1 - few / 100),
    )


def unordered(facts):
    """Single slow elements of a parallel, shuffled stage hold up others."""
    parallel = [
        s
        for s in facts.stages
        if s.kind in ("ParallelMap", "ParallelInterleave")
        and s.deterministic
        and not _fused_with_batch(s, facts)  # a batch awaits all its samples
    ]
    shuffles = any(s.kind == "Shuffle" for s in facts.stages)
    if not parallel or not shuffles:
        return None
    if facts.data.options().deterministic is False:
        return None
    if facts.burst_ms < 0.2 * facts.wait_ms:
        return None  # no single slow elements that hold up the others
    return Advice(
        "unordered",
        f"`{parallel[0].label}` gives its results in order, so one slow "
        "element holds up the others, although the data is shuffled anyway.",
        "options = tf.data.Options()\n"
        "options.deterministic = False\n"
        "dataset = dataset.with_options(options)",
        None,
    )


def cache(facts):
    """Maps that do much of the work compute the same again later."""
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
    """A cache keeps what a random map drew in the first epoch."""
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
        f"dataset = dataset.map({_written_as(stage)}, "
        "num_parallel_calls=tf.data.AUTOTUNE)",
        None,
        is_mistake=True,
    )


def shuffle_after_batch(facts):
    """A shuffle of whole batches delays the first one."""
    kinds = [s.kind for s in facts.stages]
    batches = [k for k in kinds if k in ("Batch", "ParallelBatch")]
    if "Shuffle" not in kinds or not batches:
        return None
    at = kinds.index("Shuffle")
    if at > kinds.index(batches[0]):
        return None
    if facts.first_batch_ms < LONG_START * facts.pipeline_ms:
        return None
    buffer = size_of(facts.stages[at], "_buffer_size") or "buffer_size"
    batch = facts.stages[kinds.index(batches[0])]
    size = size_of(batch, "_batch_size") or "batch_size"
    return Advice(
        "shuffle after batch",
        "`shuffle` stands after `batch`: its buffer must fill with whole "
        "batches before the first step, which came after "
        f"{facts.first_batch_ms / 1e3:.3g} s. Shuffling single samples with "
        "the same buffer_size starts sooner, and mixes the samples too; the "
        "later waits stay.",
        f"dataset = dataset.shuffle({buffer}).batch({size})",
        None,
    )


def shuffle_buffer(facts):
    """A large buffer fills with finished samples before the first step."""
    kinds = [s.kind for s in facts.stages]
    if "Shuffle" not in kinds or facts.kind != "dataset":
        return None
    at = kinds.index("Shuffle")
    before = [k for k in kinds[:at] if k in ("Batch", "ParallelBatch")]
    if not before:  # of whole batches: `shuffle_after_batch`
        return None
    batch = facts.stages[kinds.index(before[0])]
    buffer = size_of(facts.stages[at], "_buffer_size")
    size = size_of(batch, "_batch_size")
    late = facts.first_batch_ms > LONG_START * facts.pipeline_ms
    if not (late and buffer and size) or buffer < LONG_START * size:
        return None
    delay = f"{facts.first_batch_ms / 1e3:.3g} s"
    cause = (
        f"`shuffle({buffer})` fills its buffer before the first batch, which "
        f"came after {delay}"
    )
    maps = []
    for stage in facts.stages[at + 1 :]:
        if stage.kind not in ("Map", "ParallelMap"):
            break
        maps.append(stage)
    if maps:
        name = _written_as(maps[0])
        cause += (
            f", with elements that `{maps[0].label}` has already worked on. "
            "What goes into it (numbers, file names) is quicker to shuffle."
        )
        code = (
            f"dataset = dataset.shuffle({buffer})\n"
            f"dataset = dataset.map({name}, "
            "num_parallel_calls=tf.data.AUTOTUNE)"
        )
    else:
        cause += ". A smaller one starts sooner, and mixes less."
        code = f"dataset = dataset.shuffle({2 * size})"
    return Advice(
        "shuffle buffer", cause, code, facts.first_batch_ms / (facts.steps or 1)
    )


def tiny_reads(facts):
    """A file reader's buffer is smaller than a line."""
    for stage in facts.stages:
        size = reader_buffer(stage)
        # TensorFlow's account leaves readers out: no share to go by.
        if size is not None and size < SMALL_READ:
            fixed = stage.kind == "FixedLengthRecord"
            return Advice(
                "tiny reads",
                f"`{stage.label}` reads {size} bytes at a time.",
                f"dataset = tf.data.{stage.kind}Dataset("
                f"files{', record_bytes' if fixed else ''})  # without "
                "buffer_size",
                None,
            )
    return None


def from_generator(facts):
    """One Python thread does much of the work."""
    stages = [s for s in facts.stages if s.is_generator]
    if not stages:
        return None
    share = facts.share("FlatMap", "Generator", "Interleave")
    if share is not None and share < LARGE:
        return None
    calls, pool, workers = "tf.data.AUTOTUNE", "", None
    if facts.sleeps:
        calls = workers = facts.threads_to_hide
        pool = _thread_pool_code(workers)
    return Advice(
        "from_generator",
        "`from_generator` runs in one Python thread. Load an element by its "
        "number in a map, which can run side by side: `load(i)` gives what "
        "the generator gave as element i, `count` is how many there are, and "
        "`generated` is the dataset as it was.",
        "spec = generated.element_spec\n"
        "specs = tf.nest.flatten(spec)\n"
        "def parts_of(i):\n"
        "    return tf.nest.flatten(keras.tree.map_structure_up_to(\n"
        "        spec, lambda s, p: np.asarray(p, s.dtype.as_numpy_dtype),\n"
        "        spec, load(i)))\n"
        "def read(i):\n"
        "    parts = tf.numpy_function(\n"
        "        parts_of, [i], [s.dtype for s in specs])\n"
        "    shaped = [tf.ensure_shape(p, s.shape)\n"
        "              for p, s in zip(parts, specs)]\n"
        "    return tf.nest.pack_sequence_as(spec, shaped)\n"
        "dataset = tf.data.Dataset.range(count).map(\n"
        f"    read, num_parallel_calls={calls}){pool}",
        None if share is None else _parallel_gain(facts, share, workers),
    )


RULES = (
    frozen_augmentation,
    prefetch,
    parallel_map,
    python_map,
    from_generator,
    batch_first,
    tiny_files,
    interleave,
    parallel_reads,
    thread_pool,
    cache,
    unordered,
    shuffle_buffer,
    shuffle_after_batch,
    tiny_reads,
)

#: Rules that look at how long the first batch took.
OF_THE_START = (shuffle_buffer, shuffle_after_batch)
#: Rules about what training gets, however fast it comes.
OF_THE_CONTENT = (frozen_augmentation,)
