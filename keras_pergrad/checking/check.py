"""The check of one gradient, computed in every way, against single samples."""

import dataclasses
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
from keras_pergrad.common.machine import accelerators
from keras_pergrad.common.machine import chosen as device_names
from keras_pergrad.common.numbers import positive_integer
from keras_pergrad.common.registry import PACKAGE, serialize
from keras_pergrad.common.text import reason
from keras_pergrad.keras_internals.data.batches import as_tensors, of_one_length
from keras_pergrad.keras_internals.graphs.runs import as_in_fit
from keras_pergrad.keras_internals.losses.compiled import SetApart
from keras_pergrad.keras_internals.models.inspection import (
    check_trainable,
    require_any_batch_size,
    require_one_batch,
    require_weights,
)
from keras_pergrad.keras_internals.models.parts import build_symbolically
from keras_pergrad.keras_internals.replicas.replicas import out_of_scope
from keras_pergrad.keras_internals.state.model import ModelState
from keras_pergrad.keras_internals.tensorflow import kernels
from keras_pergrad.modes import Accumulated
from keras_pergrad.modes.base import gradient_modes

# The errors of TensorFlow, XLA and the modes where they cannot do it.
_CANNOT = (ValueError, NotImplementedError, tf.errors.OpError)
_WORST_FIRST = (
    numerics.WRONG,
    CANNOT_TELL,
    numerics.ROUNDING,
    numerics.EXACT,
)
_OTHER = (
    "it is meant to give other gradients than the samples', and there is "
    "nothing to compare them with"
)
_NOISE = "it adds noise, which no two runs share"
_WEIGHTED = "its samples are weighted, and they have no gradient of their own"
_SPLIT = (
    "each microbatch goes through the model alone, and the samples depend on "
    "each other, so its gradient is another one"
)
_DRAWN_AFRESH = (
    "random layers draw afresh for each microbatch, so its gradient is "
    "another one"
)


@out_of_scope()
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
    If they still draw other numbers (mostly by XLA and in microbatches), the
    row says that it cannot be compared. Variables that are overwritten with
    their gradient, as in float8 layers, are left out.

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
        ValueError: a model that is not compiled or not built, or draws
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
    check_trainable(model)
    require_any_batch_size(model, "check_gradients()")
    require_one_batch(model, x, y)
    repeats = positive_integer("repeats", repeats)
    _check_settings(settings)
    require_weights(sample_weight)
    data = keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
    data = as_in_fit(data if isinstance(data, tuple) else (data,))
    batch = keras.utils.unpack_x_y_sample_weight(data)
    samples = len(tf.nest.flatten(batch[0])[0])
    chosen = _modes(gradient_modes, model, samples)
    tensors = as_tensors(batch)
    of_one_length(*tensors)
    build_symbolically(model, tensors)
    ways = [
        (label, device, setting)
        for label in chosen
        for device in _places(devices)
        for setting in settings
        if _exists(device, setting, model)
    ]
    with ModelState(model) as state, SetApart(model) as apart:
        check = _Check(model, data, batch, samples, repeats, state)
        bar = keras.utils.Progbar(
            1 + len(ways), verbose=verbose, unit_name="way"
        )
        check.find_reference(chosen)
        bar.update(1)
        rows = []
        for label, device, setting in ways:
            rows.append(check.row(label, chosen[label], device, setting))
            bar.update(1 + len(rows))
    right = check.reference
    notes = right.notes + _own_modes(chosen, rows) + _left_out(apart)
    how = "single samples one by one" if right.how == "loop" else "the batch"
    title = f"{how} in {right.dtype}"
    return GradientCheck(model.name, samples, title, rows, notes)


def _own_modes(chosen, rows):
    """Return notes on the user's own modes that are judged wrong."""
    wrong = {row.mode for row in rows if row.verdict == numerics.WRONG}
    return [
        f"if {label} is meant to give another gradient than the samples "
        f"have, set changes_gradients = True in {type(mode).__name__}: it is "
        "not judged then"
        for label, mode in chosen.items()
        if label in wrong and type(mode).__module__.split(".")[0] != PACKAGE
    ]


