"""The aggregation of a model when it is compiled and when a `fit` begins."""

import contextlib

from keras_pergrad.keras_internals.aggregation_state import AggregationState
from keras_pergrad.keras_internals.autograph import not_converted
from keras_pergrad.keras_internals.device_errors import advising
from keras_pergrad.keras_internals.replica_hooks import bounded_samples


def state_of(aggregation, before):
    """Return the `aggregation_state` of a model that is compiled."""
    state = aggregation and aggregation.make_state(before)
    kept = isinstance(before, AggregationState) and before.begun
    if not kept or (aggregation is not None and aggregation.counts):
        return state
    if state is not None:
        raise ValueError(_FORGOTTEN.format(aggregation))
    return before


@contextlib.contextmanager
def during_fit(model, arguments):
    """Have the arguments of a `fit` checked and changed; note its ends."""
    if not model.compiled:
        yield  # Keras says so.
        return
    aggregation = model.gradient_mode.aggregation
    if aggregation is None or not aggregation.counts:
        _refuse_private_batches(arguments)
    if aggregation is not None:
        aggregation.prepare_fit(model, arguments)
    model.gradient_mode.begin_fit(model)
    state = model.aggregation_state
    with bounded_samples(model), advising():
        if not isinstance(state, AggregationState):
            yield
            return
        state.begin_fit(model)
        try:
            yield
        finally:
            state.end_fit(model)


@not_converted
def require_fit(model, *asked, **how):
    """Refuse training outside of `fit` if the model's mode counts updates."""
    if model.compiled and model.gradient_mode.aggregation is not None:
        model.gradient_mode.aggregation.require_fit(model, *asked, **how)


def _refuse_private_batches(arguments):
    """Refuse private batches in a `fit` that adds no noise."""
    for name in ("x", "validation_data"):
        if getattr(arguments.get(name), "for_private_fit", False):
            raise ValueError(
                f"Private batches were given to fit() as {name}, but the model "
                "is not trained privately. Expected compile(gradient_mode="
                "private.gradient_mode) before, and private batches as x; or "
                f"arrays or a data set. Received: {arguments[name]!r}"
            )


_FORGOTTEN = (
    "The model was trained privately, and what was spent would be forgotten. "
    "Expected the gradient_mode of a PrivateTraining, or one without a state. "
    "Received: {}. To give up the statement of what was spent, set "
    "model.aggregation_state = None before."
)
