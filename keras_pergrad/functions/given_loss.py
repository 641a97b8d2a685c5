"""A loss that is given to one call of a function, in place of the compiled."""

import contextlib
import inspect
import reprlib

import keras

from keras_pergrad.keras_internals.losses.compiled import compiled_with
from keras_pergrad.keras_internals.models.parts import has_own_loss
from keras_pergrad.modes.inspection import require_model


@contextlib.contextmanager
def given_loss(model, loss):
    """Let a model have a loss inside, as if compiled; None: its own.

    Refuse a model that has none either way, or whose own code computes it.
    """
    require_model(model)
    if loss is None:
        if not model.compiled:
            raise ValueError(
                f"Model {model.name!r} is not compiled, so it has no loss. "
                "Expected a loss here, such as loss='mse', or "
                "model.compile(loss=...) before. Received: loss=None"
            )
        yield
        return
    if has_own_loss(model):
        raise ValueError(
            f"Model {model.name!r} computes its loss in a compute_loss() of "
            "its own, which a given loss does not replace. Expected loss=None, "
            "or a model without it, such as keras.Model(inputs, outputs). "
            f"Received: loss={loss!r}"
        )
    _require_loss(model, loss)
    with compiled_with(model, loss):
        yield


def _require_loss(model, loss):
    """Refuse what is no loss; of those in a dict Keras looks at the names."""
    if isinstance(loss, (list, tuple)):
        # Of more losses than outputs Keras would train on the sum.
        outputs = len(getattr(model, "outputs", None) or loss)
        if len(loss) != outputs:
            raise ValueError(
                f"`loss` expected one loss for each output of model "
                f"{model.name!r}, which has {outputs}. Received: loss="
                f"{reprlib.repr(loss)}. To add several up for one output, "
                "write a function loss(y_true, y_pred) that returns their sum."
            )
    if isinstance(loss, (list, tuple, dict)):
        return
    try:
        keras.losses.get(loss)
    except ValueError:
        raise ValueError(
            "`loss` expected the name of a Keras loss, such as 'mse', a "
            "keras.losses.Loss, or a function loss(y_true, y_pred) that gives "
            f"one value per sample. Received: loss={reprlib.repr(loss)}"
        ) from None
    if inspect.isfunction(loss):
        try:
            inspect.signature(loss).bind(None, None)
        except TypeError as error:
            raise TypeError(
                "`loss` expected a function of two arguments, loss(y_true, "
                "y_pred), that gives one value per sample. Received: a "
                f"function of {inspect.signature(loss)}"
            ) from error
