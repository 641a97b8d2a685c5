"""The sums for an update that is not yet complete."""

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.saved_state import SavedState
from keras_pergrad.modes.microbatch_sums import divided


class AccumulatorState(SavedState):
    """The sums over batches of denominators and of numerators' gradients."""

    def __init__(self):
        #: How many batches have been added.
        self.count = _variable("pending_batches", np.zeros((), "int32"))
        self.mask_epsilons = {}
        self._keys = None
        self._values_of_a_sample = None
        self._sums = {}
        self._denominators = {}
        self._loaded = {}

    def values_of_a_sample(self, now):
        """Return how many values each loss had for a sample; `now` at first."""
        if self._values_of_a_sample is None:
            self._values_of_a_sample = list(now)
        return self._values_of_a_sample

    def add(self, groups, mask_epsilons, variables):
        """Add the groups of sums of one batch, as for `divided`."""
        if self._keys not in (None, set(groups)):
            raise ValueError(
                "The denominators of the loss are of another kind than in the "
                f"batches before: {sorted(groups)} instead of "
                f"{sorted(self._keys)}. Call compile() again to start afresh."
            )
        self._keys, self.mask_epsilons = set(groups), mask_epsilons
        added = [(self.count, 1)]
        for key, (gradients, denominator) in groups.items():
            added += self._of_group(key, gradients, denominator, variables)
        # All or nothing: first every check in the sums must have passed.
        sums = [t for t in tf.nest.flatten(groups) if t is not None]
        with tf.control_dependencies(sums):
            _add_all(added)

    def _of_group(self, key, gradients, denominator, variables):
        """Yield the sums of a group, and what to add to each."""
        for k, (variable, gradient) in enumerate(zip(variables, gradients)):
            if gradient is None:
                continue
            if (key, id(variable)) not in self._sums:
                self._create(key, k, variable)
            yield self._sums[key, id(variable)], gradient
        if denominator is None:
            return
        if key not in self._denominators:
            self._denominators[key] = self._made(
                f"pending_{key}", (), keras.config.floatx()
            )
        yield self._denominators[key], denominator

    def _create(self, key, k, variable):
        self._sums[key, id(variable)] = self._made(
            f"pending_{key}_{k}", variable.shape, variable.dtype
        )

    def gradients(self, variables):
        """Return the gradient of all added batches, for each variable."""
        groups = {
            key: (
                [_value(self._sums.get((key, id(v)))) for v in variables],
                _value(self._denominators.get(key)),
            )
            for key in sorted(self._keys or ())
        }
        return divided(groups, self.mask_epsilons)

    @property
    def rows(self):
        """The number of added samples; None if no term is divided by it."""
        return _value(self._denominators.get("rows"))

    @property
    def waiting(self):
        """Whether a batch waits for an update; not available in graphs."""
        return bool(tf.convert_to_tensor(self.count) > 0)

    def reset(self):
        """Start from zero."""
        for variable in self._variables:
            variable.assign(tf.zeros(variable.shape, variable.dtype))

    def forget(self):
        """Start from zero; loaded sums are not used either."""
        self._loaded = {}
        self.reset()

    @property
    def _variables(self):
        return [
            self.count,
            *self._sums.values(),
            *self._denominators.values(),
        ]

    def _made(self, name, shape, dtype):
        # Replicas create it together, each with the loaded value.
        value = self._loaded.get(name, np.zeros(shape))
        return _variable(name, np.asarray(value, dtype))

    def save_own_variables(self, store):
        for variable in self._variables:
            store[variable.name] = np.asarray(_value(variable))
        # Loaded values that were not needed since then.
        made = {variable.name for variable in self._variables}
        for name, value in self._loaded.items():
            if name not in made:
                store[name] = value

    def load_own_variables(self, store):
        names = list(store.keys())
        self._loaded = {name: np.asarray(store[name]) for name in names}
        for variable in self._variables:
            zeros = np.zeros(variable.shape, variable.dtype)
            variable.assign(self._loaded.get(variable.name, zeros))


def _add_all(added):
    """Add to variables; where an interrupt comes between, to none of them."""
    before = []
    if tf.executing_eagerly():
        before = [(v, tf.identity(v.value)) for v, _ in added]
    try:
        for variable, value in added:
            variable.assign_add(value)
    except BaseException:
        for variable, value in before:
            variable.assign(value)
        raise


def _variable(name, value):
    # Not in the graph of a train step that is being traced.
    with tf.init_scope():
        return keras.Variable(
            value, dtype=value.dtype.name, trainable=False, name=name
        )


def _value(variable):
    return None if variable is None else tf.convert_to_tensor(variable)
