"""The instruments of a training: what they need, and what they read."""

import contextlib
import dataclasses

import numpy as np
import tensorflow as tf

from keras_pergrad.common.names import did_you_mean
from keras_pergrad.common.numbers import squared_norm
from keras_pergrad.gradient_health import (
    last_update,
    layer_gradients,
    size_tests,
    weight_ratios,
)
from keras_pergrad.gradient_health.figures import read_basic
from keras_pergrad.keras_internals.models.parts import (
    compiled_metrics,
    layers_of,
)
from keras_pergrad.runs.figures import BASIC, FIGURES, INSTRUMENTS, TRAINING
from keras_pergrad.runs.reading import Histogram, Reading

#: The function of each instrument, from an `Observation` to its
#: `InstrumentResult`; None: every reading has it.
READ = {
    "noise_scale": None,
    "norm_test": size_tests.norm_test,
    "inner_product_test": size_tests.inner_product_test,
    "orthogonality_test": size_tests.orthogonality_test,
    "cabs": size_tests.cabs,
    "snr_by_weight": weight_ratios.signal_to_noise,
    "early_stopping": weight_ratios.stopping_evidence,
    "update_ratio": last_update.update_ratio,
    "distance": last_update.distance,
    "alpha": last_update.alpha,
    "dead_units": layer_gradients.dead_units,
    "layers": layer_gradients.layers,
}


def select_instruments(instruments):
    """Return the names that the argument asks for, in order."""
    names = () if instruments is None else instruments
    if isinstance(names, str):
        names = INSTRUMENTS if names == "all" else (names,)
    is_list = isinstance(names, (tuple, list, set))
    unknown = [n for n in names if n not in INSTRUMENTS] if is_list else [names]
    if unknown:
        unknown = next(iter(unknown))
        raise ValueError(
            "`instruments` expected None, 'all' or a tuple of names of "
            f"instruments: {', '.join(map(repr, INSTRUMENTS))}. "
            f"Received: instruments={instruments!r}."
            f"{did_you_mean(unknown, (*INSTRUMENTS, 'all'))}"
        )
    return tuple(name for name in INSTRUMENTS if name in names)


def figures_of(name):
    """Return the figures of an instrument."""
    return [f for f in FIGURES.values() if f.instrument == name]


def needs_of(name):
    """Return what an instrument of this name needs."""
    return frozenset().union(*(figure.needs for figure in figures_of(name)))


def require_distinct_names(model, instruments):
    """Refuse a metric of a built model that the logs name as a figure."""
    read = [f.name for name in instruments for f in figures_of(name)]
    names = {*read, *(f.name for f in BASIC)}
    names |= {f"train_{figure.name}" for figure in TRAINING}
    outputs = getattr(model, "output_names", None) or ()
    metric_names = {metric.name for metric in model.metrics}
    for metric in getattr(compiled_metrics(model), "metrics", ()):
        if len(outputs) > 1:
            metric_names |= {f"{output}_{metric.name}" for output in outputs}
        else:
            metric_names.add(metric.name)
    clashes = sorted(metric_names & names)
    if clashes:
        raise ValueError(
            "GradientVariance expected metrics of other names than its own "
            f"figures in the logs. Received: a metric named {clashes[0]!r}. "
            f"Give it another name, such as name='my_{clashes[0]}'."
        )


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
    scale = BINS / (high - low) if low < high else np.inf
    if not np.isfinite(scale):
        margin = abs(low) * 1e-3 or 1e-3
        return Histogram((flat.size,), (low - margin, low + margin))
    edges = np.linspace(low, high, BINS + 1)
    # A tenth of the time of np.histogram.
    bins = ((flat - low) * scale).astype(np.int32)
    counts = np.bincount(np.minimum(bins, BINS - 1), minlength=BINS)
    return Histogram(tuple(counts.tolist()), tuple(edges.tolist()))


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
            self.units = layer_gradients.find_units(layers_of(model), trainable)

    def __call__(self, n, factors, *, gradients, dtype):
        """Return by name what is measured.

        `factors`: of each variable the contributions, or None; `gradients`:
        their sums; `n`: how many samples. "dots": ⟨g_i, ḡ⟩, (n,); "ratios":
        those of `snr_sums`, (V, 2); "dead": how many units of each
        layer, (layers,).
        """
        measured = {}
        if "dots" in self._needs:
            measured["dots"] = self.dots(
                n, factors, directions=gradients, dtype=dtype
            )
        if not self._needs & {"weights", "units"}:
            return measured
        squares = [
            _weight_squares(factor, gradient, n=n, dtype=dtype)
            for factor, gradient in zip(factors, gradients)
        ]
        if "weights" in self._needs:
            measured["ratios"] = weight_ratios.snr_sums(gradients, squares, n)
        if self.units:
            counts = [
                layer_gradients.count_dead(unit, squares) for unit in self.units
            ]
            measured["dead"] = tf.stack(counts)
        return measured

    @staticmethod
    def dots(n, factors, *, directions, dtype):
        """Return ⟨g_i, d⟩ over all variables, (n,)."""
        products = [
            tf.cast(factor.dot(direction), dtype)
            for factor, direction in zip(factors, directions)
            if factor is not None
        ]
        return tf.cast(n, dtype) * sum(products, tf.zeros([n], dtype))


