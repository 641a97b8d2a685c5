"""Rates of a pipeline and a model, measured without training."""

import contextlib
import copy
import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.common.batches import as_tensors
from keras_pergrad.common.names import named_arguments
from keras_pergrad.common.numbers import positive_integer
from keras_pergrad.common.text import as_text, bullets
from keras_pergrad.functions.data_passes import make_ready
from keras_pergrad.keras_internals.replicas.advice import advising
from keras_pergrad.modes.inspection import require_compiled, require_targets
from keras_pergrad.stalls import verdicts
from keras_pergrad.stalls.accounting import TOO_MANY_FETCHES
from keras_pergrad.stalls.diagnosis import short_number
from keras_pergrad.stalls.facts import kind_of
from keras_pergrad.stalls.measuring import (
    FETCH_CALL,
    WorkerTrial,
    first_batch,
    has_workers,
    measure,
    temporary_step,
    try_workers,
)
from keras_pergrad.stalls.stages import (
    StageRow,
    slowest,
    stage_rows,
    stage_table,
    written_stages,
)
from keras_pergrad.stalls.stopwatch import (
    Stopwatch,
    accelerator,
    prefetch_ahead,
)

WARM_UP = 10  # batches
NEAR_THE_BEST = 0.9


@dataclasses.dataclass
class PipelineProfile:
    """Result of `profile_pipeline`; `print` it to read it.

    Attributes:
        pipeline_batches_per_s: The rate of the pipeline alone.
        model_batches_per_s: The rate of the model on a cached batch, or None.
        together_batches_per_s: The rate of `fit` with this pipeline.
        wait_ms: Wait per batch when both run together (alone without a model).
        stall_fraction: This wait as a share of the time.
        fraction_without_longest: The same without the longest wait, which a
            machine that pauses makes.
        spread: By what share two measurements of the same rate differed, of
            the model alone and of both together. Smaller differences mean
            nothing.
        copy_ms: Time to copy a batch to an accelerator, part of the step; None
            without an accelerator, or if it was not timed.
        slowest_stage: Name and share of the work, or None if unknown.
        what_if: Each change with its measured (batches a second, wait in ms).
        stages: List of `StageRow`, the source first: what each stage costs,
            and what AUTOTUNE chose; empty if unknown.
        workers: List of `WorkerTrial`, if `workers` was given.
        cpu_budget, ram_budget: Cores, and bytes for buffers, that AUTOTUNE
            may use; None if unknown.
    """

    pipeline_batches_per_s: float
    model_batches_per_s: float | None
    together_batches_per_s: float
    wait_ms: float | None
    stall_fraction: float | None
    slowest_stage: tuple[str, float] | None
    what_if: dict[str, tuple[float, float]]
    stages: list[StageRow] = dataclasses.field(default_factory=list)
    workers: list[WorkerTrial] = dataclasses.field(default_factory=list)
    cpu_budget: int | None = None
    ram_budget: int | None = None
    copy_ms: float | None = None
    fraction_without_longest: float | None = None
    spread: float = 0.0

    @property
    def knee(self) -> WorkerTrial | None:
        """The fewest workers that come within a tenth of the best rate.

        A `WorkerTrial`; None without a sweep.
        """
        rates = [
            (trial.batches_per_s, trial)
            for trial in self.workers
            if trial.batches_per_s is not None
        ]
        best = max((rate for rate, _ in rates), default=0.0)
        near = [each for each in rates if each[0] >= NEAR_THE_BEST * best]
        fewest = min(near, key=lambda p: (p[1].workers, -p[0]), default=None)
        return fewest and fewest[1]

    @property
    def verdict(self) -> str:
        """One line: whether the pipeline is the bottleneck, and by how much."""
        return _verdict(self)

    @property
    def warnings(self) -> list[str]:
        """List of sentences: where the measurements contradict each other."""
        return _contradictions(self)

    def __str__(self) -> str:
        lines = [
            f"pipeline alone  {self.pipeline_batches_per_s:8.1f} batches/s"
        ]
        if self.model_batches_per_s is not None:
            lines.append(
                f"model alone     {self.model_batches_per_s:8.1f} batches/s"
            )
        if self.copy_ms is not None:
            lines.append(f"copy to device  {self.copy_ms:8.3g} ms a batch")
        if self.slowest_stage is not None:
            name, share = self.slowest_stage
            lines.append(f"slowest stage   {name} ({share:.0%} of the work)")
        now = (self.together_batches_per_s, self.wait_ms or 0.0)
        cells = [
            (name, f"{rate:.1f}", f"{wait:.2f}")
            for name, (rate, wait) in {"as it is": now, **self.what_if}.items()
        ]
        lines += ["", *as_text(("", "batches/s", "wait ms"), cells, left=[""])]
        if self.stages:
            table = stage_table(self.stages, self.cpu_budget, self.ram_budget)
            lines += ["", table]
        if self.workers:
            columns = "workers", "batches/s", "memory MiB"
            cells = [_trial_cells(trial, self.knee) for trial in self.workers]
            lines += ["", *as_text(columns, cells, left=columns[:1])]
        lines += ["", *bullets(self.warnings, "Warning:")]
        return "\n".join([*lines, f"Verdict: {self.verdict}."])


