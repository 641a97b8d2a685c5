"""Models whose batch normalisation is replaced by one that mixes no samples."""

import functools
import inspect
import tempfile
from typing import Literal

import keras
import tensorflow as tf

from keras_pergrad.batch_norm.exchange import (
    check_exchange,
    exchanged,
    made_by_own_code,
    norms,
    save_as_exchanged,
)
from keras_pergrad.common.names import named_arguments, require_one_of
from keras_pergrad.common.numbers import positive_integer
from keras_pergrad.common.patching import patched_attribute
from keras_pergrad.keras_internals.models.parts import (
    is_only_layers,
    layers_of,
    producer_of,
    rename_like,
    set_path,
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
    counts masked padding. The new model can be saved as a whole, also if its
    own code makes its BatchNormalization, but not as a preset of keras-hub.

    Args:
        model: a built `keras.Model`: functional, Sequential, or subclassed if
            its config can rebuild it (see `get_config`). It is not changed.
        by: "group", "layer" or "frozen".
        groups: for "group", the most groups of channels that a layer may get.
            It gets the largest number that divides its channels and leaves
            more than one value per group, since a single value less its mean
            is 0. Default: at most 32, of at least two channels and, if there
            are that many, at least 16 values.

        in_place: whether to exchange the layers in `model` itself, and return
            it. For models that no config can rebuild, such as with functions
            as arguments of layers or regularisers without a config. What
            shares these layers changes with it.

    Returns:
        A model of the same class, or of one derived from it, not compiled.

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
        check_exchange(layer, by)
    inputs = _refuse_hidden_norms(model)
    new = model if in_place else _copy_model(model)
    own_code_layers = made_by_own_code(new)
    with exchanged(_trained_norms(new), by, groups):
        if inputs is not None and by != "frozen":
            _check_call(new, inputs)
    new.compiled = False
    save_as_exchanged(own_code_layers)
    return new


def _check_arguments(model, by, groups):
    require_model(model)
    require_one_of("by", by, _KINDS)
    if groups is not None and by != "group":
        raise ValueError(
            "`groups` goes with by='group' only. Received: "
            f"groups={groups!r}, by={by!r}"
        )
    if groups is not None:
        positive_integer("groups", groups)
    if not model.built:
        raise ValueError(
            f"model {model.name!r} is not built, so that its channels are not "
            "known. Call it on a batch first, or begin it with a keras.Input."
        )


def _trained_norms(model):
    """Return the layers that use the batch's statistics in training."""
    return [layer for layer in norms(model) if layer.trainable]


def _refuse_hidden_norms(model):
    """Refuse normalisation that is no layer's attribute; return input specs."""
    attribute_norms = set(map(id, _trained_norms(model)))
    hidden = {}
    norm = keras.layers.BatchNormalization
    call = norm.call

    @functools.wraps(call)
    def watched_call(self, inputs, training=None, mask=None):
        if training and self.trainable and id(self) not in attribute_norms:
            hidden[self.path] = self
        return call(self, inputs, training=training, mask=mask)

    inputs = _inputs(model)
    # For the length of one trace the class reports each layer that is called.
    norm.call = watched_call
    try:
        _trace(model, inputs)
    except Exception:
        # For example, TensorFlow raises where a call creates variables.
        inputs = None
    finally:
        norm.call = call
    if hidden:
        raise ValueError(
            f"model {model.name!r} calls BatchNormalization "
            f"{', '.join(map(repr, hidden))}, which is no attribute of any of "
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
    # What is shared in the model is shared in the copy; Keras's own saving
    # loses layers that a model shares with a model inside of it.
    copier = _Copier()
    own_classes = {
        keras.saving.get_registered_name(type(layer)): _ClassStandIn(
            type(layer)
        )
        for layer in layers_of(model)
        if not type(layer).__module__.startswith("keras.")
    }
    try:
        with keras.saving.custom_object_scope(own_classes):
            copy = copier(model)
            if not copy.built:
                copy.build_from_config(model.get_build_config())
        shapes = [[tuple(w.shape) for w in m.weights] for m in (model, copy)]
        if shapes[0] != shapes[1]:
            raise ValueError("the copy has other weights")
    except Exception as error:
        raise ValueError(_NOT_COPIED.format(model.name, error)) from error
    for old, new in copier.pairs():
        _restore(old, new)
    return copy


_NOT_COPIED = (
    "model {!r} cannot be copied by its config: {}\n"
    "Give layers and models of your own a `get_config` with the arguments of "
    "`__init__`, and create their layers in `__init__` or `build`. Or let the "
    "layers be exchanged in this model: "
    "replace_batch_norm(model, in_place=True)."
)


class _Copier:
    """Copies layers, each of them once: what is shared stays shared."""

    def __init__(self):
        self._copies = {}

    def __call__(self, layer):
        """Return the layer's copy; operations without state are shared."""
        if not isinstance(layer, keras.Layer):
            return layer
        if id(layer) not in self._copies:
            self._copies[id(layer)] = layer, self._make(layer)
        return self._copies[id(layer)][1]

    def pairs(self):
        """Yield all layers and their copies, including those inside others."""
        for layer, twin in self._copies.values():
            if is_only_layers(layer):
                yield layer, twin
            else:
                # Made by the same code, so in the same order.
                yield from zip(layers_of(layer), layers_of(twin))

    def _make(self, layer):
        if is_only_layers(layer):
            # Otherwise the copy would be compiled as well.
            with patched_attribute(layer, "compiled", False):
                return keras.models.clone_model(
                    layer, _input_tensors(layer), clone_function=self
                )
        config = layer.get_config()
        if isinstance(layer, keras.layers.Lambda):
            return type(layer).from_config(config, safe_mode=False)
        return _ClassStandIn(type(layer)).from_config(config)


def _input_tensors(layer):
    """Return new inputs under the old names; None: `clone_model` has them."""
    if isinstance(layer, keras.Sequential):
        return None
    return keras.tree.map_structure(
        lambda t: (
            keras.layers.InputLayer.from_config(
                producer_of(t).get_config()
            ).output
        ),
        layer.input,
    )


class _ClassStandIn:
    """Stands in for a class whose `__init__` lacks arguments Keras passes."""

    def __init__(self, cls):
        self._cls = cls

    def from_config(self, config):
        """Return a new object; `_restore` gives it its name."""
        accepted = inspect.signature(self._cls.__init__).parameters.values()
        if not any(p.kind is p.VAR_KEYWORD for p in accepted):
            names = {p.name for p in accepted}
            for name in {"name", "trainable", "dtype"} - names:
                config.pop(name, None)
        return self._cls.from_config(config)


def _restore(old, new):
    """Copy a layer's values, and all that no config holds, to its copy."""
    rename_like(new, old)
    if is_only_layers(old):
        return
    # The state of random layers is no weight; metrics are no part of a copy.
    kind = "weights" if isinstance(old, keras.Model) else "variables"
    for source, target in zip(getattr(old, kind), getattr(new, kind)):
        set_path(target, source.path)
        target.trainable = source.trainable
        target.assign(source)
    if hasattr(old, "save_assets"):
        with tempfile.TemporaryDirectory() as folder:
            old.save_assets(folder)
            new.load_assets(folder)
    if isinstance(old, keras.layers.Normalization):
        new.finalize_state()
