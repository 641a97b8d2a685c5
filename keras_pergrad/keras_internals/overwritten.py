"""Variables whose "gradient" is their next value, as in float8 layers.

Keras's optimizers assign it as it is (`overwrite_with_gradient`). It belongs
to the whole batch, not to a sample: it has no norm, is not clipped, and is
passed on as one backward pass of the batch gives it.

Private name in use: `Variable._trainable`.
"""

import contextlib

import tensorflow as tf

from keras_pergrad.common.patching import attribute


def is_overwritten(variable):
    """Whether the optimizer overwrites a variable with its gradient."""
    return getattr(variable, "overwrite_with_gradient", False)


class SetApart:
    """Leaves these variables out of a model's trainable ones while open."""

    def __init__(self, model):
        self._all = list(model.trainable_variables)
        self.variables = [v for v in self._all if is_overwritten(v)]
        self._stack = contextlib.ExitStack()
        self._tape = None

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for variable in self.variables:
                stack.enter_context(attribute(variable, "_trainable", False))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self._stack.close()

    @contextlib.contextmanager
    def watched(self):
        """Watch the variables in a forward pass."""
        if not self.variables:
            yield
            return
        with tf.GradientTape(watch_accessed_variables=False) as self._tape:
            self._tape.watch([v.value for v in self.variables])
            yield

    def in_order(self, values=None):
        """Return a list of all variables', None for these; of None: all."""
        return self._all if values is None else self.merged(values)

    def merged(self, gradients, target=None):
        """Return all gradients in order; without `target` None for these."""
        if not self.variables:
            return gradients
        own = [None] * len(self.variables)
        if target is not None and self._tape is not None:
            values = [v.value for v in self.variables]
            own = self._tape.gradient(target, values)
        own, others = iter(own), iter(gradients)
        return [next(own if is_overwritten(v) else others) for v in self._all]


def require_none(model, what):
    """Refuse these variables where `what` takes the batch apart."""
    paths = [v.path for v in model.trainable_variables if is_overwritten(v)]
    if paths:
        raise ValueError(
            f"{paths[0]!r} and {len(paths) - 1} other variables are "
            "overwritten with their gradient (overwrite_with_gradient=True, "
            "as in float8 layers). Expected the whole batch, of which their "
            f"new value is made. Received: {what}. Use gradient_mode='batch', "
            "'vectorized' or 'per_sample' on one replica, or "
            "Accumulated(steps=1) without microbatch_size."
        )
