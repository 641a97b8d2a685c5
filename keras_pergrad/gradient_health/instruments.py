"""The instruments of a training: what they need, and what they read."""

import contextlib
import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_pergrad.common.numbers import squared_norm
from keras_pergrad.gradient_health import figures
from keras_pergrad.gradient_health.batch_gradient import logged
from keras_pergrad.gradient_health.figures import (
    Answer,
    Observation,
    squared_distances,
)
from keras_pergrad.keras_internals.models.parts import layers_of
from keras_pergrad.runs.store import HealthReading, Histogram


@dataclasses.dataclass(frozen=True)
class Instrument:
    """One instrument.

    Attributes:
        read: returns its `Answer` to an `Observation`.
        needs: what it needs besides ḡ: "samples": their norms; "dots": with
            ḡ; "weights": squares by weight; "units": those of layers' units;
            "along": losses and slopes along the last update; "begin",
            "before": weights when training began, before the last update;
            "now": the present ones.
    """

    read: Callable
    needs: frozenset

    def can_read(self, seen):
        """Whether an `Observation` has what it needs."""
        lacking = set()
        if seen.traces is None:
            lacking |= {"samples", "dots", "weights", "units"}
        if seen.ends is None:
            lacking.add("along")
        if seen.update is None:
            lacking.add("before")
        return not self.needs & lacking


def _instrument(read, *needs):
    return Instrument(read, frozenset(needs))


INSTRUMENTS = {
    "norm_test": _instrument(figures.norm_test, "samples"),
    "inner_product_test": _instrument(figures.inner_product_test, "dots"),
    "orthogonality_test": _instrument(
        figures.orthogonality_test, "samples", "dots"
    ),
    "cabs": _instrument(figures.cabs, "samples"),
    # It is measured without being asked for.
    "noise_scale": _instrument(lambda seen: Answer({}), "samples"),
    "snr_by_weight": _instrument(figures.signal_to_noise, "weights"),
    "early_stopping": _instrument(figures.stopping_evidence, "weights"),
    "update_ratio": _instrument(figures.update_ratio, "before"),
    "distance": _instrument(figures.distance, "begin"),
    "alpha": _instrument(figures.alpha, "samples", "along", "before"),
    "dead_units": _instrument(figures.dead_units, "units"),
    "layers": _instrument(figures.layers, "now"),
}


def chosen(instruments, argument="instruments", known=tuple(INSTRUMENTS)):
    """Return the names that an argument asks for, all `known`, in order."""
    names = () if instruments is None else instruments
    if isinstance(names, str):
        names = known if names == "all" else (names,)
    if not isinstance(names, (tuple, list, set)) or not all(
        isinstance(name, str) and name in known for name in names
    ):
        raise ValueError(
            f"`{argument}` expected None, 'all' or a tuple of names of "
            f"instruments: {', '.join(map(repr, known)) or 'none is chosen'}. "
            f"Received: {argument}={instruments!r}"
        )
    return tuple(name for name in known if name in names)


def figures_of(names):
    """Return the names in the logs of instruments of these names."""
    several = {
        "layers": ("gradient_vanishing_layers", "gradient_exploding_layers")
    }
    return {
        figure
        for name in names
        for figure in several.get(name, (f"gradient_{name}",))
    }


def needs_of(names):
    """Return all that instruments of these names need."""
    return frozenset().union(*(INSTRUMENTS[name].needs for name in names))


class HeldWeights:
    """The weights when training began, and before the last update.

    Attributes:
        begin, before: one array a variable, or None: not held.
        is_needed: whether an instrument reads what `held` holds.
    """

    def __init__(self, variables, needs):
        self._variables = list(variables)
        self.is_needed = "before" in needs
        self.before = None
        self.begin = self.now() if "begin" in needs else None

    @contextlib.contextmanager
    def held(self):
        """Hold the weights before an update.

        If it raises, as at the end of the data, there was no update.
        """
        before = self.before
        self.before = self.now()
        try:
            yield
        except BaseException:
            self.before = before
            raise

    def now(self):
        """Return copies of the present weights."""
        # Not views: an optimizer may write into the same memory.
        return [np.array(v.numpy()) for v in self._variables]


BINS = 30


def histogram(values):
    """Return the `Histogram` of an array's finite values, in equal bins."""
    flat = np.asarray(values).reshape(-1)
    finite = np.isfinite(flat)
    if not finite.all():
        flat = flat[finite]
    if not flat.size:
        return Histogram((0,), (0.0, 1.0))
    low, high = float(flat.min()), float(flat.max())
    if not low < high:
        return Histogram((flat.size,), _around(low))
    edges = np.linspace(low, high, BINS + 1)
    # A tenth of the time of np.histogram.
    scale = BINS / (high - low)
    if not np.isfinite(scale):
        return Histogram((flat.size,), _around(low))
    places = ((flat - low) * scale).astype(np.int32)
    counts = np.bincount(np.minimum(places, BINS - 1), minlength=BINS)
    return Histogram(tuple(counts.tolist()), tuple(edges.tolist()))


def _around(value):
    """Return two edges with a value between them."""
    off = abs(value) * 1e-3 or 1e-3
    return value - off, value + off


