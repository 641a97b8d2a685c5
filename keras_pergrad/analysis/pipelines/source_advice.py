"""Advice on what brings data into `tf.data` pipelines."""

from keras_pergrad.analysis.pipelines.pipeline_facts import LARGE, Advice
from keras_pergrad.analysis.pipelines.stages import files_in_turn, reader_buffer
from keras_pergrad.analysis.pipelines.tfdata_code import (
    parallel_gain,
    thread_pool_code,
    written_as,
)

# Lines and records of 1 KB from a local disk: buffers of 16, 64 and 256 bytes
# took 40, 10 and 2 times as long as TensorFlow's own, one of 1 KB no longer.
SMALL_READ = 1024
FEW_ELEMENTS = 8  # in a file: opening it costs more than reading it
NESTED = ("FlatMap", "Interleave", "ParallelInterleave")


def from_generator(facts):
    """Advise where one Python thread does much of the work."""
    stages = [s for s in facts.stages if s.is_generator]
    if not stages:
        return None
    share = facts.share("FlatMap", "Generator", "Interleave")
    if share is not None and share < LARGE:
        return None
    calls, pool, workers = "tf.data.AUTOTUNE", "", None
    if facts.sleeps:
        calls = workers = facts.threads_to_hide
        pool = thread_pool_code(workers)
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
        None if share is None else parallel_gain(facts, share, workers),
    )


def interleave(facts):
    """Advise where files are read one after the other."""
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
        pool = thread_pool_code(workers)
    return Advice(
        "interleave",
        f"`{stage.label}` reads one source (a file, a shard) at a time.",
        f"dataset = files.interleave(\n    {written_as(stage, 'read')}, "
        f"num_parallel_calls={calls}, deterministic=False){pool}",
        parallel_gain(facts, share, workers),
    )


def parallel_reads(facts):
    """Advise where a reader of several files reads one after the other."""
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
            parallel_gain(facts, facts.share("FlatMap") or 0.0),
        )
    return None


def _few_in_a_file(facts):
    """Return how many elements a nested pipeline gives, if they are few."""
    for stage in facts.running or ():
        if stage.name in NESTED and stage.sources and stage.elements:
            a_source = stage.elements / stage.sources
            if stage.sources > FEW_ELEMENTS and a_source <= FEW_ELEMENTS:
                return a_source
    return None


def tiny_files(facts):
    """Advise where opening the files costs more than reading them."""
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


def tiny_reads(facts):
    """Advise where a file reader's buffer is smaller than a line."""
    for stage in facts.stages:
        size = reader_buffer(stage)
        # TensorFlow does not account for readers, so no share is known.
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
