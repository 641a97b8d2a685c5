"""Layers and losses that couple the samples of a batch, refused by name.

Private names in use: `CompileLoss._flat_losses`,
`LossFunctionWrapper._fn_kwargs`.
"""

import contextlib
import functools

import keras

from keras_pergrad.patching import attribute


def _shipped(*names):
    """Those of these layer classes that this version of Keras has."""
    found = (getattr(keras.layers, name, None) for name in names)
    return tuple(cls for cls in found if cls is not None)


_MIXERS = _shipped("MixUp", "CutMix")
_AUGMENTERS = _shipped("AugMix", "RandAugment")
_PAIRWISE_LOSSES = (keras.losses.circle,)
_OVERLAP_LOSSES = (keras.losses.dice, keras.losses.tversky)
_OVER_AN_AXIS = (
    keras.layers.Concatenate,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.Softmax,
    keras.layers.UnitNormalization,
)


def _raise(layer, error):
    del layer
    raise error


@contextlib.contextmanager
def refused(model, refuse=_raise):
    """Makes calls of coupling layers raise while active.

    A loss that couples the samples is refused at once.

    Args:
        model: a model; the layers inside its layers are looked at, too.
        refuse: what is called with the layer and the error, which names the
            layer and the way out; default: raises it.

    Raises:
        ValueError: (on such a call) by default.
    """
    compiled = getattr(model, "_compile_loss", None)
    for known in getattr(compiled, "_flat_losses", None) or ():
        message = _loss_message(known.loss)
        if message is not None:
            refuse(model, ValueError(message))
    with refused_layers(model, refuse):
        yield


@contextlib.contextmanager
def refused_layers(model, refuse=_raise):
    """The same, whatever the loss."""
    with contextlib.ExitStack() as stack:
        for layer in model._flatten_layers():
            reason = _reason(layer)
            if reason is not None:
                call = _guarded(layer, layer.call, reason, refuse)
                stack.enter_context(attribute(layer, "call", call))
        yield


def _loss_message(loss):
    """Why a Keras loss has no per-sample gradients, or None."""
    function = getattr(loss, "fn", None)
    name = getattr(loss, "name", None) or getattr(function, "__name__", "")
    if function in _PAIRWISE_LOSSES:
        way_out = "Use a loss of each sample by itself"
    elif function in _OVERLAP_LOSSES:
        axis = getattr(loss, "_fn_kwargs", {}).get("axis")
        axes = axis if isinstance(axis, (list, tuple)) else [axis]
        if not {None, 0} & set(axes):
            return None
        way_out = (
            "Give it the axes of one sample, such as axis=(1, 2, 3) for "
            f"images (it has axis={axis!r})"
        )
    else:
        return None
    return (
        f"loss {name!r} compares the samples of a batch with each other, so "
        f"that per-sample gradients are not defined. {way_out}, or compile "
        "with gradient_mode='batch'."
    )


def _reason(layer):
    """A function of (training, inputs) that tells why to refuse, or None."""
    if isinstance(layer, keras.layers.BatchNormalization):
        return functools.partial(_batch_normalization, layer)
    if isinstance(layer, _MIXERS):
        return functools.partial(_mixer, layer)
    if isinstance(layer, keras.layers.Equalization):
        return functools.partial(_equalization, layer)
    if isinstance(layer, _AUGMENTERS):
        return functools.partial(_augmenter, layer)
    if isinstance(layer, _OVER_AN_AXIS):
        return functools.partial(_over_samples, layer)
    return None


def _batch_normalization(layer, training, inputs):
    if not (training and layer.trainable):
        return None
    return (
        f"layer {layer.name!r} (BatchNormalization) makes every "
        "sample's output depend on the whole batch while training, so "
        "that per-sample gradients are not defined. Use "
        "GroupNormalization or LayerNormalization instead, or set "
        f"`trainable = False` on {layer.name!r} before compile() so "
        "that it uses its moving statistics, or compile with "
        "gradient_mode='batch'."
    )


def _mixer(layer, training, inputs):
    # Without the argument these layers act as in training.
    if training is False:
        return None
    return (
        f"layer {layer.name!r} ({type(layer).__name__}) mixes the samples of "
        "a batch while training, so that per-sample gradients are not "
        "defined. Apply it to the data set, with its labels, before the "
        "model: data.map(...); or compile with gradient_mode='batch'."
    )


def _equalization(layer, training, inputs):
    return _EQUALIZES.format(
        name=layer.name, does="takes", type=type(layer).__name__
    )


def _augmenter(layer, training, inputs):
    # They equalize past the call of the layer inside that does it.
    if training is False:
        return None
    return _EQUALIZES.format(
        name=layer.name, does="may take", type=type(layer).__name__
    )


def _over_samples(layer, training, inputs):
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    first = inputs[0] if isinstance(inputs, (list, tuple)) else inputs
    rank = len(first.shape)
    if 0 not in [axis % rank for axis in axes]:
        return None
    return (
        f"layer {layer.name!r} ({type(layer).__name__}) acts over axis 0, "
        "that of the samples, so that per-sample gradients are not defined. "
        f"Give it another axis (it has axis={layer.axis!r}), or compile with "
        "gradient_mode='batch'."
    )


def _guarded(layer, original, reason, refuse):
    @functools.wraps(original)
    def call(*args, training=None, **kwargs):
        message = reason(training, args[0] if args else kwargs.get("inputs"))
        if message is not None:
            refuse(layer, ValueError(message))
        if training is not None and layer._call_has_training_arg:
            kwargs["training"] = training
        return original(*args, **kwargs)

    return call


_EQUALIZES = (
    "layer {name!r} ({type}) {does} one histogram for all images of a batch, "
    "so that per-sample gradients are not defined. Apply it image by image to "
    "the data set, before the model: data.map(...); or compile with "
    "gradient_mode='batch'."
)