class SampleQuantities:
    """What the chosen instruments measure in the graph of a step.

    Attributes:
        along: whether slopes along the last update are measured as well.
        units: the `Units` of the layers, where they are measured.
    """

    def __init__(self, needs, model):
        self._needs = needs
        self.along = "along" in needs
        self.units = []
        if "units" in needs:
            trainable = model.trainable_variables
            self.units = figures.units_of(layers_of(model), trainable)

    def __call__(self, n, factors, gradients, dtype):
        """Return by name what is measured.

        `factors`: of each variable the contributions, or None; `gradients`:
        their sums; `n`: how many samples. "dots": ⟨g_i, ḡ⟩, (n,); "ratios":
        those of `signal_by_weight`, (V, 2); "dead": how many units of each
        layer, (layers,).
        """
        measured = {}
        if "dots" in self._needs:
            measured["dots"] = self.dots(n, factors, gradients, dtype)
        if not self._needs & {"weights", "units"}:
            return measured
        squares = [
            _weight_squares(factor, gradient, n, dtype)
            for factor, gradient in zip(factors, gradients)
        ]
        if "weights" in self._needs:
            measured["ratios"] = figures.ratios(gradients, squares, n)
        if self.units:
            counts = [figures.count_dead(unit, squares) for unit in self.units]
            measured["dead"] = tf.stack(counts)
        return measured

    @staticmethod
    def dots(n, factors, directions, dtype):
        """Return ⟨g_i, d⟩ over all variables, (n,)."""
        products = [
            tf.cast(factor.dot(direction), dtype)
            for factor, direction in zip(factors, directions)
            if factor is not None
        ]
        return tf.cast(n, dtype) * sum(products, tf.zeros([n], dtype))


def _weight_squares(factor, gradient, n, dtype):
    """Return Σ g_i² of a variable, in its shape."""
    if factor is None:
        return tf.zeros(gradient.shape, dtype)
    squares = tf.convert_to_tensor(factor.sum_of_squares())
    return tf.cast(squares, dtype) * tf.cast(n, dtype) ** 2


class Instruments:
    """The instruments of one `fit`.

    Attributes:
        quantities: what a `GradientMeter` measures for them.
        weights: the `HeldWeights`.
    """

    def __init__(self, names, model, histograms):
        needs = needs_of(names)
        variables = list(model.trainable_variables)
        self._names, self._model, self._needs = names, model, needs
        self._histograms = histograms
        self._paths = tuple(v.path for v in variables)
        self.quantities = SampleQuantities(needs, model)
        self.weights = HeldWeights(variables, needs)

    def measure(self, step, meter, repeats):
        """Return a `BatchGradient`, and what the instruments read of it."""
        before, now, direction = self.weights.before, [], None
        if self._needs & {"before", "begin", "now"}:
            now = self.weights.now()
        if before is not None and self.quantities.along:
            direction = [w - old for w, old in zip(now, before)]
        measured, start = meter.measure(repeats, direction), None
        if direction is not None and "slopes" in measured.observed:
            start = meter.measure_along(direction, before)
        seen = self._observation(
            measured,
            now,
            _distances(now, before),
            self._learning_rate(),
            start,
        )
        self.weights.before = None
        return measured, self._read(step, measured, seen)

    def around(self, take_step):
        """Take a step; return its result, and what was there around it."""
        needs = self._needs & {"before", "begin", "now"}
        before = self.weights.now() if needs else None
        rate, result = self._learning_rate(), take_step()
        update = None
        if "before" in needs:
            update = _distances(self.weights.now(), before)
        return result, (before, update, rate)

    def read_step(self, step, measured, around):
        """Return what is read of the `BatchGradient` of a step that trained.

        `around`: what `self.around` returned; its weights are those that the
        gradient was measured at.
        """
        seen = self._observation(measured, *around)
        return self._read(step, measured, seen)

    def _read(self, step, measured, seen):
        figures, by_variable = logged(measured), measured.by_variable()
        layers = {}
        for name in self._names:
            instrument = INSTRUMENTS[name]
            if not instrument.can_read(seen):
                continue
            answer = instrument.read(seen)
            figures |= answer.figures
            by_variable |= answer.by_variable
            layers |= answer.layers
        return HealthReading(
            step,
            measured.samples,
            figures,
            {name: _floats(values) for name, values in by_variable.items()},
            self._paths,
            self._histograms_of(measured) if self._histograms else {},
            layers,
        )

    def _observation(self, measured, now, update, rate, start=None):
        samples, weights = measured.observed, self.weights
        ends = None
        if start is not None and "slopes" in samples:
            ends = start, samples
        norms = samples.get("squared_norms")
        return Observation(
            measured.samples,
            self._paths,
            measured.squared_norms,
            measured.variances,
            None if norms is None else norms.sum(0, dtype=np.float64),
            _wide(samples.get("dots")),
            _wide(samples.get("ratios")),
            samples.get("dead", np.zeros(0)),
            tuple(self.quantities.units),
            float(samples.get("loss", np.nan)),
            rate,
            _squares(now) if "now" in self._needs else None,
            update,
            _distances(now, weights.begin),
            ends,
        )

    def _learning_rate(self):
        optimizer = self._model.optimizer
        if optimizer is None:
            return float("nan")
        return float(np.asarray(optimizer.learning_rate))

    def _histograms_of(self, measured):
        histograms = {
            f"gradient/{path}": histogram(gradient)
            for path, gradient in zip(self._paths, measured.values)
        }
        norms = measured.observed.get("squared_norms")
        if norms is not None:
            norms = np.sqrt(norms.sum(0, dtype=np.float64))
            histograms["sample_norms"] = histogram(norms)
        return histograms


def _squares(arrays):
    return np.array([squared_norm(array) for array in arrays])


def _distances(now, before):
    return None if before is None else squared_distances(now, before)


def _wide(array):
    return None if array is None else np.asarray(array, np.float64)


def _floats(values):
    return tuple(float(value) for value in values)
