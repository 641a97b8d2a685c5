"""The sums for an update that is not yet complete."""

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.saved_state import SavedState


class AccumulatorState(SavedState):
    """The sums over batches of denominators and of numerators' gradients."""

    def __init__(self):
        #: How many batches have been added.
        # An int32 would lie on the host of a GPU, where XLA cannot reach it.
        self.count = _variable("pending_batches", np.zeros((), "int64"))
        self.mask_epsilons = {}
        self._keys = None
        self._values_of_a_sample = None
        # By the key of a group and the id of a variable; None: its denominator.
        self._sums = {}
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
            for k, (variable, g) in enumerate(zip(variables, gradients)):
                if g is not None:
                    place, name = (key, id(variable)), f"pending_{key}_{k}"
                    added.append((self._sum(place, name, variable), g))
            if denominator is not None:
                total = self._sum((key, None), f"pending_{key}")
                added.append((total, denominator))
        # All or nothing: first every check in the sums must have passed.
        sums = [t for t in tf.nest.flatten(groups) if t is not None]
        with tf.control_dependencies(sums):
            _add_all(added)

    def _sum(self, place, name, variable=None):
        if place not in self._sums:
            shape, dtype = (), keras.config.floatx()
            if variable is not None:
                shape, dtype = variable.shape, variable.dtype
            # Replicas create it together, each with the loaded value.
            value = self._loaded.get(name, np.zeros(shape))
            self._sums[place] = _variable(name, np.asarray(value, dtype))
        return self._sums[place]

    def groups(self, variables):
        """Return the groups of sums of all added batches."""
        return {
            key: (
                [self._value(key, id(v)) for v in variables],
                self._value(key),
            )
            for key in sorted(self._keys or ())
        }

    @property
    def rows(self):
        """The number of added samples; None if no term is divided by it."""
        return self._value("rows")

    def _value(self, key, of=None):
        total = self._sums.get((key, of))
        return None if total is None else tf.convert_to_tensor(total)

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
        return [self.count, *self._sums.values()]

    def save_own_variables(self, store):
        made = {
            variable.name: np.asarray(tf.convert_to_tensor(variable))
            for variable in self._variables
        }
        # Also loaded values that were not needed since then.
        for name, value in {**self._loaded, **made}.items():
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
