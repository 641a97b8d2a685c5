"""The gradient of one batch, and its names in the logs."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_pergrad.common.numbers import squared_norm
from keras_pergrad.keras_internals.models.parts import compiled_metrics


@dataclasses.dataclass
class BatchGradient:
    """The gradient of one batch at one point of training.

    Norms and variances are of gradients without weight regularisers.

    Attributes:
        samples: how many the batch has, n.
        loss: the compiled loss, regularisers included.
        values: the mean gradient ḡ, one array a trainable variable; zeros
            where the loss does not depend on it.
        squared_norms: ‖ḡ‖² of each variable, (V,).
        variances: the trace of the per-sample covariance of each variable,
            (V,); None where it is not defined.
        repeat_deviation: the largest ‖ḡ' − ḡ‖ / ‖ḡ‖ of a repetition ḡ', over
            all variables; None without repetitions.
        repeat_deviations: the same for each variable, (V,), or None.
        bitwise_equal_variables: how many had the same bits every time.
        observed: what instruments are made of, by name: of the samples'
            gradients, if they are defined. Empty after the measurement.
    """

    samples: int
    loss: float
    values: list[Any]
    squared_norms: np.ndarray
    variances: np.ndarray | None
    repeat_deviation: float | None = None
    repeat_deviations: np.ndarray | None = None
    bitwise_equal_variables: int | None = None
    observed: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def norms(self) -> np.ndarray:
        """‖ḡ‖ of each variable, (V,)."""
        return np.sqrt(self.squared_norms)

    @property
    def norm(self) -> float:
        """‖ḡ‖ over all variables."""
        return math.sqrt(self.squared_norms.sum())

    @property
    def variance(self) -> float | None:
        """tr Σ over all variables, or None."""
        return None if self.variances is None else float(self.variances.sum())

    @property
    def squared_true_norm(self) -> float | None:
        """‖G‖², unbiased: ‖ḡ‖² − tr Σ / n; may be negative. Or None."""
        trace = self.variance
        if trace is None:
            return None
        return float(self.squared_norms.sum()) - trace / self.samples

    @property
    def noise_scale(self) -> float | None:
        """tr Σ / ‖G‖², or None where ‖G‖² is not estimated as positive."""
        trace, true = self.variance, self.squared_true_norm
        if trace is None or true is None or true <= 0:
            return None
        return trace / true

    @property
    def snr(self) -> float | None:
        """‖G‖² over the variance of the mean of n samples, tr Σ / n.

        0 or less if no signal stands out; None if undefined.
        """
        trace, true = self.variance, self.squared_true_norm
        if not trace or true is None:
            return None
        return true / (trace / self.samples)

    @property
    def noise_scales(self) -> np.ndarray:
        """tr Σ / ‖G‖² of each variable by itself, (V,).

        NaN where it is undefined: where `noise_scale` of that variable would
        be None.
        """
        traces, true = self._variable_moments()
        return _quotients(traces, np.where(true > 0, true, np.nan))

    @property
    def snrs(self) -> np.ndarray:
        """‖G‖² / (tr Σ / n) of each variable by itself, (V,).

        NaN where it is undefined: without variances, or where one is 0.
        """
        traces, true = self._variable_moments()
        return _quotients(
            true, np.where(traces > 0, traces, np.nan) / self.samples
        )

    def by_variable(self) -> dict[str, np.ndarray]:
        """Return the figures of each variable by itself, as name → (V,)."""
        figures = {"norm": self.norms}
        if self.variances is not None:
            figures["variance"] = self.variances
            figures["noise_scale"] = self.noise_scales
            figures["snr"] = self.snrs
        return figures

    def _variable_moments(self):
        """tr Σ and the unbiased ‖G‖², both (V,)."""
        if self.variances is None:
            undefined = np.full(len(self.squared_norms), np.nan)
            return undefined, undefined
        traces = np.asarray(self.variances, np.float64)
        return traces, self.squared_norms - traces / self.samples

    def compare(self, repetitions: Iterable[Sequence[Any]]) -> None:
        """Note how far repetitions, taken one by one, are from `values`."""
        is_equal = np.ones(len(self.values), bool)
        distances = []
        for repetition in repetitions:
            distances.append(np.zeros(len(self.values)))
            for k, (gradient, value) in enumerate(zip(repetition, self.values)):
                gradient = np.asarray(gradient)
                if gradient.tobytes() != value.tobytes():
                    is_equal[k] = False
                    distances[-1][k] = squared_norm(gradient, value)
        squared_distances = np.array(distances)
        deviations = _root_ratios(
            squared_distances.sum(1), self.squared_norms.sum()
        )
        self.repeat_deviation = float(deviations.max())
        self.repeat_deviations = _root_ratios(
            squared_distances, self.squared_norms
        ).max(0)
        self.bitwise_equal_variables = int(is_equal.sum())


def covariance_traces(squared_norms, squared_means):
    """Return tr Σ of each variable, (V,), from ‖g_i‖², (V, n), and ‖ḡ‖²."""
    n = squared_norms.shape[1]
    spread = squared_norms.sum(1, dtype=np.float64) - n * squared_means
    # Rounding can leave a tiny negative number.
    return np.maximum(spread, 0) / (n - 1)


def _quotients(numerator, denominator):
    with np.errstate(invalid="ignore", over="ignore"):
        return numerator / denominator


def _root_ratios(squares, reference):
    """√(squares / against): 0 for 0/0, infinite for anything else over 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(squares / reference)
    return np.where(np.equal(squares, 0), 0.0, ratio)


# The names that a per-sample mode logs for the training batches.
BATCH_FIGURES = ("gradient_norm", "gradient_variance", "gradient_noise_scale")

#: The probe's figures in the logs, without instruments.
SCALARS: tuple[str, ...] = (
    *BATCH_FIGURES,
    "gradient_snr",
    "gradient_repeat_deviation",
    "bitwise_equal_variables",
)


def log_values(gradient):
    """Return the values of a `BatchGradient` for the logs."""
    values = scalars(gradient)
    missing_value = float("nan") if gradient.variances is not None else None
    for name in ("variance", "noise_scale", "snr"):
        if values[f"gradient_{name}"] is None:
            values[f"gradient_{name}"] = missing_value
    return {name: v for name, v in values.items() if v is not None}


def scalars(gradient):
    """Return the figures of a `BatchGradient`, None where one is undefined."""
    values = (
        gradient.norm,
        gradient.variance,
        gradient.noise_scale,
        gradient.snr,
        gradient.repeat_deviation,
        gradient.bitwise_equal_variables,
    )
    return dict(zip(SCALARS, values, strict=True))


def require_distinct_names(model, figures):
    """Refuse a metric of a built model that the logs name as a figure."""
    names = {*figures, *SCALARS, *(f"train_{name}" for name in BATCH_FIGURES)}
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
