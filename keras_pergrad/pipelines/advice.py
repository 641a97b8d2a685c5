"""Causes of a stall and the change that removes each.

An advice is a function of the `Facts` that returns an `Advice` or None. To
add one, write the function and list it in `ADVICE`.
"""

import dataclasses
import os

from keras_pergrad.pipelines.anatomy import READERS, reader_buffer

LARGE = 0.3  # a stage with less of the work is not the cause
# Lines and records of 1 KB from a local disk: buffers of 16, 64 and 256 bytes
# took 40, 10 and 2 times as long as TensorFlow's own, one of 1 KB no longer.
SMALL_READ = 1024
LONG_START = 4  # times the making of a batch, before the first one is there
MAPS = ("Map", "MapAndBatch")


@dataclasses.dataclass
class Advice:
    """`gain_ms`: estimated gain a batch; None if it cannot be estimated."""

    name: str
    cause: str
    code: str
    gain_ms: float | None


def _cores():
    return os.cpu_count() or 1


def _parallel_gain(facts, share):
    return facts.pipeline_ms * share * (1 - 1 / max(_cores(), 2))


def _fused_with_batch(stage, facts):
    """TensorFlow makes one stage, MapAndBatch, of a map and its batch."""
    at = facts.stages.index(stage)
    return at > 0 and facts.stages[at - 1].kind == "Batch"


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
    share, stage = 0.0, None
    for this in facts.stages:
        if this.kind != "Map":
            continue
        fused = _fused_with_batch(this, facts)
        its_share = facts.share("MapAndBatch") if fused else None
        its_share = its_share or facts.share("Map") or 0.0
        if its_share > share:
            share, stage = its_share, this
    if stage is None or share < LARGE:
        return None
    cause = f"`{stage.label}` handles one element at a time."
    if stage.runs_python:
        cause += (
            " It runs Python: threads help as far as it waits or works "
            "outside of Python's lock; TensorFlow ops always can."
        )
    return Advice(
        "parallel map",
        cause,
        "dataset = dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)",
        _parallel_gain(facts, share),
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
    share = facts.share(*MAPS, "ParallelMap", "ParallelMapAndBatch")
    if share is None or share < LARGE:
        return None
    return Advice(
        "cache",
        f"All up to `{maps[0].label}` computes the same in every epoch.",
        "dataset = dataset.cache()  # after the map, before shuffle\n"
        "# cache('a_file_name') if memory is short",
        min(facts.wait_ms, facts.pipeline_ms * share),
    )


def shuffle_after_batch(facts):
    """A shuffle of whole batches delays the first one."""
    kinds = [s.kind for s in facts.stages]
    batches = [k for k in kinds if k in ("Batch", "ParallelBatch")]
    if "Shuffle" not in kinds or not batches:
        return None
    if kinds.index("Shuffle") > kinds.index(batches[0]):
        return None
    if facts.first_batch_ms < LONG_START * facts.pipeline_ms:
        return None
    return Advice(
        "shuffle after batch",
        "`shuffle` stands after `batch`: its buffer must fill with whole "
        "batches before the first step, which came after "
        f"{facts.first_batch_ms / 1e3:.3g} s. Shuffling single samples with "
        "the same buffer_size starts sooner, and mixes the samples too; the "
        "later waits stay.",
        "dataset = dataset.shuffle(buffer_size).batch(batch_size)",
        None,
    )


def tiny_reads(facts):
    """A file reader's buffer is smaller than a line."""
    for stage in facts.stages:
        size = reader_buffer(stage)
        # TensorFlow's account leaves readers out: no share to go by.
        if stage.kind in READERS and size is not None and size < SMALL_READ:
            return Advice(
                "tiny reads",
                f"`{stage.label}` reads {size} bytes at a time.",
                f"dataset = tf.data.{stage.kind}Dataset(files)  # without "
                "buffer_size",
                None,
            )
    return None


def from_generator(facts):
    """One Python thread does much of the work."""
    if not any(s.is_generator for s in facts.stages):
        return None
    share = facts.share("FlatMap", "Generator", "Interleave")
    if share is not None and share < LARGE:
        return None
    return Advice(
        "from_generator",
        "`from_generator` runs in one Python thread. Load one batch in a "
        "function of its number, and call that in parallel.",
        "dataset = tf.data.Dataset.range(batches).map(\n"
        "    lambda i: tf.numpy_function(load, [i], (tf.float32, "
        "tf.float32)),\n"
        "    num_parallel_calls=tf.data.AUTOTUNE)\n"
        "# load(i) returns x and y of batch i as float32 arrays. Give them\n"
        "# their shapes with tf.ensure_shape, in another map.",
        None,
    )


def workers(facts):
    """A PyDataset has one worker."""
    if facts.kind != "pydataset" or facts.data.workers > 1:
        return None
    return Advice(
        "workers",
        "The PyDataset loads its batches in one thread.",
        f"{type(facts.data).__name__}(..., workers=4)\n"
        "# and use_multiprocessing=True if it computes in Python",
        None,
    )


def python_generator(facts):
    """The data is a plain Python generator."""
    if facts.kind != "generator":
        return None
    return Advice(
        "python generator",
        "A Python generator runs in one thread.",
        "class Data(keras.utils.PyDataset):\n"
        "    def __len__(self): return batches\n"
        "    def __getitem__(self, i): return load(i)  # x, y of batch i\n"
        "model.fit(Data(workers=4))",
        None,
    )


def dataloader_workers(facts):
    """A torch DataLoader has no workers."""
    if facts.kind != "dataloader" or facts.data.num_workers:
        return None
    return Advice(
        "num_workers",
        "The DataLoader loads its batches in the training process.",
        # PyTorch warns of more workers than cores.
        f"loader = DataLoader(..., num_workers={min(4, _cores())})",
        None,
    )


ADVICE = (
    prefetch,
    parallel_map,
    from_generator,
    workers,
    python_generator,
    dataloader_workers,
    cache,
    unordered,
    shuffle_after_batch,
    tiny_reads,
)


def advise(facts):
    """All advice that applies, the largest known gain first."""
    given = [a for a in (rule(facts) for rule in ADVICE) if a is not None]
    return sorted(given, key=lambda a: -(a.gain_ms or 0.0))
