"""Models whose batch normalisation is replaced by one that mixes no samples."""

import tempfile
from typing import Literal

import keras
import tensorflow as tf

from keras_pergrad.batch_norm.exchange import (
    check_exchange,
    exchanged,
    refuse_saving,
    trained_norms,
)
from keras_pergrad.common.arguments import (
    named_arguments,
    positive_integer,
    require_one_of,
)
from keras_pergrad.keras_internals.models.layers import is_only_layers
from keras_pergrad.keras_internals.models.parts import (
    layers_of,
    patched_attribute,
    symbolic_inputs,
)
from keras_pergrad.modes.inspection import require_model

_KINDS = ("group", "layer", "frozen")


@named_arguments
def replace_batch_norm(
    model: keras.Model,
    by: Literal["group", "layer", "frozen"] = "group",
    *,
    groups: int | None = None,
    in_place: bool = False,
) -> keras.Model:
    """Return an equal model without batch normalisation over a training batch.

    In training, BatchNormalization makes every sample's output depend on the
    whole batch, so per-sample gradients are not defined. The new model has
    another normalisation in its place:

    | `by` | new layer | keeps of the old layer |
    |---|---|---|
    | "group" | GroupNormalization | gamma and beta |
    | "layer" | LayerNormalization, over the channels | gamma and beta |
    | "frozen" | BatchNormalization, not trainable | all, statistics included |

    "frozen" suits a trained model: its outputs do not change. With the others
    they do, so the model must be trained (again); moving statistics are
    dropped. Setting `trainable = True` on the new model as a whole would
    unfreeze the frozen layers.

    The new model has its own weights; outside batch normalisation their values
    are the same. Names, shared layers, nested models and trainable flags stay.
    A BatchNormalization that is frozen already (`trainable = False`) uses its
    statistics, mixes no samples, and stays as it is. GroupNormalization also
    counts masked padding.

    A functional or Sequential model is saved and loaded as before. A subclassed
    model, or one with such a layer, would make its own BatchNormalization again
    when it is loaded: its `save()` is refused, `save_weights()` is the way out.

    Args:
        model: a built `keras.Model`. Without `in_place=True` it is not
            changed, and must be functional or Sequential.
        by: "group", "layer" or "frozen".
        groups: for "group", the most groups of channels that a layer may get.
            It gets the largest number that divides its channels and leaves
            more than one value per group, since a single value less its mean
            is 0. Default: at most 32, of at least two channels and, if there
            are that many, at least 16 values.

        in_place: whether to exchange the layers in `model` itself, and return
            it. For subclassed models, and for layers that no config can make
            again. What shares these layers changes with it.

    Returns:
        A model of the same class, not compiled.

    Raises:
        TypeError: `model` is no `keras.Model`.
        ValueError: an argument is none of those above; the model is not built;
            or a layer cannot be replaced (the message names it): its channels
            are on the first axis, it has one value per sample, its class
            overrides `call`, or it is not an attribute of a layer.

    Example:

    >>> import keras
    >>> import keras_pergrad as kpg
    >>> net = keras.Sequential(
    ...     [
    ...         keras.Input((8, 8, 3)),
    ...         keras.layers.Conv2D(12, 3),
    ...         keras.layers.BatchNormalization(name="norm"),
    ...         keras.layers.GlobalAveragePooling2D(),
    ...         keras.layers.Dense(2),
    ...     ]
    ... )
    >>> net = kpg.replace_batch_norm(net)
    >>> type(net.get_layer("norm")).__name__, net.get_layer("norm").groups
    ('GroupNormalization', 6)
    >>> model = kpg.PerGradModel.from_model(net)
    >>> model.compile("sgd", "mse", gradient_mode="vectorized")
    """
    _check_arguments(model, by, groups)
    for layer in trained_norms(model):
        check_exchange(layer, by)
    inputs = _inputs(model)
    can_run = _runs(model, inputs)
    new = model if in_place else _copy_model(model)
    layers = trained_norms(new)
    with exchanged(layers, by, groups):
        if can_run and by != "frozen":
            _check_call(new, inputs)
    new.compiled = False
    refuse_saving(new, layers)
    return new


