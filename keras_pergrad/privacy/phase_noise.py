"""The noise of one model."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_pergrad.privacy.correlated_noise import Strategy

#: After so many steps the variance of the noise has come to its limit.
_MAX_VARIANCES = 2**16


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

    def allocate(self, variables: Any = None) -> None:
        """Make room for what is kept of weights, and put in what was loaded.

        Args:
            variables: the weights that get the noise; None: those of before.
        """
        if variables is not None:
            self.weights = [(tuple(v.shape), _dtype(v)) for v in variables]
        is_kept = self.strategy is not None and self.strategy.kind == "banded"
        kept = self.strategy.bands - 1 if is_kept else 0
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
                earlier=lambda age: self._kept(index, step - age),
            )
            noise = (normal - earlier) / first
            self._keep(index, step, noise, allowed=allowed)
        else:
            noise = first * normal + self._weighted_sum(
                others,
                normal,
                step,
                earlier=lambda age: self._normal(index, like, step - age),
            )
        return tf.cast(noise, like.dtype)

    def _weighted_sum(self, coefficients, like, step, *, earlier):
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

    def _keep(self, index, step, noise, *, allowed):
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
