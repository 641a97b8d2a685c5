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
import tensorflow as tf

#: After so many steps the variance of the noise has come to its limit.
_MAX_VARIANCES = 2**16
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
    from scipy import signal as filters  # a requirement of dp-accounting

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


# The noise of one model.


class PhaseNoise:
    """The noise of one model, independent or C⁻¹z, and what is kept for it.

    The draws z are a function of the seed of the phase, the step and the number
    of the weight. With a banded strategy the noise of the last bands − 1 steps
    is kept; with a banded inverse the draws of these steps are drawn again.

    Attributes:
        strategy: the `Strategy`; None: the noise is z itself.
        weights: the shape and dtype of each weight; None before a `fit`.
        is_known: whether what is kept is the noise of the steps before.
    """

    def __init__(self, strategy: Strategy | None = None):
        self.strategy = strategy
        self.weights: list[tuple[Any, Any]] | None = None
        self.is_known = True
        self._seed = _shared_variable(np.zeros(2, "int64"))
        self._history: list[Any] = []
        self._loaded: list[np.ndarray] | None = None

    def set_seed(self, seed: np.ndarray, restarts: bool) -> None:
        """Go on with the seed of a phase, or begin the phase at step 0."""
        self._seed.assign(seed)
        if restarts:
            self.is_known, self._loaded = True, None
            for history in self._history:
                history.assign(tf.zeros(history.shape, history.dtype))

    @property
    def _kept_steps(self):
        """The noise of how many steps is kept."""
        is_kept = self.strategy is not None and self.strategy.kind == "banded"
        return self.strategy.bands - 1 if is_kept else 0

    def allocate(self, variables: Any = None) -> None:
        """Make room for what is kept of weights, and put in what was loaded.

        Args:
            variables: the weights that get the noise; None: those of before.
        """
        if variables is not None:
            self.weights = [(tuple(v.shape), _dtype(v)) for v in variables]
        kept = self._kept_steps
        weights = (self.weights or []) if kept else []
        needed = [((kept, *shape), dtype) for shape, dtype in weights]
        held = [(tuple(h.shape), h.dtype.name) for h in self._history]
        if held != needed:
            self.is_known = self.is_known and not held
            self._history = [
                _shared_variable(tf.zeros(shape, dtype))
                for shape, dtype in needed
            ]
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            shapes = [(array.shape, array.dtype.name) for array in loaded]
            self.is_known = shapes == needed
            if self.is_known:
                for history, array in zip(self._history, loaded):
                    history.assign(array)

    def draw(
        self, index: int, like: tf.Tensor, step: Any, allowed: Any
    ) -> tf.Tensor:
        """Return the noise for a weight at a step of the phase, for draws of 1.

        Args:
            index: the number of the weight, or the next one for something else.
            like: its gradient.
            step, allowed: scalars: the number, and whether the step is made.
        """
        step = tf.cast(step, "int64")
        normal = self._normal(index, like, step)
        if self.strategy is None:
            return tf.cast(normal, like.dtype)
        first, *others = self.strategy.coefficients
        if self.strategy.kind == "banded":
            # Before a `fit` nothing is kept: such a step is the first one.
            earlier = self._weighted_sum(
                others if self._history else [],
                normal,
                step,
                lambda age: self._kept(index, step - age),
            )
            noise = (normal - earlier) / first
            self._keep(index, step, noise, allowed)
        else:
            noise = first * normal + self._weighted_sum(
                others,
                normal,
                step,
                lambda age: self._normal(index, like, step - age),
            )
        return tf.cast(noise, like.dtype)

    def _weighted_sum(self, coefficients, like, step, earlier):
        """Return Σ_j coefficients[j − 1] · earlier(j) over the steps so far."""
        if not coefficients:
            return tf.zeros_like(like)
        coefficients = tf.constant(coefficients, like.dtype)
        count = tf.size(coefficients, "int64")
        # A loop, so that the memory of one array is enough for all of them.
        return tf.while_loop(
            lambda age, total: age <= tf.minimum(step, count),
            lambda age, total: (
                age + 1,
                total + tf.gather(coefficients, age - 1) * earlier(age),
            ),
            (tf.constant(1, "int64"), tf.zeros_like(like)),
            parallel_iterations=1,
        )[1]

    def _kept(self, index, step):
        history = self._history[index]
        return tf.gather(history, step % history.shape[0])

    def _keep(self, index, step, noise, allowed):
        if not self._history:
            return
        history = self._history[index]
        slot = step % history.shape[0]
        stored = tf.where(allowed, noise, tf.gather(history, slot))
        # In place: the history is many times as large as the weight.
        history.scatter_update(tf.IndexedSlices(stored[None], slot[None]))

    def _normal(self, index, like, step):
        """Return the draw of a step."""
        # Both words of a phase's seed are random, so that no other phase has
        # any of these seeds.
        seed = tf.convert_to_tensor(self._seed) + tf.stack(
            [tf.constant(index, "int64"), step]
        )
        return tf.random.stateless_normal(
            tf.shape(like),
            seed,
            dtype=_dtype(like),
            # What is drawn again must be the same on every device.
            alg="philox",
        )

    def variance(self, step: Any) -> Any:
        """Return the variance of the noise at a step, for draws of 1."""
        if self.strategy is None:
            return 1.0
        variances = self.strategy.variances(_MAX_VARIANCES)
        step = tf.minimum(tf.cast(step, "int64"), _MAX_VARIANCES - 1)
        return tf.gather(tf.constant(variances, "float32"), step)

    def save(self, store: Any) -> None:
        """Save what is kept of the steps before."""
        for k, history in enumerate(self._history):
            store[f"{_HISTORY}{k}"] = history.numpy()

    def load(self, store: Any) -> None:
        """Load what was saved; `allocate` then puts it in its place."""
        count = sum(name.startswith(_HISTORY) for name in list(store.keys()))
        self._loaded = [np.array(store[f"{_HISTORY}{k}"]) for k in range(count)]


def shared_by_workers(words: tuple[int, int]) -> tuple[int, int]:
    """Return two integers of 64 bits, those of the first of several workers."""
    # A strategy gives all of them the first one's value of a new variable.
    variable = _shared_variable(np.array(words, "uint64").view("int64"))
    first, second = variable.numpy().view("uint64").tolist()
    return first, second


_HISTORY = "noise_history_"


def _dtype(variable):
    """Return the dtype in which the noise of a weight is drawn and kept."""
    is_double = tf.as_dtype(variable.dtype) == tf.float64
    return "float64" if is_double else "float32"


def _shared_variable(value):
    # Replicas draw the same numbers: what the first has is right for all.
    return tf.Variable(
        value,
        trainable=False,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
