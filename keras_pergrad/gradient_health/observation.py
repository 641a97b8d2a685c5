"""One measurement of a batch's gradient, before it is read."""

import dataclasses
from typing import Any

import numpy as np

from keras_pergrad.common.numbers import squared_norm


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Observation:
    """What was measured; None: not defined, or not needed.

    n samples, V variables. Gradients are without weight regularisers.

    Attributes:
        samples: n.
        loss: the compiled loss, regularisers included.
        gradient: the mean gradient ḡ, an array a trainable variable; zeros
            where the loss does not depend on it.
        squared_means: ‖ḡ‖² of each variable, (V,).
        traces: tr Σ of each variable, (V,), of the samples' covariance Σ.
        repeats: how repetitions deviate, where there are any.
        squared_norms: ‖g_i‖² over all variables, (n,).
        dots: ⟨g_i, ḡ⟩ over all variables, (n,).
        ratios: Σ ḡ_k² / σ_k² of each variable and of how many weights, (V, 2).
        dead: for each of `units`, how many get no gradient from any sample.
        end: loss, and losses and slopes of the samples, after the last update.
        start: the same before it, along the same way.
        data_loss: that without weight regularisers.
        names: the paths of the variables.
        units: the layers with units.
        learning_rate: the optimizer's, now.
        squared_weights: ‖w‖² of each variable, (V,).
        update: ‖Δw‖² of the last update and ‖w‖² before it, (V, 2).
        distance: ‖w − w₀‖² and ‖w₀‖², with those when training began, (V, 2).
    """

    samples: int
    loss: float
    gradient: list[Any]
    squared_means: np.ndarray
    traces: Any = None
    repeats: "Repeats | None" = None
    squared_norms: np.ndarray | None = None
    dots: np.ndarray | None = None
    ratios: np.ndarray | None = None
    dead: Any = ()
    end: "Along | None" = None
    start: "Along | None" = None
    data_loss: float = float("nan")
    names: tuple[str, ...] = ()
    units: tuple = ()
    learning_rate: float = float("nan")
    squared_weights: Any = None
    update: np.ndarray | None = None
    distance: np.ndarray | None = None

    @property
    def squared_mean(self):
        """‖ḡ‖² over all variables."""
        return float(self.squared_means.sum())

    @property
    def trace(self):
        """tr Σ over all variables, where it is defined."""
        return float(np.sum(self.traces))

    def lacks(self):
        """Return what instruments may need and it does not have."""
        lacking = set()
        if self.traces is None:
            lacking |= {"samples", "dots", "weights", "units"}
        if self.start is None or self.end is None:
            lacking.add("along")
        if self.update is None:
            lacking.add("before")
        return lacking


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Along:
    """Losses and slopes at one end of an update, along it.

    Attributes:
        loss: of the data.
        losses: of the samples, (n,).
        slopes: of the samples' losses, (n,).
    """

    loss: float
    losses: np.ndarray
    slopes: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Repeats:
    """How repetitions ḡ' of a gradient ḡ deviate from it.

    Attributes:
        deviation: the largest ‖ḡ' − ḡ‖ / ‖ḡ‖, over all variables.
        deviations: the same of each variable, (V,).
        equal_variables: how many had the same bits every time.
    """

    deviation: float
    deviations: np.ndarray
    equal_variables: int


def observe(
    gradient, *, samples, loss, measured, is_defined=True, repetitions=None
):
    """Return the `Observation` of a mean gradient.

    `measured`: what the graph of the step measured of the samples, by name;
    `is_defined`: whether these have a covariance; `repetitions`: of the
    gradient, one by one.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        squared_means = np.array([squared_norm(g) for g in gradient])
        sample_norms, traces, total = measured.get("squared_norms"), None, None
        if sample_norms is not None:
            total = sample_norms.sum(0, dtype=np.float64)
            if is_defined:
                traces = covariance_traces(sample_norms, squared_means)
    return Observation(
        samples=samples,
        loss=float(loss),
        gradient=list(gradient),
        squared_means=squared_means,
        traces=traces,
        repeats=(
            None
            if repetitions is None
            else _compare(gradient, squared_means, repetitions)
        ),
        squared_norms=total,
        dots=_float64_or_none(measured.get("dots")),
        ratios=_float64_or_none(measured.get("ratios")),
        dead=measured.get("dead", np.zeros(0)),
        end=along(measured),
        data_loss=float(measured.get("loss", np.nan)),
    )


def along(measured):
    """Return the `Along` of what a graph measured, or None."""
    if "slopes" not in measured:
        return None
    return Along(
        loss=float(measured["loss"]),
        losses=measured["losses"],
        slopes=measured["slopes"],
    )


def covariance_traces(sample_norms, squared_means):
    """Return tr Σ of each variable, (V,), from ‖g_i‖², (V, n), and ‖ḡ‖²."""
    n = sample_norms.shape[1]
    spread = sample_norms.sum(1, dtype=np.float64) - n * squared_means
    # Rounding can leave a tiny negative number.
    return np.maximum(spread, 0) / (n - 1)


def _compare(gradient, squared_means, repetitions):
    """Return the `Repeats` of a gradient; repetitions come one by one."""
    is_equal = np.ones(len(gradient), bool)
    rows = []
    for repetition in repetitions:
        rows.append(np.zeros(len(gradient)))
        for k, (other, value) in enumerate(zip(repetition, gradient)):
            other = np.asarray(other)
            if other.tobytes() != value.tobytes():
                is_equal[k] = False
                rows[-1][k] = squared_norm(other, value)
    squares = np.array(rows)
    total = _root_ratios(squares.sum(1), squared_means.sum())
    return Repeats(
        deviation=float(total.max()),
        deviations=_root_ratios(squares, squared_means).max(0),
        equal_variables=int(is_equal.sum()),
    )


def _root_ratios(squares, reference):
    """√(squares / reference): 0 for 0/0, infinite for anything else over 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(squares / reference)
    return np.where(np.equal(squares, 0), 0.0, ratio)


def _float64_or_none(array):
    return None if array is None else np.asarray(array, np.float64)
