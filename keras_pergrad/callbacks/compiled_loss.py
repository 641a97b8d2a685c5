"""What loss a model was compiled with, as plain values.

Private names in use: `Model._compile_loss`, `CompileLoss._flat_losses`,
`LossFunctionWrapper._fn_kwargs`.
"""

import inspect

import keras

from keras_pergrad.callbacks.layer_settings import is_default, is_from_keras
from keras_pergrad.callbacks.plain import plain, plain_value

_REDUCTION = "sum_over_batch_size"


def compiled_loss(model):
    """The losses of a model that has been trained or traced.

    Returns:
        A list with a dict for each loss: the qualified name of its function
        or class, and what is not the default. How it was given ("mse", a
        function or an object) makes no difference.
    """
    compiled = getattr(model, "_compile_loss", None)
    found = [
        _described(known)
        for known in getattr(compiled, "_flat_losses", None) or ()
        if known.loss is not None
    ]
    own = type(model).compute_loss
    if own is not keras.Model.compute_loss:
        found.append({"loss": own.__qualname__})
    return plain(found)


def _described(known):
    loss, found = known.loss, {}
    function = getattr(loss, "fn", None)
    if function is not None and is_from_keras(type(loss)):
        given = getattr(loss, "_fn_kwargs", {})
        found["loss"] = plain_value(function)
    else:
        given, function = _config(loss), type(loss).__init__
        found["loss"] = type(loss).__qualname__
    defaults = _defaults(function)
    found |= {
        name: value
        for name, value in given.items()
        if not is_default(value, defaults.get(name))
    }
    if getattr(loss, "reduction", _REDUCTION) != _REDUCTION:
        found["reduction"] = loss.reduction
    if known.path:
        found["output"] = list(known.path)
    if known.loss_weights not in (None, 1):
        found["weight"] = known.loss_weights
    return found


def _config(loss):
    try:
        config = loss.get_config()
    except Exception:  # a user's loss may raise anything here
        return {}
    return {
        name: value
        for name, value in config.items()
        if name not in ("name", "dtype", "reduction")
    }


def _defaults(function):
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # no Python function
        return {}
    return {
        name: given.default
        for name, given in parameters.items()
        if given.default is not given.empty
    }
