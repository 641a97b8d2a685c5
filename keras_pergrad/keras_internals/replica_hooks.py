"""The places where Keras's `fit` lets a model take part.

Private names in use: `Model._maybe_symbolic_build`,
`_get_metrics_result_or_logs`, `_distribute_strategy`,
`_assert_compile_called`.
"""

import contextlib
from typing import Any

from keras_pergrad.keras_internals import strategies
from keras_pergrad.keras_internals.cudnn import LoopsWhereMasked
from keras_pergrad.keras_internals.device_errors import advising
from keras_pergrad.keras_internals.model_parts import build_symbolically
from keras_pergrad.keras_internals.tensor_float import switched_off
from keras_pergrad.keras_internals.tracing import adding_noise
from keras_pergrad.keras_internals.train_function import make_for_mode


def require_compiled(model, name):
    """Refuse what only a compiled model has, with Keras's own error."""
    model._assert_compile_called(name)


@contextlib.contextmanager
def bounded_samples(model):
    """Keep a sample's part in a sum bounded while noise hides it.

    Products have all digits of float32, and what cannot leave out a sample
    that is not finite is refused.
    """
    mode = getattr(model, "gradient_mode", None)
    aggregation = mode and mode.aggregation
    noise = aggregation is not None and aggregation.adds_noise
    with switched_off(noise), adding_noise(noise):
        yield


class FitHooks(LoopsWhereMasked):
    """A base of models that build for all replicas, and choose their logs."""

    # A model defines `_logs_of_epoch(logs, otherwise)`: an epoch's logs from
    # those of its last step, or what `otherwise(logs)` gives.

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Build all that is shared by replicas before they take their turns."""
        # Keras takes the mean of the batches of all replicas, which fails on
        # several workers; what one of them gets has the same shapes.
        with strategies.scope_of(self):
            model: Any = self
            strategy = model._distribute_strategy
            if strategy is None:
                return
            if iterator is not None:
                data_batch = strategies.first_part(strategy, iterator)
            build_symbolically(self, data_batch)
        strategies.require_inside(self)

    def train_on_batch(self, *args, **kwargs):
        with bounded_samples(self), advising():
            following: Any = super()
            return following.train_on_batch(*args, **kwargs)

    def make_train_function(self, force=False):
        """Make Keras's train function; see the base class."""
        make_for_mode(self, super(), force)

    def _get_metrics_result_or_logs(self, logs):
        model: Any = self
        following: Any = super()
        return model._logs_of_epoch(logs, following._get_metrics_result_or_logs)
