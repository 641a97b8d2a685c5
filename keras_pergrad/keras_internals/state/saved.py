"""The state that is saved with a model: of aggregations, of sample values.

Private names in use: `keras.src.saving.keras_saveable.KerasSaveable`,
`KerasSaveable._obj_type`; `keras.src.utils.rng_utils.get_random_seed`,
`tensorflow.python.framework.config.is_op_determinism_enabled`.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.saving.keras_saveable import KerasSaveable


class SavedState(KerasSaveable):
    """An attribute of a model that is saved and loaded with its weights."""

    # Subclasses define `save_own_variables(store)` and `load_own_variables`.
    # The file has their arrays under the name of the attribute.

    def _obj_type(self):
        # Keras knows only its own types. That of a loss demands the least.
        return "Loss"


STATE = "noise_state"


class AggregationState(SavedState):
    """What an aggregation keeps from step to step: its draws and numbers."""

    # Under a `tf.distribute` strategy create it in the strategy's scope: each
    # replica would advance a generator from outside. Each number in `kept`
    # becomes an attribute of that name, a `keras.Variable`.

    #: Whether it holds a count of updates that must not be lost.
    begun: bool = False

    def __init__(self, seed: int | None, **kept: float):
        self.seed: int | None = seed
        self.generator = keras.random.SeedGenerator(seed)
        self.kept: tuple[str, ...] = tuple(kept)
        for name, value in kept.items():
            dtype = "int64" if isinstance(value, int) else "float32"
            variable = keras.Variable(
                np.asarray(value, dtype),
                dtype=dtype,
                trainable=False,
                name=name,
            )
            setattr(self, name, variable)

    def resume_from(self, previous: "AggregationState") -> None:
        """Continue, and never repeat, the noise of a former compile()."""
        self.set_generator(np.asarray(previous.generator.state))
        for name in self.kept:
            if name in previous.kept:
                getattr(self, name).assign(np.asarray(getattr(previous, name)))

    def begin_fit(self, model: keras.Model) -> None:
        """Note that a `fit` of a model begins."""

    def end_fit(self, model: keras.Model) -> None:
        """Note that the `fit` has ended or was interrupted."""

    def advance(self, name: str, value: Any = 1) -> None:
        """Add to a kept number; the result is the same on all replicas."""
        variable = getattr(self, name)
        variable.assign(variable + value)

    def advance_schedules(self) -> None:
        """Let schedules go on by a step."""
        self.advance("steps")

    def handed_on(self, source: keras.Model, model: keras.Model) -> Any:
        """Return the state of another model with the same weights, or None."""

    def normal(self, like: tf.Tensor, deviation: Any) -> Any:
        """Return noise of the shape and type of a tensor."""
        if tf.is_tensor(deviation):
            deviation = tf.cast(deviation, like.dtype)
        return keras.random.normal(
            tf.shape(like),
            stddev=deviation,
            dtype=like.dtype.name,
            seed=self.generator,
        )

    def gradient_noise(
        self, index: int, like: tf.Tensor, deviation: Any
    ) -> Any:
        """Return the noise of the gradient of a weight, by its number."""
        return self.normal(like, deviation)

    def noise_variance(self) -> Any:
        """Return the variance of `gradient_noise` for a deviation of 1."""
        return 1.0

    def save_own_variables(self, store: Any) -> None:
        store[STATE] = np.asarray(self.generator.state)
        for name in self.kept:
            store[name] = np.asarray(getattr(self, name))

    def load_own_variables(self, store: Any) -> None:
        names = list(store.keys())
        if STATE not in names:
            return  # From a model without noise, or saved by an older version.
        self.set_generator(np.asarray(store[STATE]))
        for name in self.kept:
            if name in names:
                getattr(self, name).assign(np.asarray(store[name]))

    def set_generator(self, state: np.ndarray) -> None:
        """Let the generator go on from a state that was saved."""
        # A user who gives another seed wants other noise.
        if self.seed in (None, int(state[0])):
            self.generator.state.assign(state)


_NAMES = _SUMS, _COUNTS = "sample_values", "sample_steps"


class ValueState(SavedState):
    """The sum of each sample's values, and the number of steps with one.

    Weights and the values of the samples are in one file, so that no update is
    lost or counted twice, wherever training was stopped.
    """

    def __init__(self):
        self.sums = self.counts = self._arrays = None

    def begin(self, samples, dtype, resumes):
        """Begin a `fit`, from zeros or from the values so far."""
        stored = self.arrays() if resumes else None
        if stored is None:
            stored = np.zeros(samples, dtype), np.zeros(samples, "int64")
        _require_length(stored, samples)
        sums, counts = stored
        self.sums = tf.Variable(tf.constant(sums, dtype), trainable=False)
        self.counts = tf.Variable(tf.constant(counts), trainable=False)

    def end(self):
        """Free the variables that steps wrote to, and keep the arrays."""
        self._arrays = self.arrays()
        self.sums = self.counts = None

    def add(self, rows, values, counted):
        """Add the values of a step, in its graph."""
        self.sums.scatter_add(tf.IndexedSlices(values, rows))
        self.counts.scatter_add(tf.IndexedSlices(counted, rows))

    def arrays(self):
        """Return copies of (sums, counts), or None without any value."""
        if self.sums is None:
            return self._arrays
        return np.array(self.sums), np.array(self.counts)

    def save_own_variables(self, store):
        for name, array in zip(_NAMES, self.arrays() or ()):
            store[name] = array

    def load_own_variables(self, store):
        if not set(_NAMES) <= set(store.keys()):
            return  # It is from a training without values.
        stored = tuple(np.array(store[name]) for name in _NAMES)
        if self.sums is None:
            self._arrays = stored
            return
        _require_length(stored, self.sums.shape[0])
        self.sums.assign(stored[0].astype(self.sums.dtype.as_numpy_dtype))
        self.counts.assign(stored[1])


def _require_length(stored, samples):
    if len(stored[0]) != samples:
        raise ValueError(
            f"The weights were saved with the values of {len(stored[0])} "
            f"samples. Expected to go on with as many. Received: {samples}. "
            "Give the same data and `ids` as before, or begin anew with "
            "weights that were saved without values."
        )


# The seed that TensorFlow returns where no global seed was set.
_UNSET_SEED = 87654321


def is_deterministic():
    """Whether ops are to give equal results in every run."""
    # Only the record of a run asks, so it is imported here.
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())


def global_seed():
    """Return the seed of `keras.utils.set_random_seed`, if it was called."""
    from keras.src.utils import rng_utils

    if hasattr(rng_utils, "get_random_seed"):
        return rng_utils.get_random_seed()
    # Keras before 3.11 does not keep the seed, but TensorFlow does.
    seed = tf.compat.v1.get_seed(1)[0]
    return None if seed == _UNSET_SEED else seed