def _weight_squares(factor, gradient, *, n, dtype):
    """Return Σ g_i² of a variable, in its shape."""
    if factor is None:
        return tf.zeros(gradient.shape, dtype)
    squares = tf.convert_to_tensor(factor.sum_of_squares())
    return tf.cast(squares, dtype) * tf.cast(n, dtype) ** 2


class Instruments:
    """The instruments of one `fit`.

    Args:
        names: of the instruments.
        model: the model, built.
        histograms: whether readings have histograms.

    Attributes:
        quantities: what a `GradientMeter` measures for them.
        weights: the `WeightCopies`.
    """

    def __init__(self, names, model, histograms):
        needs = frozenset().union(*map(needs_of, names))
        variables = list(model.trainable_variables)
        self._names, self._model, self._needs = names, model, needs
        self._histograms = histograms
        self._paths = tuple(v.path for v in variables)
        self.quantities = SampleQuantities(needs, model)
        self.weights = WeightCopies(variables, needs)

    def measure(self, meter, repeats):
        """Return the `Observation` of the present weights."""
        before, now, direction = self.weights.before_update, [], None
        if self._needs & {"before", "begin", "now"}:
            now = self.weights.current()
        if before is not None and self.quantities.needs_slopes:
            direction = [w - previous for w, previous in zip(now, before)]
        observation = meter.measure(repeats, direction)
        if direction is not None and observation.end is not None:
            start = meter.measure_along(direction, before)
            observation = dataclasses.replace(observation, start=start)
        self.weights.before_update = None
        return self._with_weights(
            observation,
            now,
            update=_optional_distances(now, before),
            rate=self._learning_rate(),
        )

    def measure_step(self, take_step, reader):
        """Take a step, and return its result and its `Observation`, or None.

        The observation is of the weights before the step, and of the update.
        """
        needs = self._needs & {"before", "begin", "now"}
        before = self.weights.current() if needs else []
        reader.observation, rate = None, self._learning_rate()
        result, update = take_step(), None
        if "before" in needs:
            update = _optional_distances(self.weights.current(), before)
        return result, self._with_weights(
            reader.observation, before, update=update, rate=rate
        )

    def _with_weights(self, observation, weights, *, update, rate):
        """Return an observation with what the weights that it is of give."""
        squares = None
        if "now" in self._needs:
            squares = np.array([squared_norm(w) for w in weights])
        return dataclasses.replace(
            observation,
            names=self._paths,
            units=tuple(self.quantities.units),
            learning_rate=rate,
            squared_weights=squares,
            update=update,
            distance=_optional_distances(weights, self.weights.initial),
        )

    def read(self, observation, *, step, epoch):
        """Return the `Reading` of an `Observation`."""
        numbers, by_variable = read_basic(observation)
        layers, lacking = {}, observation.lacks()
        for name in self._names:
            read = READ[name]
            if read is None or needs_of(name) & lacking:
                continue
            result = read(observation)
            names = [figure.name for figure in figures_of(name)]
            numbers |= zip(names, result.values, strict=True)
            by_variable |= result.by_variable
            layers |= result.layers
        # A number beyond float32 becomes infinite, as it should.
        with np.errstate(over="ignore"):
            rows = {
                k: np.asarray(v, np.float32) for k, v in by_variable.items()
            }
        return Reading(
            step=step,
            epoch=epoch,
            samples=observation.samples,
            loss=observation.loss,
            figures=numbers,
            by_variable=rows,
            variable_names=self._paths,
            layers=layers,
            histograms=(
                self._histograms_of(observation) if self._histograms else {}
            ),
        )

    def _learning_rate(self):
        optimizer = self._model.optimizer
        if optimizer is None:
            return float("nan")
        return float(np.asarray(optimizer.learning_rate))

    def _histograms_of(self, observation):
        histograms = {
            f"gradient/{path}": histogram(gradient)
            for path, gradient in zip(self._paths, observation.gradient)
        }
        if observation.squared_norms is not None:
            norms = np.sqrt(observation.squared_norms)
            histograms["sample_norms"] = histogram(norms)
        return histograms


def _optional_distances(weights, others):
    if others is None:
        return None
    return last_update.squared_distances(weights, others)
