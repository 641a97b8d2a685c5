"""Rates of a pipeline and a model, measured without training."""

import contextlib
import copy
import dataclasses
import functools
import numbers
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.common.arguments import named_arguments, positive_integer
from keras_pergrad.common.batches import as_tensors
from keras_pergrad.common.text import as_text, bullets
from keras_pergrad.functions.data_passes import make_ready
from keras_pergrad.keras_internals.models.parts import require_targets
from keras_pergrad.keras_internals.replicas.advice import advising
from keras_pergrad.modes.inspection import require_compiled
from keras_pergrad.stalls import verdicts
from keras_pergrad.stalls.accounting import TOO_MANY_FETCHES, StallReport
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
from keras_pergrad.stalls.verdicts import (
    profile_verdict,
    ratio_text,
    short_number,
)

WARM_UP = 10  # batches
NEAR_THE_BEST = 0.9


@dataclasses.dataclass
class PipelineProfile:
    """Result of `profile_pipeline`; `print` it to read it.

    Attributes:
        alone, model, together: `StallReport` of the pipeline alone, of the
            model on a cached batch (or None), and of both.
        changes: The `StallReport` of both with each change.
        stages: List of `StageRow`, the source first: what each stage costs,
            and what AUTOTUNE chose; empty if unknown.
        workers: List of `WorkerTrial`, if `workers` was given.
        cpu_budget, ram_budget: Cores, and bytes for buffers, that AUTOTUNE
            may use; None if unknown.
        spread: By what share two measurements of the same rate differed, of
            the model alone and of both together. Smaller differences mean
            nothing.
    """

    alone: StallReport
    model: StallReport | None
    together: StallReport
    changes: dict[str, StallReport]
    stages: list[StageRow] = dataclasses.field(default_factory=list)
    workers: list[WorkerTrial] = dataclasses.field(default_factory=list)
    cpu_budget: int | None = None
    ram_budget: int | None = None
    spread: float = 0.0

    @property
    def pipeline_batches_per_s(self) -> float:
        """The rate of the pipeline alone."""
        return self.alone.batches_per_s or 0.0

    @property
    def model_batches_per_s(self) -> float | None:
        """The rate of the model on a cached batch, or None."""
        return self.model and self.model.batches_per_s

    @property
    def together_batches_per_s(self) -> float:
        """The rate of `fit` with this pipeline."""
        return self.together.batches_per_s or 0.0

    @property
    def wait_ms(self) -> float | None:
        """Wait per batch when both run together (alone without a model)."""
        return self.together.wait_ms

    @property
    def stall_fraction(self) -> float | None:
        """This wait as a share of the time."""
        return self.together.data_stall_fraction

    @property
    def fraction_without_longest(self) -> float:
        """The same without the longest wait, which may be a mere pause."""
        return self.together.fraction_without_longest

    @property
    def copy_ms(self) -> float | None:
        """Time to copy a batch to an accelerator, a part of the step.

        None without an accelerator, or if it was not timed.
        """
        return self.together.copy_ms

    @property
    def what_if(self) -> dict[str, tuple[float, float]]:
        """Each change with its measured (batches a second, wait in ms)."""
        return {
            name: (report.batches_per_s or 0.0, report.wait_ms or 0.0)
            for name, report in self.changes.items()
        }

    @property
    def slowest_stage(self) -> tuple[str, float] | None:
        """Name and share of the work of the slowest stage; None if unknown."""
        return slowest(self.stages)

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
        verdict = profile_verdict(
            self.alone, self.model, self.together, change=_best_change(self)
        )
        return verdict.text

    @property
    def warnings(self) -> list[str]:
        """List of sentences: where the measurements contradict each other."""
        return [
            f"`{name}` gives {short_number(rate)} batches/s, more than {part} "
            f"({short_number(limit)}), which cannot be. Differences of "
            f"{rate / limit - 1:.0%} mean nothing here: measure again on a "
            "quiet machine, with more `batches`."
            for name, rate, part, limit in _excesses(self)
        ]

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
            0 loads in the training thread. Keras and PyTorch start the
            processes, as `multiprocessing.set_start_method` says.

    Returns:
        A `PipelineProfile`.

    Raises:
        TypeError: If `data` is a model or no data, or `model` is none.
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
    if kind == "unknown" and (
        isinstance(data, str)
        or not (hasattr(data, "__len__") or hasattr(data, "__iter__"))
    ):
        raise TypeError(
            "`data` expected a data set, or arrays as (x, y). Received: "
            f"data={data!r}"
        )
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
    alone = _measure(data, batches)
    with contextlib.ExitStack() as undo:
        step, stopwatch = FETCH_CALL, Stopwatch()
        together_runs, model_runs, cached = [alone], [], None
        if model is not None:
            batch = first_batch(data)
            _require_trainable(model, batch)
            # Profiling puts the weights back, so they must exist.
            unpacked = keras.utils.unpack_x_y_sample_weight(batch)
            make_ready(model, as_tensors(unpacked))
            step = undo.enter_context(temporary_step(model, batches))
            cached = tf.data.Dataset.from_tensors(batch).repeat()
            cached = cached.prefetch(2)
        measured = functools.partial(_measure, step=step, stopwatch=stopwatch)
        if cached is not None:
            # A model's first steps take longer than all later ones.
            measured(cached, min(batches, WARM_UP))
            model_runs = [measured(cached, batches)]
            together_runs = [measured(data, batches)]
        changes = {}
        for name, changed in _changed_pipelines(data, batches, model):
            if changed is not None:
                if name == "cache":
                    _measure(changed, batches + 1)  # fills it, to its end
                changes[name] = measured(changed, batches).report
        trials = try_workers(
            data, counts, lambda changed: measured(changed, batches)
        )
        # Again: the machine may be quieter now, and repeats show the noise.
        together_runs.append(measured(data, batches))
        if cached is not None:
            model_runs.append(measured(cached, batches))
    together = max(together_runs, key=_rate).report
    model_alone = max(model_runs, key=_rate).report if model_runs else None
    verdict = profile_verdict(alone.report, model_alone, together, change="")
    stages = stage_rows(
        data,
        kind,
        written=written_stages(data) if kind == "dataset" else [],
        running=alone.running,
        is_bottleneck=verdict.is_bottleneck,
    )
    return PipelineProfile(
        alone=alone.report,
        model=model_alone,
        together=together,
        changes=changes,
        stages=stages,
        workers=trials,
        cpu_budget=getattr(alone.running, "cpu_budget", None),
        ram_budget=getattr(alone.running, "ram_budget", None),
        spread=max(
            _difference(*map(_rate, runs))
            for runs in (together_runs, model_runs)
            if runs
        ),
    )


