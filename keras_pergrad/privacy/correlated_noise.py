"""Noise that is correlated over the steps of a private training.

In place of independent draws z the sums of clipped gradients get C⁻¹z, where C
is a lower triangular Toeplitz matrix over the steps, the strategy. Part of the
noise of a step is then taken back by later ones, so that the sum over many
steps, which the weights are, holds less of it.
"""

import dataclasses
import functools
import math
import zlib
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


class CorrelatedNoise:
    """The noise C⁻¹z of one model, and what is kept for it from step to step.

    The draws z are a function of a seed, the number of the phase, the step
    and the number of the weight. With a banded strategy the noise of the last
    bands − 1 steps is kept; with a banded inverse the draws of these steps are
    drawn again.

    Attributes:
        strategy: the `Strategy`.
        weights: the shape and dtype of each weight; None before a `fit`.
    """

    def __init__(self, strategy: Strategy):
        self.strategy = strategy
        #: The numbers of the phase and of the step, the seed of the draws, and
        #: a checksum of `weights`.
        self._position = [_shared_variable(np.int64(0)) for _ in range(4)]
        self.weights: list[tuple[Any, Any]] | None = None
        self._history: list[Any] = []
        self._loaded: list[np.ndarray] = []

    def begin(self, phase: int, step: int, seed: int, variables: Any) -> bool:
        """Go on at a step of a phase, or begin the phase at step 0.

        Args:
            phase, step, seed: integers.
            variables: the weights, or None: those of before.

        Returns:
            False if the noise before this step is not known here.
        """
        self._allocate(variables)
        position = [phase, step, seed, zlib.crc32(repr(self.weights).encode())]
        if step == 0:
            self._set_position(*position)
            for history in self._history:
                history.assign(tf.zeros(history.shape, history.dtype))
        return [int(p.numpy()) for p in self._position] == position

    def _allocate(self, variables):
        """Make room for what is kept, and put in what was loaded."""
        before = self.weights
        if variables is not None:
            self.weights = [(tuple(v.shape), _dtype(v)) for v in variables]
        kept = self.strategy.bands - 1
        if self.strategy.kind != "banded" or not kept:
            return
        weights = self.weights or []
        needed = [((kept, *shape), dtype) for shape, dtype in weights]
        if self.weights != before:
            self._history = [
                _shared_variable(tf.zeros(shape, dtype))
                for shape, dtype in needed
            ]
        loaded, self._loaded = self._loaded, []
        if [(a.shape, a.dtype.name) for a in loaded] == needed:
            for history, array in zip(self._history, loaded):
                history.assign(array)
        elif loaded or self.weights != before:
            self._set_position(0, 0, 0, 0)

    def _set_position(self, *position):
        for variable, value in zip(self._position, position):
            variable.assign(value)

    def draw(self, index: int, like: tf.Tensor, allowed: Any) -> tf.Tensor:
        """Return the noise for a weight at this step, for draws of 1.

        Args:
            index: the number of the weight.
            like: its gradient.
            allowed: a scalar, whether the step is made.
        """
        first, *others = self.strategy.coefficients
        step = self._step()
        normal = self._normal(index, like, 0)
        if self.strategy.kind == "banded":
            earlier = self._weighted_sum(
                others, normal, lambda age: self._kept(index, step - age)
            )
            noise = (normal - earlier) / first
            self._keep(index, step, noise, allowed)
        else:
            noise = first * normal + self._weighted_sum(
                others, normal, lambda age: self._normal(index, like, age)
            )
        return tf.cast(noise, like.dtype)

    def _weighted_sum(self, coefficients, like, earlier):
        """Return Σ_j coefficients[j − 1] · earlier(j) over the steps so far."""
        # With one band nothing is taken back. Before a `fit` nothing is kept:
        # such a step is the first one.
        if self.strategy.kind == "banded" and not self._history:
            return tf.zeros_like(like)
        coefficients = tf.constant(coefficients, like.dtype)
        count = tf.size(coefficients, "int64")
        # A loop, so that the memory of one array is enough for all of them.
        return tf.while_loop(
            lambda age, total: age <= tf.minimum(self._step(), count),
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

    def _normal(self, index, like, age):
        """Return the draw of a step that is `age` steps ago."""
        step = self._step() - age
        stream = tf.convert_to_tensor(self._position[0]) + 1
        # 32 bits of the seed and the phase above them: no two draws are alike.
        seed = tf.stack(
            [
                stream * 2**32 + tf.convert_to_tensor(self._position[2]),
                step * len(self.weights or [None]) + index,
            ]
        )
        return tf.random.stateless_normal(
            tf.shape(like),
            seed,
            dtype=_dtype(like),
            # What is drawn again must be the same on every device.
            alg="philox",
        )

    def _step(self):
        return tf.convert_to_tensor(self._position[1])

    def variance(self) -> tf.Tensor:
        """Return the variance of the noise at this step, for draws of 1."""
        variances = self.strategy.variances(_MAX_VARIANCES)
        step = tf.minimum(self._step(), _MAX_VARIANCES - 1)
        return tf.gather(tf.constant(variances, "float32"), step)

    def advance(self, count: Any) -> None:
        """Go on by `count` steps, in the graph of a step."""
        self._position[1].assign_add(count)

    def save(self, store: Any) -> None:
        """Save what goes on with the weights."""
        store[_POSITION] = np.array([p.numpy() for p in self._position])
        for k, history in enumerate(self._history):
            store[f"{_HISTORY}{k}"] = history.numpy()

    def load(self, store: Any) -> None:
        """Load what was saved; `begin` then puts it in its place."""
        names = list(store.keys())
        if _POSITION in names:
            self._set_position(*(int(p) for p in np.asarray(store[_POSITION])))
        count = sum(name.startswith(_HISTORY) for name in names)
        self._loaded = [np.array(store[f"{_HISTORY}{k}"]) for k in range(count)]


_POSITION, _HISTORY = "noise_position", "noise_history_"


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
