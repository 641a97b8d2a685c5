"""Models whose batch normalisation is replaced by one that mixes no samples.

Private names in use: `Functional`, `Layer._flatten_layers`,
`Layer._inbound_nodes`, `Layer._outbound_nodes`, `Node.arguments`.
"""

import contextlib
import functools
import math

import keras
import tensorflow as tf
from keras.src.models.functional import Functional

from keras_pergrad.analysis.batch_norm.copying import copy_model

_WAYS = ("group", "layer", "frozen")
#: As published with group normalisation (Wu and He, arXiv 1803.08494).
_MOST_GROUPS = 32
_LEAST_VALUES = 16


def replace_batch_norm(model, by="group", groups=None):
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
    counts masked padding. If a model's own code makes its BatchNormalization,
    save only the weights (`save_weights`): loading the whole model would make
    it again.

    Args:
        model: a built `keras.Model`: functional, Sequential, or subclassed if
            its config can rebuild it (see `get_config`). It is not changed.
        by: "group", "layer" or "frozen".
        groups: for "group", the most groups of channels that a layer may get.
            It gets the largest number that divides its channels and leaves
            more than one value per group, since a single value less its mean
            is 0. Default: at most 32, of at least two channels and, if there
            are that many, at least 16 values.

    Returns:
        A model of the same class, not compiled.

    Raises:
        TypeError: `model` is no `keras.Model`.
        ValueError: an argument is none of those above; the model is not built;
            or a layer cannot be replaced (the message names it): its channels
            are on the first axis, it has one value per sample, its class
            overrides `call`, or it is not an attribute of a layer, such as one
            created in a layer's `call`.

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
    for layer in _trained_norms(model):
        _check_exchange(layer, by)
    inputs = _refuse_out_of_sight(model)
    copy = copy_model(model)
    for layer in _trained_norms(copy):
        if by == "frozen":
            layer.trainable = False
        else:
            _become(layer, _replacement(layer, by, groups))
    if inputs is not None and by != "frozen":
        _check_call(copy, inputs)
    return copy


def _check_arguments(model, by, groups):
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a keras.Model. Received: "
            f"{model!r} of type {type(model).__name__}"
        )
    if by not in _WAYS:
        ways = ", ".join(map(repr, _WAYS))
        raise ValueError(f"`by` must be one of {ways}. Received: by={by!r}")
    if groups is not None and by != "group":
        raise ValueError(
            "`groups` goes with by='group' only. Received: "
            f"groups={groups!r}, by={by!r}"
        )
    if groups is not None and (type(groups) is not int or groups < 1):
        raise ValueError(
            "`groups` must be a positive integer or None. Received: "
            f"groups={groups!r}"
        )
    if not model.built:
        raise ValueError(
            f"model {model.name!r} is not built, so that its channels are not "
            "known. Call it on a batch first, or begin it with a keras.Input."
        )


def _trained_norms(model):
    """Return the layers that use the batch's statistics in training."""
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
    ]


def _check_exchange(layer, by):
    """Refuse a layer that the other kind cannot replace."""
    where = f"layer {layer.name!r} ({type(layer).__name__})"
    if by == "frozen":
        return
    if type(layer).call is not keras.layers.BatchNormalization.call:
        raise ValueError(
            f"{where} overrides BatchNormalization.call, so that nothing is "
            "known to be equal to it. Exchange it by hand, or use by='frozen'."
        )
    if not layer.built:
        raise ValueError(
            f"{where} has never been called: its channels are not known. "
            "Remove it from the model, or use by='frozen'."
        )
    axis, shape = _axis(layer), _shape(layer)
    if axis == 0:
        raise ValueError(
            f"{where} has its channels on axis 0, that of the samples: "
            f"axis={layer.axis}, input shape {shape}. Expected another axis."
        )
    channels, positions = shape[axis], _positions(layer)
    if channels * (1 if by == "layer" else positions or 2) == 1:
        raise ValueError(
            f"{where} would normalise single values, which makes each of them "
            f"0: input shape {shape}, axis={layer.axis}, by={by!r}. Remove the "
            "layer, or use by='frozen'."
        )


def _shape(layer):
    return layer.get_build_config()["input_shape"]


def _axis(layer):
    """Return the axis of the channels, not negative."""
    return layer.axis % len(_shape(layer))


