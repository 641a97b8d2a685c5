"""The figures of gradient health, of one measurement."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_pergrad.runs.figures import EQUAL_VARIABLES, REPEAT_DEVIATION


@dataclasses.dataclass(frozen=True)
class InstrumentResult:
    """What an instrument reads of an `Observation`.

    Attributes:
        values: those of its figures, in the order of `FIGURES`.
        by_variable: numbers of each variable, (V,), by name.
        layers: the paths of layers that it names, by what they have.
    """

    values: tuple[float, ...]
    by_variable: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    layers: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )


def root_ratios(numerators, denominators):
    """Return √(a / b), NaN where b is not positive."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(
            np.greater(denominators, 0),
            np.sqrt(np.divide(numerators, denominators)),
            np.nan,
        )


def read_basic(observation):
    """Return what every reading has: figures, and numbers by variable.

    With tr Σ and ‖G‖² = ‖ḡ‖² − tr Σ / n, which estimates the squared norm of
    the true gradient without bias and may be negative:

        noise scale: tr Σ / ‖G‖², where ‖G‖² is positive
        SNR:         ‖G‖² / (tr Σ / n), where tr Σ is positive
    """
    squares = np.append(observation.squared_means, observation.squared_mean)
    each = {"norm": np.sqrt(squares)}
    if observation.traces is not None:
        traces = np.append(observation.traces, observation.trace)
        with np.errstate(invalid="ignore", over="ignore"):
            noise = traces / observation.samples
            true = squares - noise
            each["variance"] = traces
            each["noise_scale"] = traces / np.where(true > 0, true, np.nan)
            each["snr"] = true / np.where(traces > 0, noise, np.nan)
    figures = {f"gradient_{name}": float(v[-1]) for name, v in each.items()}
    by_variable = {name: values[:-1] for name, values in each.items()}
    if observation.repeats is not None:
        by_variable["repeat_deviation"] = observation.repeats.deviations
        figures[REPEAT_DEVIATION.name] = observation.repeats.deviation
        equal = observation.repeats.equal_variables
        figures[EQUAL_VARIABLES.name] = equal
    return figures, by_variable