@advising()
@named_arguments
def profile_pipeline(
    data: Any,
    model: keras.Model | None = None,
    *,
    batches: int = 100,
    workers: Sequence[int] | None = None,
) -> PipelineProfile:
    """Measure a pipeline, a model, both together, and what would help.

    Nothing is trained: the model's weights and seeds, its optimizer and the
    sums of its gradient mode are restored; its metrics are reset. The data is
    iterated several times.

    Args:
        data: A `tf.data.Dataset`, `PyDataset`, torch DataLoader, Grain
            DataLoader, MapDataset or IterDataset, or a tuple
            `(x, y, sample_weight)` of arrays.
        model: A compiled `keras.Model`, or None.
        batches: Batches per measurement, rounded up to whole executions
            where the model was compiled with `steps_per_execution`.
        workers: Numbers of workers to try, such as `(0, 1, 2, 4)`, for a
            PyDataset (with threads and with processes) or a torch DataLoader.
            0 loads in the training thread.

    Returns:
        A `PipelineProfile`.

    Raises:
        TypeError: If `data` is a model, or `model` is none.
        ValueError: If `batches` is not positive, `data` is a generator or
            gives fewer than two batches, `model` is not compiled or needs
            targets that `data` lacks, or `workers` are not whole numbers
            or the data has none.

    Example:

    ```python
    print(kpg.diagnose.profile_pipeline(dataset, model))
    ```
    """
    batches = positive_integer("batches", batches)
    if isinstance(data, keras.Model):
        raise TypeError(
            "`data` expected a dataset: profile_pipeline(data, model). "
            f"Received: the model {data.name!r}"
        )
    if model is not None:
        require_compiled(model)
    kind = kind_of(data)
    counts = _worker_counts(workers)
    if counts and not has_workers(kind):
        raise ValueError(
            "`workers` expected a PyDataset or a torch DataLoader, whose "
            f"number of workers can be changed. Received: {data!r}"
        )
    if kind == "generator":
        raise ValueError(
            "A Python generator can be read only once, and profiling reads "
            "the data several times. Pass a `tf.data.Dataset` or a "
            f"`keras.utils.PyDataset` that makes it. Received: {data!r}"
        )
    if isinstance(data, tuple):
        data = (*data, None, None)[:3]
    pipeline_alone = _measure(data, batches)
    with contextlib.ExitStack() as undo:
        model_rate = model_alone = cached = None
        step, stopwatch = FETCH_CALL, Stopwatch()
        together = pipeline_alone
        if model is not None:
            batch = first_batch(data)
            _require_trainable(model, batch)
            # Profiling puts the weights back, so they must exist.
            unpacked = keras.utils.unpack_x_y_sample_weight(batch)
            make_ready(model, as_tensors(unpacked))
            step = undo.enter_context(temporary_step(model, batches))
            cached = tf.data.Dataset.from_tensors(batch).repeat()
            cached = cached.prefetch(2)
            # A model's first steps take longer than all later ones.
            _measure(cached, min(batches, WARM_UP), step, stopwatch)
            model_alone = _measure(cached, batches, step, stopwatch)
            together = _measure(data, batches, step, stopwatch)
        what_if = {}
        for name, changed in _changed_pipelines(data, batches, model):
            if changed is not None:
                if name == "cache":
                    _measure(changed, batches + 1)  # fills it, to its end
                measurement = _measure(changed, batches, step, stopwatch)
                what_if[name] = (
                    measurement.batches_per_s,
                    measurement.report.wait_ms,
                )
        worker_trials = try_workers(
            data,
            kind,
            counts,
            lambda changed: _measure(changed, batches, step, stopwatch),
        )
        # Again: the machine may be quieter now, and repeats show the noise.
        repeats = [[together, _measure(data, batches, step, stopwatch)]]
        if cached is not None and model_alone is not None:
            again = _measure(cached, batches, step, stopwatch)
            repeats.append([model_alone, again])
            model_rate = max(map(_rate, repeats[-1]))
        together = max(repeats[0], key=_rate)
    written = written_stages(data) if kind == "dataset" else []
    running = pipeline_alone.running
    profile = PipelineProfile(
        pipeline_batches_per_s=_rate(pipeline_alone),
        model_batches_per_s=model_rate,
        together_batches_per_s=_rate(together),
        wait_ms=together.report.wait_ms,
        stall_fraction=together.report.data_stall_fraction,
        slowest_stage=None,
        what_if=what_if,
        workers=worker_trials,
        cpu_budget=getattr(running, "cpu_budget", None),
        ram_budget=getattr(running, "ram_budget", None),
        copy_ms=together.report.copy_ms,
        fraction_without_longest=together.report.fraction_without_longest,
        spread=max(_difference(*map(_rate, pair)) for pair in repeats),
    )
    is_bottleneck = _label(profile) == verdicts.BOTTLENECK
    profile.stages = stage_rows(data, kind, written, running, is_bottleneck)
    profile.slowest_stage = slowest(profile.stages)
    return profile