def _left_out(apart):
    """Return notes on the variables whose "gradient" is their next value."""
    if not apart.variables:
        return []
    first, *others = apart.variables
    more = f" and {len(others)} more are" if others else " is"
    return [
        f"{first.path!r}{more} overwritten with their gradient (as in "
        "float8 layers), which is the next value: left out"
    ]


def _check_settings(settings):
    unknown = [s for s in settings if s not in execution.SETTINGS]
    if isinstance(settings, str) or unknown or not settings:
        raise ValueError(
            f"`settings` expected a list with some of {execution.SETTINGS}. "
            f"Received: settings={settings!r}"
        )


def _modes(wanted, model, samples):
    """Return label → mode, for what the user asked for."""
    if wanted is None:
        thirds = Accumulated(microbatch_size=math.ceil(samples / 3))
        wanted = ["batch", "vectorized", "per_sample", thirds]
        own = getattr(model, "_gradient_mode", None)
        wanted += [own] if own is not None else []
    if isinstance(wanted, str) or not hasattr(wanted, "__iter__"):
        wanted = [wanted]
    chosen = {}
    for mode in map(gradient_modes.get, wanted):
        if not any(_same(mode, other) for other in chosen.values()):
            label = _label(mode)
            again = sum(name.partition(" #")[0] == label for name in chosen)
            chosen[f"{label} #{again + 1}" if again else label] = mode
    return chosen


def _same(mode, other):
    return type(mode) is type(other) and serialize(mode) == serialize(other)


def _label(mode):
    names = [name for name, cls in gradient_modes.items() if cls is type(mode)]
    label = names[0] if names else type(mode).__name__
    if isinstance(mode, Accumulated):
        label += f" by {mode.microbatch_size}"
        if type(mode.inner).__name__ != "Batch":
            return f"{label}, {_label(mode.inner)}"
    weighing = _aggregation(mode)
    if weighing is not None:
        label += f", {type(weighing).__name__}"
    return label


def _places(devices):
    """Return the names of the devices to compute on."""
    cpu = ["CPU:0"] if devices is None else []
    return cpu + device_names(devices)


def _exists(device, setting, model):
    """Whether this can run: XLA needs the variables' device, and no Metal."""
    if setting != "xla":
        return True
    metal = {d.name for d in accelerators() if d.is_metal}
    return device == execution.home(model) and device not in metal


def _aggregation(mode):
    """Return what weighs the samples, None for the mean."""
    return mode.aggregation if weighs(mode.aggregation) else None