def _rate(measurement):
    return measurement.report.batches_per_s or 0.0


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


def _measure(data, batches, *, step=FETCH_CALL, stopwatch=None):
    measurement = measure(data, batches, step=step, stopwatch=stopwatch)
    if measurement.report.not_recorded:
        raise RuntimeError(
            f"{measurement.report.not_recorded} fetches of batches were not "
            "recorded, so nothing can be said about this model: "
            f"{TOO_MANY_FETCHES}"
        )
    if measurement.report.batches_per_s is None:
        raise ValueError(
            "`data` expected at least two batches, since the first one is not "
            f"timed. Received: {measurement.report.steps} in a "
            f"{type(data).__name__}. Pass more data or, of arrays, a data set "
            "of smaller batches: tf.data.Dataset.from_tensor_slices(data)"
            ".batch(8)."
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


def _best_change(profile):
    """Return the change that was measured to help most, as words."""
    now = profile.together_batches_per_s
    rates = {name: rate for name, (rate, _) in profile.what_if.items()}
    best = max(rates, key=lambda name: rates[name], default=None)
    excesses = [rate / limit - 1 for _, rate, _, limit in _excesses(profile)]
    noise = max(verdicts.NOISE, profile.spread, *excesses)
    if best is None or rates[best] <= (1 + noise) * now:
        return ""
    return f"; best of the changes: {best}, {ratio_text(rates[best] / now)}"


def _excesses(profile):
    """Yield (name, rate, part, its rate) where a whole exceeds its part."""
    together = {"together": profile.together_batches_per_s}
    changed = {name: rate for name, (rate, _) in profile.what_if.items()}
    limits = {
        "the model alone": (profile.model_batches_per_s, together | changed),
        "the pipeline alone": (profile.pipeline_batches_per_s, together),
    }
    for part, (limit, rates) in limits.items():
        name = max(rates, key=lambda name: rates[name])
        if limit and rates[name] > (1 + verdicts.NOISE) * limit:
            yield name, rates[name], part, limit
