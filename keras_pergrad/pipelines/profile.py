"""What a pipeline gives and a model takes, measured without training."""

import contextlib
import copy
import dataclasses

import keras
import tensorflow as tf

from keras_pergrad.arguments import positive_integer
from keras_pergrad.pipelines.account import TOO_MANY
from keras_pergrad.pipelines.facts import kind_of
from keras_pergrad.pipelines.probe import FETCH, first_batch, measure
from keras_pergrad.pipelines.rewrite import with_parallel_maps
from keras_pergrad.pipelines.stopwatch import Stopwatch
from keras_pergrad.pipelines.tf_model import slowest_stage
from keras_pergrad.pipelines.untrained import untrained


@dataclasses.dataclass
class PipelineProfile:
    """Result of `profile_pipeline`; `print` it to read it.

    Attributes:
        pipeline_batches_per_s: What the pipeline gives by itself.
        model_batches_per_s: What the model takes of a cached batch, or None.
        wait_ms: Wait a batch when both run together (alone, without model).
        stall_fraction: The share of the time that this is.
        slowest_stage: Name and share of the work, or None if unknown.
        what_if: For each change its measured (batches a second, wait in ms).
    """

    pipeline_batches_per_s: float
    model_batches_per_s: float | None
    together_batches_per_s: float
    wait_ms: float | None
    stall_fraction: float | None
    slowest_stage: tuple[str, float] | None
    what_if: dict[str, tuple[float, float]]

    def __str__(self):
        lines = [
            f"pipeline alone  {self.pipeline_batches_per_s:8.1f} batches/s"
        ]
        if self.model_batches_per_s is not None:
            lines.append(
                f"model alone     {self.model_batches_per_s:8.1f} batches/s"
            )
        if self.slowest_stage is not None:
            name, share = self.slowest_stage
            lines.append(f"slowest stage   {name} ({share:.0%} of the work)")
        lines.append(f"{'':<16}{'batches/s':>10}{'wait ms':>10}")
        now = (self.together_batches_per_s, self.wait_ms)
        for name, (rate, wait) in {"as it is": now, **self.what_if}.items():
            lines.append(f"{name:<16}{rate:>10.1f}{wait:>10.2f}")
        return "\n".join(lines)


def profile_pipeline(data, model=None, batches=100):
    """Measures a pipeline, a model, both together, and what would help.

    Nothing is trained: the model's weights and seeds, its optimizer and what
    its gradient mode has summed up are put back; its metrics start afresh.
    The data is iterated several times.

    Args:
        data: A `tf.data.Dataset`, `PyDataset`, torch DataLoader, or a tuple
            `(x, y, sample_weight)` of arrays.
        model: A compiled and built `keras.Model`, or None.
        batches: Batches per measurement, rounded up to whole executions
            where the model was compiled with `steps_per_execution`.

    Returns:
        A `PipelineProfile`.

    Raises:
        ValueError: If `batches` is not positive, `data` is a generator or
            gives fewer than two batches, or `model` is not built.

    Example:

    ```python
    print(kpg.profile_pipeline(dataset, model))
    ```
    """
    batches = positive_integer("batches", batches)
    if kind_of(data) == "generator":
        raise ValueError(
            "A Python generator can be read only once, and profiling reads "
            "the data several times. Pass a `tf.data.Dataset` or a "
            f"`keras.utils.PyDataset` that makes it. Received: {data!r}"
        )
    if isinstance(data, tuple):
        data = (*data, None, None)[:3]
    alone = _measure(data, batches)
    with contextlib.ExitStack() as undo:
        model_rate = None
        step, stopwatch = FETCH, Stopwatch()
        together = alone
        if model is not None:
            step = undo.enter_context(untrained(model, batches))
            cached = tf.data.Dataset.from_tensors(first_batch(data)).repeat()
            cached = cached.prefetch(2)
            rate = _measure(cached, batches, step, stopwatch)
            model_rate = rate.batches_per_s
            together = _measure(data, batches, step, stopwatch)
        what_if = {}
        for name, changed in _changes(data, batches, model):
            if changed is not None:
                if name == "cache":
                    _measure(changed, batches + 1)  # fills it, to its end
                tried = _measure(changed, batches, step, stopwatch)
                what_if[name] = (tried.batches_per_s, tried.report.wait_ms)
    return PipelineProfile(
        pipeline_batches_per_s=alone.batches_per_s or 0.0,
        model_batches_per_s=model_rate,
        together_batches_per_s=together.batches_per_s or 0.0,
        wait_ms=together.report.wait_ms,
        stall_fraction=together.report.data_stall_fraction,
        slowest_stage=slowest_stage(alone.running),
        what_if=what_if,
    )


def _measure(data, batches, step=FETCH, stopwatch=None):
    measured = measure(data, batches, step, stopwatch)
    if measured.report.not_recorded:
        raise RuntimeError(
            f"{measured.report.not_recorded} fetches of batches were not "
            f"recorded, so nothing can be told of this model: {TOO_MANY}"
        )
    if measured.batches_per_s is None:
        raise ValueError(
            "Profiling needs a first batch and at least one more. Received "
            f"data with {measured.report.steps} batch(es): {data!r}"
        )
    return measured


def _changes(data, batches, model):
    if isinstance(data, tf.data.Dataset):
        if model is not None:  # it overlaps with a step; alone it is nothing
            yield "prefetch", data.prefetch(tf.data.AUTOTUNE)
        yield "parallel map", with_parallel_maps(data)
        yield "cache", data.take(batches + 1).cache()
    elif isinstance(data, keras.utils.PyDataset) and data.workers <= 1:
        several = copy.copy(data)
        several.workers = 4
        yield "4 workers", several