def _positions(layer):
    """Return the fewest values of a channel in a sample, None if unknown."""
    calls = (node.input_tensors[0].shape for node in layer._inbound_nodes)
    axis, found = _axis(layer), []
    for shape in (_shape(layer), *calls):
        sizes = [s for i, s in enumerate(shape) if i not in (0, axis)]
        found.append(None if None in sizes else math.prod(sizes))
    return None if None in found else min(found)


def _groups(channels, positions, most):
    """Get the largest fitting number of groups (see `replace_batch_norm`)."""
    least_channels, least_values = 1, 2
    if most is None:
        most, least_channels, least_values = _MOST_GROUPS, 2, _LEAST_VALUES
    found = 1
    for groups in range(1, min(channels, most) + 1):
        width = channels // groups
        fits = channels % groups == 0 and width >= least_channels
        if fits and width * (positions or 1) >= least_values:
            found = groups
    return found


def _replacement(layer, by, groups):
    """Return a built layer with settings and weights of the old one."""
    shape, axis = _shape(layer), _axis(layer)
    config = layer.get_config()
    kept = ("name", "trainable", "dtype", "epsilon", "center", "scale")
    parts = ("initializer", "regularizer", "constraint")
    kept += tuple(f"{w}_{p}" for w in ("gamma", "beta") for p in parts)
    settings = {key: config[key] for key in kept}
    # Both new kinds work best with -1; BatchNormalization takes any axis.
    settings["axis"] = -1 if axis == len(shape) - 1 else axis
    if by == "layer":
        new = keras.layers.LayerNormalization.from_config(settings)
    else:
        settings["groups"] = _groups(shape[axis], _positions(layer), groups)
        new = keras.layers.GroupNormalization.from_config(settings)
    with contextlib.ExitStack() as scopes:
        for part in layer.path.split("/")[:-1]:
            scopes.enter_context(keras.name_scope(part))
        new.build(shape)
    for name in ("gamma", "beta"):
        old = getattr(layer, name)
        if old is not None:
            getattr(new, name).assign(old)
            getattr(new, name).trainable = old.trainable
    return new


def _become(layer, new):
    """Turn a layer of our copy into another one.

    The object stays, so all references to it (attributes, lists, graphs of
    functional models, closures) see the new layer.
    """
    nodes = {k: vars(layer)[k] for k in ("_inbound_nodes", "_outbound_nodes")}
    for node in layer._inbound_nodes:
        # Only BatchNormalization takes a mask.
        node.arguments.kwargs.pop("mask", None)
    # This bypasses Keras's tracking of attributes.
    object.__setattr__(layer, "__class__", type(new))
    object.__setattr__(layer, "__dict__", vars(new))
    vars(layer).update(nodes)


def _refuse_out_of_sight(model):
    """Refuse batch normalisation that is not an attribute of a layer.

    Returns:
        The TensorSpecs that the model was called with; None if its inputs are
        not known beforehand.
    """
    known = set(map(id, _trained_norms(model)))
    found = {}
    norm = keras.layers.BatchNormalization
    call = norm.call

    @functools.wraps(call)
    def watched(self, inputs, training=None, mask=None):
        if training and self.trainable and id(self) not in known:
            found[self.path] = self
        return call(self, inputs, training=training, mask=mask)

    inputs = _inputs(model)
    norm.call = watched
    try:
        _trace(model, inputs)
    except Exception:
        # For example, TensorFlow raises where a call creates variables.
        inputs = None
    finally:
        norm.call = call
    if found:
        raise ValueError(
            f"model {model.name!r} calls BatchNormalization "
            f"{', '.join(map(repr, found))}, which is no attribute of any of "
            "its layers, so that it cannot be exchanged. Create it in "
            "`__init__` or `build` of the layer that calls it, not in `call`."
        )
    return inputs


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
    step.get_concrete_function(inputs)


def _inputs(model):
    """Return TensorSpecs of the inputs; for a subclassed model, a guess."""
    known = None
    if isinstance(model, keras.Sequential):
        known = model.inputs[0]
    elif isinstance(model, Functional):
        known = model.input
    if known is not None:
        return keras.tree.map_structure(
            lambda t: tf.TensorSpec(t.shape, t.dtype), known
        )
    shape = model.get_build_config().get("input_shape") or ()
    return tf.TensorSpec((None, *shape[1:]), model.compute_dtype)