def _check_arguments(model, by, groups):
    require_model(model)
    require_one_of("by", by, _KINDS)
    if groups is not None:
        if by != "group":
            raise ValueError(
                "`groups` goes with by='group' only. Received: "
                f"groups={groups!r}, by={by!r}"
            )
        positive_integer("groups", groups)
    if not model.built:
        raise ValueError(
            f"model {model.name!r} is not built, so that its channels are not "
            "known. Call it on a batch first, or begin it with a keras.Input."
        )


def _runs(model, inputs):
    """Whether a model runs; refuse normalisation that is no attribute."""
    try:
        traced = _trace(model, inputs)
    except Exception:
        # The inputs of a subclassed model are a guess.
        return False
    known = {id(weight.value) for weight in model.weights}
    names = [v.name for v in traced.graph.variables if id(v) not in known]
    statistic = "/moving_variance:0"
    hidden = [n.removesuffix(statistic) for n in names if statistic in n]
    if hidden:
        raise ValueError(
            f"model {model.name!r} calls BatchNormalization "
            f"{', '.join(map(repr, hidden))}, which is no attribute of any of "
            "its layers, so that it cannot be exchanged. Make it an attribute "
            "of the layer that calls it."
        )
    return True


def _check_call(model, inputs):
    """Refuse a model that does not run after the replacement."""
    try:
        _trace(model, inputs)
    except Exception as error:
        raise ValueError(
            f"model {model.name!r} does not run once its BatchNormalization is "
            "exchanged; its layers must call the normalisation with one "
            f"tensor: {error}"
        ) from error


def _trace(model, inputs):
    """Call the model in training, without values."""
    step = tf.function(lambda x: model(x, training=True), autograph=False)
    return step.get_concrete_function(inputs)


def _inputs(model):
    """Return TensorSpecs of the inputs; for a subclassed model, a guess."""
    inputs = symbolic_inputs(model)
    if isinstance(model, keras.Sequential):
        inputs = model.inputs[0]
    if inputs is not None:
        return keras.tree.map_structure(
            lambda t: tf.TensorSpec(t.shape, t.dtype), inputs
        )
    shape = model.get_build_config().get("input_shape") or ()
    return tf.TensorSpec((None, *shape[1:]), model.compute_dtype)


def _copy_model(model):
    """Return a model with its own weights, of the same values, not compiled."""
    try:
        if not is_only_layers(model):
            raise ValueError("its layers are made by its own code")
        with patched_attribute(model, "compiled", False):
            copy = keras.models.clone_model(
                model, clone_function=_copy_layer, recursive=True
            )
        if _weights_of(model) != _weights_of(copy):
            raise ValueError("the copy has other weights")
    except Exception as error:
        raise ValueError(_NOT_COPIED.format(model.name, error)) from error
    for source, target in zip(model.weights, copy.weights):
        target.trainable = source.trainable
        target.assign(source)
    for old, new in zip(layers_of(model), layers_of(copy)):
        _copy_state(old, new)
    return copy


_NOT_COPIED = (
    "model {!r} cannot be copied: {}\n"
    "Expected a functional or Sequential model whose layers have a "
    "`get_config` with the arguments of `__init__`. Have the layers exchanged "
    "in this model itself: replace_batch_norm(model, in_place=True)."
)


def _copy_layer(layer):
    """Return a layer of the same settings, with weights of its own."""
    if isinstance(layer, keras.layers.Lambda):
        # Its function comes from this process and not from a file.
        return type(layer).from_config(layer.get_config(), safe_mode=False)
    return type(layer).from_config(layer.get_config())


def _weights_of(model):
    return [(weight.name, tuple(weight.shape)) for weight in model.weights]


def _copy_state(layer, copy):
    """Copy what a layer holds in addition to its weights."""
    if hasattr(layer, "save_assets") and not is_only_layers(layer):
        with tempfile.TemporaryDirectory() as folder:
            layer.save_assets(folder)
            copy.load_assets(folder)
    if isinstance(layer, keras.layers.Normalization):
        copy.finalize_state()
