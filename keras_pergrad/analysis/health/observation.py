"""The observation of one measurement, which instruments read."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Observation:
    """One measurement; what no chosen instrument needs is None.

    n samples, V variables.

    Attributes:
        n: the number of samples.
        names: the paths of the variables.
        squared_means: ‖ḡ‖² of each variable, (V,).
        traces: tr Σ of each variable, (V,); None: not defined.
        squared_norms: ‖g_i‖² over all variables, (n,).
        dots: ⟨g_i, ḡ⟩ over all variables, (n,).
        ratios: Σ ḡ_k² / σ_k² of each variable and of how many weights, (V, 2).
        dead: how many units of each of `units` no sample moves.
        units: the layers with units.
        loss: that of the data, without weight regularisers.
        learning_rate: the optimizer's, now.
        squared_weights: ‖w‖² of each variable, (V,).
        update: ‖Δw‖² of the last update and ‖w‖² before it, (V, 2).
        distance: ‖w − w₀‖² and ‖w₀‖², with those when training began, (V, 2).
        ends: what was seen before and after the last update, along it: a
            pair of dicts of "loss" and, for each sample, "losses", "slopes".
    """

    n: int
    names: tuple[str, ...]
    squared_means: np.ndarray
    traces: Any
    squared_norms: np.ndarray | None = None
    dots: np.ndarray | None = None
    ratios: np.ndarray | None = None
    dead: np.ndarray | None = None
    units: tuple = ()
    loss: float = float("nan")
    learning_rate: float = float("nan")
    squared_weights: Any = None
    update: np.ndarray | None = None
    distance: np.ndarray | None = None
    ends: tuple | None = None

    @property
    def squared_mean(self):
        """‖ḡ‖² over all variables."""
        return float(self.squared_means.sum())

    @property
    def trace(self):
        """tr Σ over all variables."""
        return float(np.sum(self.traces))


@dataclasses.dataclass
class Answer:
    """What an instrument reads: see `HealthReading`."""

    figures: dict
    by_variable: dict = dataclasses.field(default_factory=dict)
    layers: dict = dataclasses.field(default_factory=dict)