def _rate(measurement):
    return measurement.batches_per_s or 0.0


def _difference(one, other):
    """Return by what share the larger of two rates exceeds the other."""
    least = min(one, other)
    return max(one, other) / least - 1 if least > 0 else 0.0


def _require_trainable(model, batch):
    """Refuse what a train step would fail for without saying why."""
    step = type(model).train_step
    if step.__module__.split(".")[0] in ("keras", "keras_pergrad"):
        try:
            require_targets(model, keras.utils.unpack_x_y_sample_weight(batch))
        except ValueError as error:
            raise ValueError(
                f"{error}. Pass profile_pipeline((x, y), model), or only the "
                "data to profile it alone."
            ) from None


def _measure(data, batches, step=FETCH_CALL, stopwatch=None):
    measurement = measure(data, batches, step, stopwatch)
    if measurement.report.not_recorded:
        raise RuntimeError(
            f"{measurement.report.not_recorded} fetches of batches were not "
            "recorded, so nothing can be told of this model: "
            f"{TOO_MANY_FETCHES}"
        )
    if measurement.batches_per_s is None:
        raise ValueError(
            "Profiling needs a first batch and at least one more. Received "
            f"data with {measurement.report.steps} batch(es): {data!r}"
        )
    return measurement


def _changed_pipelines(data, batches, model):
    if isinstance(data, tf.data.Dataset):
        if model is not None:  # it overlaps with a step; alone it is nothing
            yield "prefetch", data.prefetch(tf.data.AUTOTUNE)
            yield "prefetch to device", prefetch_ahead(data, accelerator())
        yield "cache", data.take(batches + 1).cache()
    elif isinstance(data, keras.utils.PyDataset) and data.workers <= 1:
        with_workers = copy.copy(data)
        with_workers.workers = 4
        yield "4 workers", with_workers


