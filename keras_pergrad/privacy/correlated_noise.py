"""The noise of private training, which may be correlated over its steps.

In place of independent draws z, the sums of clipped gradients then get C⁻¹z,
where C is a lower triangular Toeplitz matrix over the steps, the strategy. Part
of the noise of a step is taken back by later ones, so that the sum over many
steps, which the weights are, holds less of it.
"""

import dataclasses
import functools
import math
from typing import Any, Literal

import numpy as np

Kind = Literal["banded", "banded_inverse"]
#: Digits of the coefficients: what an optimiser finds differs from machine to
#: machine in the later ones, and a resumed run must find the same strategy.
_DIGITS = 6


@dataclasses.dataclass(frozen=True)
class Strategy:
    """The strategy matrix C of a factorisation, by its first column.

    Attributes:
        kind: "banded", where C has `bands` diagonals (BandMF, Choquette-Choo
            et al., arXiv 2306.08153), or "banded_inverse", where C⁻¹ has them
            (BISR, Kalinin et al., arXiv 2505.12128).
        coefficients: of these diagonals, (bands,) floats. With them the first
            column of C has the norm 1 over the planned steps, or nearly so.
    """

    kind: Kind
    coefficients: tuple[float, ...]

    @property
    def bands(self) -> int:
        """How many diagonals the matrix has that is banded."""
        return len(self.coefficients)

    def times(self, signal: np.ndarray) -> np.ndarray:
        """Return C · signal, (steps,)."""
        return _filtered(signal, self.coefficients, self.kind == "banded")

    def inverse_times(self, signal: np.ndarray) -> np.ndarray:
        """Return C⁻¹ · signal, (steps,)."""
        return _filtered(signal, self.coefficients, self.kind != "banded")

    def sensitivity(self, steps: int, period: int) -> float:
        """Return by how much one example moves C · gradients, over clip_norm.

        Args:
            steps: the number of steps.
            period: an example is in every batch whose number has the same
                remainder by `period`; as large as `steps`: in one batch.
        """
        # All entries of C are at least 0, so the worst contributions are equal
        # ones from the first batch on.
        participation = np.zeros(steps)
        participation[::period] = 1
        return float(np.linalg.norm(self.times(participation)))

    def variances(self, steps: int) -> np.ndarray:
        """Return the variance of each step's noise for draws of 1, (steps,)."""
        return np.cumsum(self.inverse_times(_impulse(steps)) ** 2)

    def mean_error(self, steps: int) -> float:
        """Return the root mean square of the noise in sums over 1..t steps."""
        # The mean is over all t up to `steps`; the draws have a deviation of 1.
        sums = self.inverse_times(np.ones(steps))
        return math.sqrt(np.mean(np.cumsum(sums**2)))


def _filtered(signal, coefficients, multiplies) -> Any:
    from scipy import signal as filters

    if multiplies:
        return filters.lfilter(coefficients, [1.0], signal)
    return filters.lfilter([1.0], coefficients, signal)


def _impulse(steps):
    return np.arange(steps) == 0.0


def make_strategy(kind: Kind, bands: int, steps: int) -> Strategy:
    """Return a strategy for so many steps, of at most that many bands."""
    bands = min(bands, steps)
    if kind == "banded":
        return Strategy(kind, _optimal_bands(bands, steps))
    # The inverse of the square root of the matrix of sums, cut off.
    roots = np.cumprod([1.0, *(1 - 1.5 / np.arange(1, bands))])
    column = Strategy(kind, tuple(roots)).times(_impulse(steps))
    return Strategy(kind, _rounded(roots * np.linalg.norm(column)))


@functools.lru_cache(maxsize=64)
def _optimal_bands(bands, steps):
    """Return the bands whose noise in the sums of gradients is least."""
    from scipy import optimize

    # The square root of the matrix of sums, which is near the optimum.
    start = np.cumprod([1.0, *(1 - 0.5 / np.arange(1, bands))])
    # How many of the sums over 1..t steps the noise of a step is in.
    weights = np.arange(steps, 0, -1.0)

    def log_error(drops):
        coefficients = np.cumsum(drops[::-1])[::-1]
        # s = C⁻¹1, so ∂s/∂c_j is −C⁻¹s, delayed by j steps.
        sums = _filtered(np.ones(steps), coefficients, False)
        delayed = _filtered(sums, coefficients, False)
        total, norm = weights @ sums**2, coefficients @ coefficients
        weighted = weights * sums
        gradient = np.array(
            [-2 * weighted[j:] @ delayed[: steps - j] for j in range(bands)]
        )
        value = math.log(total) + math.log(norm)
        return value, np.cumsum(gradient / total + 2 * coefficients / norm)

    # The variables are by how much each coefficient is below the one before,
    # at least 0: C⁻¹ then stays bounded, and C has no negative entries, on
    # which the sensitivity rests.
    drops = optimize.minimize(
        log_error,
        start - np.append(start[1:], 0),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * bands,
        options={"maxiter": 1000, "ftol": 1e-13, "gtol": 1e-9},
    ).x
    coefficients = np.cumsum(drops[::-1])[::-1]
    return _rounded(coefficients / np.linalg.norm(coefficients))


def _rounded(coefficients):
    return tuple(float(c) for c in np.round(coefficients, _DIGITS))
