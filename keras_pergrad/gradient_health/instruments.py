"""The instruments of a training: what they need, and what they read."""

import contextlib
import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_pergrad.common.names import did_you_mean
from keras_pergrad.common.numbers import squared_norm
from keras_pergrad.gradient_health import figures
from keras_pergrad.gradient_health.batch_gradient import log_values
from keras_pergrad.gradient_health.figures import (
    InstrumentResult,
    Observation,
    squared_distances,
)
from keras_pergrad.keras_internals.models.parts import layers_of
from keras_pergrad.runs.store import HealthReading, Histogram


@dataclasses.dataclass(frozen=True)
class Instrument:
    """One instrument.

    Attributes:
        read: returns its `InstrumentResult` for an `Observation`.
        needs: what it needs besides ḡ: "samples": the norms of the samples'
            gradients; "dots": their products with ḡ; "weights": squares by
            weight; "units": squares by unit of a layer; "along": losses and
            slopes along the last update; "begin", "before", "now": the
            weights when training began, before the last update, and now.
    """

    read: Callable
    needs: frozenset

    def can_read(self, observation):
        """Whether an `Observation` has what it needs."""
        missing = set()
        if observation.traces is None:
            missing |= {"samples", "dots", "weights", "units"}
        if observation.ends is None:
            missing.add("along")
        if observation.update is None:
            missing.add("before")
        return not self.needs & missing


def _make_instrument(read, *needs):
    return Instrument(read, frozenset(needs))


INSTRUMENTS = {
    "norm_test": _make_instrument(figures.norm_test, "samples"),
    "inner_product_test": _make_instrument(figures.inner_product_test, "dots"),
    "orthogonality_test": _make_instrument(
        figures.orthogonality_test, "samples", "dots"
    ),
    "cabs": _make_instrument(figures.cabs, "samples"),
    # Every reading has its figure already.
    "noise_scale": _make_instrument(
        lambda observation: InstrumentResult({}), "samples"
    ),
    "snr_by_weight": _make_instrument(figures.signal_to_noise, "weights"),
    "early_stopping": _make_instrument(figures.stopping_evidence, "weights"),
    "update_ratio": _make_instrument(figures.update_ratio, "before"),
    "distance": _make_instrument(figures.distance, "begin"),
    "alpha": _make_instrument(figures.alpha, "samples", "along", "before"),
    "dead_units": _make_instrument(figures.dead_units, "units"),
    "layers": _make_instrument(figures.layers, "now"),
}


def select_instruments(instruments):
    """Return the names that the argument asks for, in order."""
    choices = tuple(INSTRUMENTS)
    names = () if instruments is None else instruments
    if isinstance(names, str):
        names = choices if names == "all" else (names,)
    is_list = isinstance(names, (tuple, list, set))
    unknown = [n for n in names if n not in choices] if is_list else [names]
    if unknown:
        unknown = next(iter(unknown))
        raise ValueError(
            "`instruments` expected None, 'all' or a tuple of names of "
            f"instruments: {', '.join(map(repr, choices))}. "
            f"Received: instruments={instruments!r}."
            f"{did_you_mean(unknown, (*choices, 'all'))}"
        )
    return tuple(name for name in choices if name in names)


def figure_names(names):
    """Return the names in the logs of instruments of these names."""
    names_of_layers = {
        "layers": ("gradient_vanishing_layers", "gradient_exploding_layers")
    }
    return {
        figure
        for name in names
        for figure in names_of_layers.get(name, (f"gradient_{name}",))
    }


def needs_of_instruments(names):
    """Return all that instruments of these names need."""
    return frozenset().union(*(INSTRUMENTS[name].needs for name in names))


class WeightCopies:
    """The weights when training began, and before the last update.

    Attributes:
        initial, before_update: one array a variable, or None: no copy.
        is_needed: whether an instrument reads what `hold` holds.
    """

    def __init__(self, variables, needs):
        self._variables = list(variables)
        self.is_needed = "before" in needs
        self.before_update = None
        self.initial = self.current() if "begin" in needs else None

    @contextlib.contextmanager
    def hold(self):
        """Hold the weights before an update.

        If it raises, as at the end of the data, there was no update.
        """
        previous = self.before_update
        self.before_update = self.current()
        try:
            yield
        except BaseException:
            self.before_update = previous
            raise

    def current(self):
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
        return Histogram((flat.size,), _edges_around(low))
    edges = np.linspace(low, high, BINS + 1)
    # A tenth of the time of np.histogram.
    scale = BINS / (high - low)
    if not np.isfinite(scale):
        return Histogram((flat.size,), _edges_around(low))
    bins = ((flat - low) * scale).astype(np.int32)
    counts = np.bincount(np.minimum(bins, BINS - 1), minlength=BINS)
    return Histogram(tuple(counts.tolist()), tuple(edges.tolist()))


def _edges_around(value):
    """Return two edges with a value between them."""
    margin = abs(value) * 1e-3 or 1e-3
    return value - margin, value + margin


