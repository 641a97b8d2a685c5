"""Advice on `tf.data` pipelines, the order of their stages first."""

from keras_pergrad.analysis.pipelines import map_advice, source_advice
from keras_pergrad.analysis.pipelines.device_copy import (
    accelerator,
    has_iterators,
)
from keras_pergrad.analysis.pipelines.pipeline_facts import Advice
from keras_pergrad.analysis.pipelines.tfdata_code import written_as
from keras_pergrad.keras_internals.dataset_parts import batch_size, buffer_size

# The share of the step, and the least time, of a copy worth a message.
LONG_COPY, LONG_COPY_MS = 0.05, 0.2
LONG_START = 4  # times the making of a batch, before the first one is there


def _fused_with_batch(stage, facts):
    """Whether TensorFlow fuses this map and its batch into MapAndBatch."""
    at = facts.stages.index(stage)
    return at > 0 and facts.stages[at - 1].kind == "Batch"


def prefetch(facts):
    """Advise where nothing overlaps and a step could hide some work."""
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


def prefetch_to_device(facts):
    """Advise where the copy to the accelerator delays the step."""
    device = accelerator()
    if facts.kind != "dataset" or not has_iterators(device):
        return None
    copy, step = facts.copy_ms or 0.0, facts.step_ms
    if copy < max(LONG_COPY * step, LONG_COPY_MS):
        return None
    rest = max(step - copy, 0.0)
    hides = "all" if rest >= copy else f"{rest:.3g} ms"
    return Advice(
        "prefetch to device",
        f"The copy of a batch to {device} takes {copy:.3g} of the {step:.3g} "
        f"ms of a step. Copied ahead, {hides} of it hides behind the step "
        "before. This must be the pipeline's last stage.",
        "dataset = dataset.apply(\n"
        f'    tf.data.experimental.prefetch_to_device("{device}")\n'
        ")",
        min(copy, rest),
    )


def unordered(facts):
    """Advise where slow elements of a parallel shuffled stage delay others."""
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


def shuffle_after_batch(facts):
    """Advise where a shuffle of whole batches delays the first one."""
    kinds = [s.kind for s in facts.stages]
    batches = [k for k in kinds if k in ("Batch", "ParallelBatch")]
    if "Shuffle" not in kinds or not batches:
        return None
    at = kinds.index("Shuffle")
    if at > kinds.index(batches[0]):
        return None
    if facts.first_batch_ms < LONG_START * facts.pipeline_ms:
        return None
    buffer = buffer_size(facts.stages[at].dataset) or "buffer_size"
    batch = facts.stages[kinds.index(batches[0])]
    size = batch_size(batch.dataset) or "batch_size"
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
    """Advise where a large buffer of finished samples delays the first step."""
    kinds = [s.kind for s in facts.stages]
    if "Shuffle" not in kinds or facts.kind != "dataset":
        return None
    at = kinds.index("Shuffle")
    before = [k for k in kinds[:at] if k in ("Batch", "ParallelBatch")]
    if not before:  # of whole batches: `shuffle_after_batch`
        return None
    batch = facts.stages[kinds.index(before[0])]
    buffer = buffer_size(facts.stages[at].dataset)
    size = batch_size(batch.dataset)
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
        name = written_as(maps[0])
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


RULES = (
    map_advice.frozen_augmentation,
    prefetch,
    prefetch_to_device,
    map_advice.parallel_map,
    map_advice.python_map,
    source_advice.from_generator,
    map_advice.batch_first,
    source_advice.tiny_files,
    source_advice.interleave,
    source_advice.parallel_reads,
    map_advice.thread_pool,
    map_advice.cache,
    unordered,
    shuffle_buffer,
    shuffle_after_batch,
    source_advice.tiny_reads,
)

#: Rules that look at how long the first batch took.
OF_THE_START = (shuffle_buffer, shuffle_after_batch)
#: Rules that do not look at the wait.
WITHOUT_WAIT = (map_advice.frozen_augmentation, prefetch_to_device)
