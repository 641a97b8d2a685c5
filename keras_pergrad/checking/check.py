"""The check of one gradient, computed in every way, against single samples."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import weighs
from keras_pergrad.checking import execution, numerics, reference
from keras_pergrad.checking.check_table import (
    CANNOT_TELL,
    LARGEST_LIMIT,
    REFUSED,
    CheckRow,
    GradientCheck,
)
from keras_pergrad.common.arguments import named_arguments, positive_integer
from keras_pergrad.common.batches import as_tensors, with_checked_lengths
from keras_pergrad.common.data_batches import common_length, require_weights
from keras_pergrad.common.machine import accelerators, requested_devices
from keras_pergrad.common.names import did_you_mean
from keras_pergrad.common.registry import PACKAGE, serialize
from keras_pergrad.common.text import reason
from keras_pergrad.functions.data_passes import (
    make_ready,
    require_outside_functions,
)
from keras_pergrad.keras_internals.graphs.runs import as_in_fit
from keras_pergrad.keras_internals.models.parts import (
    build_symbolically,
    require_none_overwritten,
)
from keras_pergrad.keras_internals.replicas.advice import advising
from keras_pergrad.keras_internals.replicas.replicas import out_of_scope
from keras_pergrad.keras_internals.state.model import ModelState
from keras_pergrad.keras_internals.tensorflow import onednn
from keras_pergrad.modes import Accumulated, PerSample
from keras_pergrad.modes.base import gradient_modes
from keras_pergrad.modes.inspection import (
    require_any_batch_size,
    require_compiled,
    require_one_batch,
)

# The errors of TensorFlow, XLA and the modes where they cannot do it.
_CANNOT = (ValueError, NotImplementedError, tf.errors.OpError)
_VERDICTS_WORST_FIRST = (
    numerics.WRONG,
    CANNOT_TELL,
    numerics.ROUNDING,
    numerics.EXACT,
)
_OTHER_GRADIENTS = (
    "it is meant to give other gradients than the samples', and there is "
    "nothing to compare them with"
)
_ADDS_NOISE = "it adds noise, which no two runs share"
_WEIGHS_SAMPLES = (
    "its samples are weighted, and they have no gradient of their own"
)
_SPLITS_BATCH = (
    "each microbatch goes through the model alone, and the samples depend on "
    "each other, so its gradient is another one"
)
_FRESH_DRAWS = (
    "random layers draw afresh for each {part}, so its gradient is another one"
)


@out_of_scope()
@advising()
@named_arguments
def check_gradients(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    gradient_modes: Sequence[Any] | None = None,
    devices: Sequence[str] | None = None,
    repeats: int = 3,
    settings: Sequence[str] = execution.SETTINGS,
    verbose: int = 1,
) -> GradientCheck:
    """Compare the gradients of one batch, computed in every possible way.

    Each mode runs on each device: op by op, as a graph and by XLA. The
    reference is a loop over single samples on a plain `tf.GradientTape` in
    float64 on the CPU (in the model's own format where an op has no float64).
    A difference is rounding if the float format, the number of summed terms
    and the model's own amplification of rounding explain it, else it is wrong.
    Products of float32 on a GPU have ten bits (TensorFloat-32), unless that is
    switched off: there the limit is that of ten bits, and the answer says so.
    If rounding alone may exceed a quarter of a gradient, as in half precision,
    the verdict is "cannot tell". The model is left as it is: weights, seeds,
    metrics and moving statistics. Random layers get the same seeds everywhere.
    If they still draw other numbers (mostly by XLA, in microbatches and in
    "per_sample"), the row says that it cannot be compared.

    Where samples have no gradient of their own (BatchNormalization in
    training), the reference is the batch's gradient in float64, and the
    per-sample modes get a row that says why they refuse.

    Args:
        model: a compiled and built `keras.Model` or `PerGradModel`. Its loss
            is used, not a `train_step` that it overrides.
        x: one batch of inputs.
        y: its targets.
        sample_weight: its weights, or `None`.
        gradient_modes: names and `GradientMode` objects; by default "batch",
            "vectorized", "per_sample", "accumulated" (in three
            microbatches), and the mode that the model is compiled with.
        repeats: how often each is computed, after one warm-up. The time is the
            median, the verdict the worst.
        devices: names such as `"GPU:0"`; by default the CPU and every
            accelerator.
        settings: any of `"eager"`, `"graph"` and `"xla"`. XLA is left out
            on Metal, and runs only where the variables are.
        verbose: whether to show a progress bar, with a step for the
            reference and for each row.

    Returns:
        A `GradientCheck` with `.rows`, `.ok` and `.answer`.

    Raises:
        ValueError: a model that is not compiled, or draws
            random numbers without `keras.random`; a dataset, or no `y` for
            a loss that needs it; an unknown mode, device or setting;
            `repeats` below 1.

    Example:

    >>> import keras, numpy
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> x, y = numpy.eye(4), numpy.ones((4, 3))
    >>> check = kpg.check_gradients(
    ...     model, x, y, gradient_modes=["batch"], repeats=1, verbose=0
    ... )
    >>> check.ok
    True
    """
    require_outside_functions()
    require_compiled(model)
    require_one_batch(model, x, y)
    repeats = positive_integer("repeats", repeats)
    _check_settings(settings)
    require_weights(sample_weight)
    data = keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
    data = as_in_fit(data if isinstance(data, tuple) else (data,))
    batch = keras.utils.unpack_x_y_sample_weight(data)
    samples = common_length(batch)
    tensors = as_tensors(batch)
    with_checked_lengths(*tensors)
    make_ready(model, tensors)
    require_any_batch_size(model, "check_gradients()")
    require_none_overwritten(model)
    modes = _labelled_modes(gradient_modes, model, samples)
    places = requested_devices(devices)
    if devices is None:
        places = ["CPU:0", *places]
    build_symbolically(model, tensors)
    combinations = [
        (label, device, setting)
        for label in modes
        for device in places
        for setting in settings
        if _can_run(device, setting, model)
    ]
    with ModelState(model) as state:
        check = _Check(
            model, data, batch, samples=samples, repeats=repeats, state=state
        )
        if verbose:
            print(
                "Gradients of single samples in float64, then in "
                f"{len(combinations)} ways (mode, device, setting)",
                flush=True,
            )
        bar = keras.utils.Progbar(
            1 + len(combinations), verbose=verbose, unit_name="way"
        )
        bar.update(0)
        check.find_reference(modes)
        bar.update(1)
        rows = []
        for label, device, setting in combinations:
            rows.append(check.row(label, modes[label], device, setting=setting))
            bar.update(1 + len(rows))
    expected = check.reference
    notes = expected.notes + _own_mode_notes(modes, rows)
    procedure = (
        "single samples one by one" if expected.how == "loop" else "the batch"
    )
    title = f"{procedure} in {expected.dtype}"
    return GradientCheck(model.name, samples, title, rows=rows, notes=notes)


def _own_mode_notes(modes, rows):
    """Return notes on the user's own modes that are judged wrong."""
    wrong = {row.mode for row in rows if row.verdict == numerics.WRONG}
    return [
        f"if {label} is meant to give another gradient than the samples "
        f"have, set changes_gradients = True in {type(mode).__name__}: it is "
        "not judged then"
        for label, mode in modes.items()
        if label in wrong and type(mode).__module__.split(".")[0] != PACKAGE
    ]


def _check_settings(settings):
    is_list = isinstance(settings, (list, tuple))
    given = settings if is_list else ()
    unknown = [s for s in given if s not in execution.SETTINGS]
    if not is_list or unknown or not settings:
        hint = did_you_mean(next(iter(unknown), ""), execution.SETTINGS)
        raise ValueError(
            f"`settings` expected a list with some of {execution.SETTINGS}. "
            f"Received: settings={settings!r}.{hint}"
        )


def _labelled_modes(requested, model, samples):
    """Return label → mode, for what the user asked for."""
    if requested is None:
        in_thirds = Accumulated(microbatch_size=math.ceil(samples / 3))
        requested = ["batch", "vectorized", "per_sample", in_thirds]
        compiled_mode = getattr(model, "_gradient_mode", None)
        requested += [compiled_mode] if compiled_mode is not None else []
    if isinstance(requested, str) or not hasattr(requested, "__iter__"):
        requested = [requested]
    modes = {}
    for mode in map(gradient_modes.get, requested):
        if not any(
            type(mode) is type(other) and serialize(mode) == serialize(other)
            for other in modes.values()
        ):
            label = _label_of(mode)
            duplicates = sum(name.partition(" #")[0] == label for name in modes)
            modes[f"{label} #{duplicates + 1}" if duplicates else label] = mode
    if not modes:
        raise ValueError(
            "`gradient_modes` expected at least one mode to check, or None for "
            f"all. Received: gradient_modes={requested!r}"
        )
    return modes


def _label_of(mode):
    names = [name for name, cls in gradient_modes.items() if cls is type(mode)]
    label = names[0] if names else type(mode).__name__
    if isinstance(mode, Accumulated):
        label += f" by {mode.microbatch_size}"
        if type(mode.inner).__name__ != "Batch":
            return f"{label}, {_label_of(mode.inner)}"
    aggregation = _weighing_aggregation(mode)
    if aggregation is not None:
        label += f", {type(aggregation).__name__}"
    return label


def _can_run(device, setting, model):
    """Whether this can run: XLA needs the variables' device, and no Metal."""
    if setting != "xla":
        return True
    metal_devices = {d.name for d in accelerators() if d.is_metal}
    return (
        device == execution.variables_device(model)
        and device not in metal_devices
    )


def _weighing_aggregation(mode):
    """Return what weighs the samples, None for the mean."""
    return mode.aggregation if weighs(mode.aggregation) else None


class _Check:
    """One batch of one model, and the reference for its gradients."""

    def __init__(self, model, data, batch, *, samples, repeats, state):
        self.model, self.data, self.batch = model, data, batch
        self.samples, self.repeats, self.state = samples, repeats, state
        self.dtype = numerics.precision(model)
        self.terms = numerics.terms(model, tf.nest.flatten(batch[0])[0])
        self._steps = {}
        self._refused = {}
        self._same_draws = {}

    def find_reference(self, modes):
        self.recorded_draws = execution.record_draws(self.model, self.batch[0])
        self.state.restore()
        self._aggregations = [None]
        for aggregation in map(_weighing_aggregation, modes.values()):
            is_known = aggregation in self._aggregations
            if not is_known and not aggregation.adds_noise:
                self._aggregations.append(aggregation)
        self.reference = reference.find(
            self.model,
            self.batch,
            self._aggregations,
            dtype=self.dtype,
            recorded_draws=self.recorded_draws,
        )

    def row(self, label, mode, device, *, setting):
        row = functools.partial(
            CheckRow, mode=label, device=device, setting=setting
        )
        try:
            self._require_comparable(mode, device, setting)
            step = self._step(label, mode)
            if device.startswith("CPU") and setting != "xla":
                defect = onednn.defect(step.graph)
                if defect:
                    return row(verdict=numerics.WRONG, reason=defect)
            repeats, step_ms = step.run(
                device=device,
                setting=setting,
                state=self.state,
                repeats=self.repeats,
            )
            self._require_numbers(label, repeats)
        except _CANNOT as error:
            text = reason(error)
            self._refused.setdefault(label, text)
            return row(verdict=REFUSED, reason=text)
        dtype = numerics.on_device(self.dtype, device)
        verdicts = self._judge(mode, repeats, dtype)
        given = {v.verdict for v in verdicts.values()}
        return row(
            verdict=next(v for v in _VERDICTS_WORST_FIRST if v in given),
            verdicts=verdicts,
            between_repeats=_spread(repeats),
            step_ms=step_ms,
            dtype=dtype,
        )

    def _step(self, label, mode):
        """Return the mode's step, traced once."""
        if label not in self._steps:
            step = execution.TracedMode(self.model, mode, self.data)
            self.state.restore()
            self._steps[label] = step
        return self._steps[label]

    def _require_comparable(self, mode, device, setting):
        aggregation = _weighing_aggregation(mode)
        size = mode.microbatch_size
        splits_batch = size is not None and size < self.samples
        goes_one_by_one = isinstance(getattr(mode, "inner", mode), PerSample)
        is_batch_reference = self.reference.how != "loop"
        for applies, why in (
            (mode.updates_by_itself, execution.NO_BATCH_GRADIENT),
            (mode.changes_gradients, _OTHER_GRADIENTS),
            (aggregation is not None and aggregation.adds_noise, _ADDS_NOISE),
            (aggregation is not None and is_batch_reference, _WEIGHS_SAMPLES),
            (splits_batch and is_batch_reference, _SPLITS_BATCH),
            (
                splits_batch and self.recorded_draws,
                _FRESH_DRAWS.format(part="microbatch"),
            ),
            (
                goes_one_by_one and self.recorded_draws,
                _FRESH_DRAWS.format(part="sample"),
            ),
        ):
            if applies:
                raise execution.Refused(why)
        if self.recorded_draws and not self._draws_the_same(device, setting):
            raise execution.Refused(
                f"random layers draw other numbers on {device}, {setting}"
            )

    def _draws_the_same(self, device, setting):
        place = device, setting
        if place not in self._same_draws:
            device_draws = execution.draws_on(
                self.model,
                self.batch[0],
                device,
                setting=setting,
                state=self.state,
            )
            self._same_draws[place] = all(
                np.allclose(a, b, 1e-5, 1e-6)
                for a, b in zip(device_draws, self.recorded_draws)
            )
        return self._same_draws[place]

    def _require_numbers(self, label, repeats):
        """Refuse NaN of a mode that another setting refused."""
        # XLA drops the assertions by which modes refuse a batch.
        arrays = (g for repeat in repeats for g in repeat if g is not None)
        finite = all(np.isfinite(array).all() for array in arrays)
        if not finite and label in self._refused:
            raise execution.Refused(self._refused[label])

    def _judge(self, mode, repeats, dtype):
        """Return the worst verdict of all repeats, by variable."""
        index = self._aggregations.index(_weighing_aggregation(mode))
        variables = self.model.trainable_variables
        names = _unique_names([v.path for v in variables])
        magnitudes = self.reference.magnitudes[index]
        sensitivities = self.reference.sensitivities[index]
        limit = numerics.tolerance(dtype, self.terms)
        # The changes are those that roundings of the model's format make.
        change_factor = 16 * numerics.unit(dtype) / numerics.unit(self.dtype)
        scales = [
            max(size, change_factor * change / limit)
            for size, change in zip(magnitudes, sensitivities)
        ]
        references = zip(self.reference.gradients[index], variables)
        references = [_round_to_format(g, v) for g, v in references]
        worst_verdicts = {}
        for gradients in repeats:
            for name, right, gradient, scale in zip(
                names, references, gradients, scales
            ):
                verdict = numerics.judge(
                    right,
                    np.zeros(right.shape) if gradient is None else gradient,
                    dtype,
                    terms=self.terms,
                    scale=scale,
                )
                worst_so_far = worst_verdicts.get(name, verdict)
                if verdict.relative >= worst_so_far.relative:
                    worst_verdicts[name] = _limited_verdict(verdict)
        return worst_verdicts


def _limited_verdict(verdict):
    """Return the verdict, or "cannot tell" if its limit is too large."""
    limit_is_small = verdict.tolerance <= LARGEST_LIMIT
    if limit_is_small or verdict.verdict != numerics.ROUNDING:
        return verdict
    return dataclasses.replace(verdict, verdict=CANNOT_TELL)


def _round_to_format(gradient, variable):
    """Round to the variable's format: the best that anything can compute."""
    if gradient is None:
        return np.zeros(variable.shape)
    return np.asarray(tf.cast(gradient, variable.dtype), "float64")


def _unique_names(paths):
    """Return the paths, with a number where several variables share one."""
    counts = [paths[:k].count(path) for k, path in enumerate(paths)]
    return [f"{p} #{n + 1}" if n else p for p, n in zip(paths, counts)]


def _spread(repeats):
    """Return the largest difference between repeats, by element."""
    first, *others = repeats
    pairs = [pair for other in others for pair in zip(first, other)]
    with np.errstate(invalid="ignore"):
        differences = [np.abs(a - b) for a, b in pairs if a is not None]
    return max(
        (float(np.max(g, initial=0.0)) for g in differences), default=0.0
    )