class SampleQuantities:
    """What the chosen instruments measure in the graph of a step.

    Attributes:
        needs_slopes: whether slopes along the last update are measured as well.
        units: the `Units` of the layers, where they are measured.
    """

    def __init__(self, needs, model):
        self._needs = needs
        self.needs_slopes = "along" in needs
        self.units = []
        if "units" in needs:
            trainable = model.trainable_variables
            self.units = figures.find_units(layers_of(model), trainable)

    def __call__(self, n, factors, gradients, dtype):
        """Return by name what is measured.

        `factors`: of each variable the contributions, or None; `gradients`:
        their sums; `n`: how many samples. "dots": ⟨g_i, ḡ⟩, (n,); "ratios":
        those of `figures.snr_sums`, (V, 2); "dead": how many units of each
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
            measured["ratios"] = figures.snr_sums(gradients, squares, n)
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
        weights: the `WeightCopies`.
    """

    def __init__(self, names, model, histograms):
        needs = needs_of_instruments(names)
        variables = list(model.trainable_variables)
        self._names, self._model, self._needs = names, model, needs
        self._histograms = histograms
        self._paths = tuple(v.path for v in variables)
        self.quantities = SampleQuantities(needs, model)
        self.weights = WeightCopies(variables, needs)

    def measure(self, step, meter, repeats):
        """Return a `BatchGradient`, and what the instruments read of it."""
        before, now, direction = self.weights.before_update, [], None
        if self._needs & {"before", "begin", "now"}:
            now = self.weights.current()
        if before is not None and self.quantities.needs_slopes:
            direction = [w - previous for w, previous in zip(now, before)]
        measurement, slopes_before = meter.measure(repeats, direction), None
        if direction is not None and "slopes" in measurement.observed:
            slopes_before = meter.measure_along(direction, before)
        observation = self._observation(
            measurement,
            now,
            _optional_distances(now, before),
            self._learning_rate(),
            slopes_before,
        )
        self.weights.before_update = None
        return measurement, self._read(step, measurement, observation)

    def step_with_update(self, take_step):
        """Take a step; return its result, and the data of its update.

        The data: the weights before it, what it did to them, and its rate.
        """
        needs = self._needs & {"before", "begin", "now"}
        before = self.weights.current() if needs else None
        rate, result = self._learning_rate(), take_step()
        update = None
        if "before" in needs:
            update = _optional_distances(self.weights.current(), before)
        return result, (before, update, rate)

    def read_step(self, step, measurement, update_data):
        """Return what is read of the `BatchGradient` of a step that trained.

        `update_data`: what `step_with_update` returned beside the result; its
        weights are those that the gradient was measured at.
        """
        observation = self._observation(measurement, *update_data)
        return self._read(step, measurement, observation)

    def _read(self, step, measurement, observation):
        figures, by_variable = (
            log_values(measurement),
            measurement.by_variable(),
        )
        layers = {}
        for name in self._names:
            instrument = INSTRUMENTS[name]
            if not instrument.can_read(observation):
                continue
            result = instrument.read(observation)
            figures |= result.figures
            by_variable |= result.by_variable
            layers |= result.layers
        return HealthReading(
            step,
            measurement.samples,
            figures,
            {name: _floats(values) for name, values in by_variable.items()},
            self._paths,
            self._histograms_of(measurement) if self._histograms else {},
            layers,
            float(measurement.loss),
        )

    def _observation(
        self, measurement, weights_now, update, rate, slopes_before=None
    ):
        samples, weights = measurement.observed, self.weights
        endpoints = None
        if slopes_before is not None and "slopes" in samples:
            endpoints = slopes_before, samples
        norms = samples.get("squared_norms")
        return Observation(
            measurement.samples,
            self._paths,
            measurement.squared_norms,
            measurement.variances,
            None if norms is None else norms.sum(0, dtype=np.float64),
            _as_float64(samples.get("dots")),
            _as_float64(samples.get("ratios")),
            samples.get("dead", np.zeros(0)),
            tuple(self.quantities.units),
            float(samples.get("loss", np.nan)),
            rate,
            _squares(weights_now) if "now" in self._needs else None,
            update,
            _optional_distances(weights_now, weights.initial),
            endpoints,
        )

    def _learning_rate(self):
        optimizer = self._model.optimizer
        if optimizer is None:
            return float("nan")
        return float(np.asarray(optimizer.learning_rate))

    def _histograms_of(self, measurement):
        histograms = {
            f"gradient/{path}": histogram(gradient)
            for path, gradient in zip(self._paths, measurement.values)
        }
        norms = measurement.observed.get("squared_norms")
        if norms is not None:
            norms = np.sqrt(norms.sum(0, dtype=np.float64))
            histograms["sample_norms"] = histogram(norms)
        return histograms


def _squares(arrays):
    return np.array([squared_norm(array) for array in arrays])


def _optional_distances(weights, others):
    return None if others is None else squared_distances(weights, others)


def _as_float64(array):
    return None if array is None else np.asarray(array, np.float64)


def _floats(values):
    return tuple(float(value) for value in values)