class _Check:
    """One batch of one model, and the reference for its gradients."""

    def __init__(self, model, data, batch, samples, repeats, state):
        self.model, self.data, self.batch = model, data, batch
        self.samples, self.repeats, self.state = samples, repeats, state
        self.dtype = numerics.precision(model)
        self.terms = numerics.terms(model, tf.nest.flatten(batch[0])[0])
        self._steps = {}
        self._refused = {}
        self._same_draws = {}

    def find_reference(self, modes):
        self.drawn = execution.draw_once(self.model, self.batch[0])
        self.state.restore()
        self._aggregations = [None]
        for own in map(_aggregation, modes.values()):
            known = own is None or own in self._aggregations
            if not known and not own.adds_noise:
                self._aggregations.append(own)
        self.reference = reference.find(
            self.model, self.batch, self._aggregations, self.dtype, self.drawn
        )

    def row(self, label, mode, device, setting):
        way = label, device, setting
        try:
            self._require_comparable(mode, device, setting)
            step = self._step(label, mode)
            if device.startswith("CPU") and setting != "xla":
                harm = kernels.defect(step.graph)
                if harm:
                    return CheckRow(*way, numerics.WRONG, reason=harm)
            how = device, setting, self.state, self.repeats
            repeats, step_ms = step.run(*how)
            self._require_numbers(label, repeats)
        except _CANNOT as error:
            why = reason(error)
            self._refused.setdefault(label, why)
            return CheckRow(*way, REFUSED, reason=why)
        dtype = numerics.on_device(self.dtype, device)
        verdicts = self._judge(mode, repeats, dtype)
        worst = {v.verdict for v in verdicts.values()}
        worst = next(v for v in _WORST_FIRST if v in worst)
        return CheckRow(
            *way, worst, verdicts, _spread(repeats), step_ms, dtype=dtype
        )

    def _step(self, label, mode):
        """Return the mode's step, traced once."""
        if label not in self._steps:
            step = execution.TracedMode(self.model, mode, self.data)
            self.state.restore()
            self._steps[label] = step
        return self._steps[label]

    def _require_comparable(self, mode, device, setting):
        own = _aggregation(mode)
        size = mode.microbatch_size
        split = size is not None and size < self.samples
        together = self.reference.how != "loop"
        for applies, why in (
            (mode.updates_by_itself, execution.NO_GRADIENT),
            (mode.changes_gradients, _OTHER),
            (own is not None and own.adds_noise, _NOISE),
            (own is not None and together, _WEIGHTED),
            (split and together, _SPLIT),
            (split and self.drawn, _DRAWN_AFRESH),
        ):
            if applies:
                raise execution.Refused(why)
        if self.drawn and not self._draws_the_same(device, setting):
            raise execution.Refused(
                f"random layers draw other numbers on {device}, {setting}"
            )

    def _draws_the_same(self, device, setting):
        here = device, setting
        if here not in self._same_draws:
            drawn = execution.drawn(
                self.model, self.batch[0], device, setting, self.state
            )
            self._same_draws[here] = all(
                np.allclose(a, b, 1e-5, 1e-6) for a, b in zip(drawn, self.drawn)
            )
        return self._same_draws[here]

    def _require_numbers(self, label, repeats):
        """Refuse NaN of a mode that refused before: XLA drops assertions."""
        arrays = (g for repeat in repeats for g in repeat if g is not None)
        finite = all(np.isfinite(array).all() for array in arrays)
        if not finite and label in self._refused:
            raise execution.Refused(self._refused[label])

    def _judge(self, mode, repeats, dtype):
        """Return the worst verdict of all repeats, by variable."""
        k = self._aggregations.index(_aggregation(mode))
        variables = self.model.trainable_variables
        names = _names([v.path for v in variables])
        sizes = self.reference.magnitudes[k]
        changes = self.reference.sensitivities[k]
        limit = numerics.tolerance(dtype, self.terms)
        # The changes are those that roundings of the model's format make.
        more = 16 * numerics.unit(dtype) / numerics.unit(self.dtype)
        scales = [
            max(size, more * change / limit)
            for size, change in zip(sizes, changes)
        ]
        right = zip(self.reference.gradients[k], variables)
        right = [_rounded(g, v) for g, v in right]
        worst = {}
        for gradients in repeats:
            values = [
                np.zeros(v.shape) if g is None else g
                for g, v in zip(gradients, variables)
            ]
            how = dtype, self.terms, scales
            verdicts = numerics.judge_all(names, right, values, *how)
            for name, verdict in verdicts.items():
                if verdict.relative >= worst.get(name, verdict).relative:
                    worst[name] = _told(verdict)
        return worst


def _told(verdict):
    """Return the verdict, or "cannot tell" if its limit is too large."""
    tells = verdict.tolerance <= LARGEST_LIMIT
    if tells or verdict.verdict != numerics.ROUNDING:
        return verdict
    return dataclasses.replace(verdict, verdict=CANNOT_TELL)


def _rounded(gradient, variable):
    """Round to the variable's format: the best that anything can compute."""
    if gradient is None:
        return np.zeros(variable.shape)
    return np.asarray(tf.cast(gradient, variable.dtype), "float64")


def _names(paths):
    """Return the paths, with a number where several variables share one."""
    counts = [paths[:k].count(path) for k, path in enumerate(paths)]
    return [f"{p} #{n + 1}" if n else p for p, n in zip(paths, counts)]


def _spread(repeats):
    """Return the largest difference between repeats, by element."""
    first, *others = repeats
    pairs = [pair for other in others for pair in zip(first, other)]
    with np.errstate(invalid="ignore"):
        gaps = [np.abs(a - b) for a, b in pairs if a is not None]
    return max((float(np.max(g, initial=0.0)) for g in gaps), default=0.0)