def _worker_counts(workers):
    """Check and return the numbers of workers as a sorted tuple."""
    if workers is None:
        return ()
    counts = tuple(workers) if hasattr(workers, "__iter__") else (workers,)
    for count in counts:
        is_integer = isinstance(count, numbers.Integral)
        if not is_integer or isinstance(count, bool) or count < 0:
            raise ValueError(
                "`workers` expected integers of at least 0, such as "
                f"(0, 1, 2, 4). Received: workers={workers!r}"
            )
    return tuple(sorted({int(count) for count in counts}))


def _trial_cells(trial, knee):
    """Return the three strings of a trial's row."""
    name = f"{trial.workers} {trial.by}" if trial.workers else "0"
    if trial.batches_per_s is None:
        return (f"{name} ({trial.error})", "failed", "")
    memory = trial.memory_mib
    return (
        name + (" <- enough" if trial is knee else ""),
        f"{trial.batches_per_s:.1f}",
        "" if memory is None else f"{memory:.0f}",
    )


def _label(profile):
    """Return the words of `label_of` for a profile; None without a model."""
    pipeline = profile.pipeline_batches_per_s
    model = profile.model_batches_per_s
    if not model:
        return None
    stall_share, wait = profile.stall_fraction, profile.wait_ms
    without_longest = profile.fraction_without_longest
    if without_longest is None:
        without_longest = stall_share
    return verdicts.label_of(
        verdicts.stalls(stall_share, wait, without_longest),
        stall_share,
        1e3 / pipeline if pipeline else math.inf,
        1e3 / model,
    )


def _verdict(profile):
    """Say in one line whether the pipeline of a profile is the bottleneck."""
    pipeline = profile.pipeline_batches_per_s
    label = _label(profile)
    if label is None:
        return (
            "none without a model: the pipeline gives "
            f"{short_number(pipeline)} "
            f"batches/s{_best_change(profile)}"
        )
    ratio = _ratio_text(pipeline / profile.model_batches_per_s)
    if label == verdicts.FAST_ENOUGH:
        return f"{label}: the pipeline gives {ratio} what the model takes"
    waits = f"{label}: the model waits {profile.stall_fraction:.0%} of the time"
    best = _best_change(profile)
    if label == verdicts.BOTTLENECK:
        return waits + (best or f", the pipeline gives {ratio} what it takes")
    return f"{waits}; alone the pipeline gives {ratio} what it takes{best}"


def _ratio_text(ratio):
    """Say how large a ratio is: "34 times", but "4.7% of"."""
    value, unit = (ratio, " times") if ratio >= 1 else (100 * ratio, "% of")
    return (f"{value:.0f}" if value >= 10 else f"{value:.2g}") + unit


def _best_change(profile):
    """Return the change that was measured to help most, as words."""
    now = profile.together_batches_per_s
    rates = {name: rate for name, (rate, _) in profile.what_if.items()}
    best = max(rates, key=lambda name: rates[name], default=None)
    noise = max(
        verdicts.NOISE,
        profile.spread,
        *(_difference(rate, limit) for *_, rate, limit in _excesses(profile)),
    )
    if best is None or rates[best] <= (1 + noise) * now:
        return ""
    return f"; best of the changes: {best}, {_ratio_text(rates[best] / now)}"


def _contradictions(profile):
    """Return a sentence for each limit that a measured rate exceeds."""
    return [
        f"`{name}` gives {short_number(rate)} batches/s, more than {part} "
        f"({short_number(limit)}), which cannot be. Differences of "
        f"{rate / limit - 1:.0%} mean nothing here: measure again on a quiet "
        "machine, with more `batches`."
        for name, part, rate, limit in _excesses(profile)
    ]


def _excesses(profile):
    """Yield (name, part, rate, limit) where a rate exceeds that of a part."""
    rates = {name: rate for name, (rate, _) in profile.what_if.items()}
    together = {"together": profile.together_batches_per_s}
    limits = {
        "the model alone": (profile.model_batches_per_s, together | rates),
        "the pipeline alone": (profile.pipeline_batches_per_s, together),
    }
    for part, (limit, faster) in limits.items():
        name = max(faster, key=lambda name: faster[name])
        if limit and faster[name] > (1 + verdicts.NOISE) * limit:
            yield name, part, faster[name], limit
