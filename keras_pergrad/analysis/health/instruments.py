"""The instruments that were chosen for a training, and what they read."""

import numpy as np

from keras_pergrad.analysis.health.held_weights import HeldWeights
from keras_pergrad.analysis.health.histograms import histogram
from keras_pergrad.analysis.health.instrument_table import (
    INSTRUMENTS,
    needs_of,
)
from keras_pergrad.analysis.health.observation import Observation
from keras_pergrad.analysis.health.reading import HealthReading
from keras_pergrad.analysis.health.sample_quantities import SampleQuantities
from keras_pergrad.analysis.health.step_sizes import squared_distances
from keras_pergrad.common.squared_norms import squared_norm


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

    def measure(self, step, meter, repeats, logged):
        """Return a `BatchGradient`, and what the instruments read of it.

        `logged` returns the figures that are there without instruments.
        """
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
        return measured, self._read(step, measured, logged(measured), seen)

    def around(self, take_step):
        """Take a step; return its result, and what was there around it."""
        needs = self._needs & {"before", "begin", "now"}
        before = self.weights.now() if needs else None
        rate, result = self._learning_rate(), take_step()
        update = None
        if "before" in needs:
            update = _distances(self.weights.now(), before)
        return result, (before, update, rate)

    def read_step(self, step, measured, around, logged):
        """Return what is read of the `BatchGradient` of a step that trained.

        `around`: what `self.around` returned; its weights are those that the
        gradient was measured at.
        """
        seen = self._observation(measured, *around)
        return self._read(step, measured, logged(measured), seen)

    def _read(self, step, measured, figures, seen):
        figures, layers = dict(figures), {}
        by_variable = {"norm": measured.norms}
        if measured.variances is not None:
            by_variable["variance"] = measured.variances
            by_variable["noise_scale"] = measured.noise_scales
            by_variable["snr"] = measured.snrs
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
