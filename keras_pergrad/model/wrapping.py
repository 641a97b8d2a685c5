"""The models that `PerGradModel.from_model` makes of subclassed models.

A built model that has inputs and outputs, or methods of its own around its
steps (`fit`, say), becomes a class derived from its own and `PerGradModel`.
Others are called from a `WrappedModel`.
"""

import inspect
from typing import Any

import keras

from keras_pergrad.common.registry import PACKAGE
from keras_pergrad.keras_internals.losses.compiled import (
    compile_like,
    metrics_outside_compile,
)
from keras_pergrad.keras_internals.models.parts import (
    Functional,
    compute_loss,
    patched_attribute,
    symbolic_inputs,
    symbolic_outputs,
    takes_training,
)
from keras_pergrad.keras_internals.models.sharing import (
    as_original,
    derived_class,
    make_twin,
    saved_as,
)
from keras_pergrad.model.model import FunctionalPerGradModel, PerGradModel
from keras_pergrad.modes.inspection import require_model

_TRAIN_METHODS = ("train_step", "make_train_function")
_STEP_METHODS = (
    *_TRAIN_METHODS,
    "test_step",
    "predict_step",
    "make_test_function",
    "make_predict_function",
)
#: What a `WrappedModel` would not call.
_OUTER_METHODS = (
    "compile",
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
    "get_metrics_result",
    "reset_metrics",
    "get_compile_config",
    "compile_from_config",
)


def overrides(model, name):
    """Whether a model's class has a method of its own by a Keras name."""
    base_methods = (getattr(keras.Model, name), getattr(PerGradModel, name))
    return getattr(type(model), name) not in base_methods


def from_model(cls, model):
    """Return a `cls` that shares the layers and weights of `model`."""
    require_model(model)
    if type(model) is keras.Sequential and model.built:
        return cls(model.inputs[0], model.outputs[0], name=model.name)
    if type(model) in (Functional, FunctionalPerGradModel):
        inputs, outputs = symbolic_inputs(model), symbolic_outputs(model)
        return cls(inputs, outputs, name=model.name)
    is_graph = isinstance(model, (Functional, keras.Sequential))
    overridden = [name for name in _OUTER_METHODS if overrides(model, name)]
    if model.built and (is_graph or overridden):
        return derive(model)
    if overridden:
        raise ValueError(
            f"Model {model.name!r} has a {overridden[0]}() of its own "
            f"({type(model).__name__}), which from_model() keeps once the "
            "model is built. Call it on a batch before from_model(), or derive "
            f"{type(model).__name__} from keras_pergrad.PerGradModel instead "
            "of keras.Model."
        )
    return wrap(model)


def _refuse_steps(model, names):
    for name in names:
        if overrides(model, name):
            raise ValueError(
                f"Model {model.name!r} has a {name}() of its own "
                f"({type(model).__name__}), which from_model() would drop: "
                "its result is trained by the steps of PerGradModel. Derive "
                f"{type(model).__name__} from keras_pergrad.PerGradModel "
                "instead of keras.Model; inside a train_step of its own, "
                "self.compute_gradients() gives the gradients by "
                "gradient_mode."
            )


def derive(model):
    """Return a model of a derived class; refuse a train step of its own."""
    _refuse_steps(model, _TRAIN_METHODS)
    is_task = all(hasattr(model, name) for name in _TASK_METHODS)
    front = _TaskFrontMixin if is_task else _FrontMixin
    cls = derived_class(type(model), front, _BackMixin)
    saved_as(cls, _Derived)
    return make_twin(model, cls, PerGradModel)


def wrap(model):
    """Return a `PerGradModel` that calls `model`; refuse steps of its own."""
    _refuse_steps(model, _STEP_METHODS)
    loss = overrides(model, "compute_loss")
    metrics = overrides(model, "compute_metrics")
    if loss and metrics:
        return _WithBoth(model)
    if loss:
        return _WithLoss(model)
    return _WithMetrics(model) if metrics else WrappedModel(model)


_TASK_METHODS = ("preprocess_samples", "save_to_preset")
#: Parameters that take any number of arguments.
_VARIADIC = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


class _FrontMixin:
    """What comes before a model's own methods in a derived class."""

    _mode_given = "batch"
    _beyond_keras = None

    def compile(self, *args, gradient_mode="batch", **kwargs):
        # A compile() of one's own need not know the argument.
        with patched_attribute(self, "_mode_given", gradient_mode):
            super().compile(*args, **kwargs)
        keras_parameters = inspect.signature(keras.Model.compile).parameters
        signature = inspect.signature(super().compile)
        arguments = signature.bind(*args, **kwargs).arguments
        extra_arguments = {
            name: value
            for name, value in arguments.items()
            if name not in keras_parameters
            and signature.parameters[name].kind not in _VARIADIC
        }
        # Keras would track what is in it as parts of the model.
        object.__setattr__(self, "_beyond_keras", extra_arguments)

    def get_compile_config(self):
        config = super().get_compile_config()
        if config and self._beyond_keras:
            config |= keras.saving.serialize_keras_object(self._beyond_keras)
        return config

    def compile_from_config(self, config):
        parameters = inspect.signature(super().compile).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            accepted = (*parameters, "gradient_mode", "trained_parts")
            config = {k: v for k, v in config.items() if k in accepted}
        super().compile_from_config(config)

    def fit(self, x=None, *args, **kwargs):
        aggregation = self.compiled and self.gradient_mode.aggregation
        has_own_fit = type(self).original_class.fit is not keras.Model.fit
        if aggregation and aggregation.counts and has_own_fit:
            if getattr(self, "preprocessor", self) is not None:
                raise ValueError(
                    _FIT_NOT_PRIVATE.format(type(self).original_class.__name__)
                )
            model: Any = self
            return PerGradModel.fit(model, x, *args, **kwargs)
        parent: Any = super()
        return parent.fit(x, *args, **kwargs)

    def get_config(self):
        with as_original(self):
            config: Any = keras.saving.serialize_keras_object(self)
        config.pop("compile_config", None)
        return {"model": config}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return _Derived.from_config(config, custom_objects)


class _TaskFrontMixin(_FrontMixin):
    """For the tasks of keras-hub, which have a preprocessor and presets."""

    def preprocess_samples(self, x, y=None, sample_weight=None):
        # A tokenizer would fail for what is tokenized already.
        if isinstance(x, dict) and "token_ids" in x:
            return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
        return super().preprocess_samples(x, y, sample_weight)

    def save_to_preset(self, *args, **kwargs):
        # A preset holds the name of the class, which keras-hub must know. It
        # is published: whoever has the state of private training, with its
        # seeds, can remove the noise.
        model: Any = self
        with (
            patched_attribute(model, "aggregation_state", None),
            patched_attribute(model, "gradient_state", None),
            as_original(model),
        ):
            return model.save_to_preset(*args, **kwargs)


class _BackMixin(PerGradModel):
    """What comes after them."""

    def compile(self, *args, **kwargs):
        kwargs["gradient_mode"] = self._mode_given
        super().compile(*args, **kwargs)


class _Derived(PerGradModel):
    """The name that models of derived classes are saved under."""

    @classmethod
    def from_config(cls, config, custom_objects=None):
        model = keras.saving.deserialize_keras_object(
            config["model"], custom_objects=custom_objects
        )
        return PerGradModel.from_model(model)


saved_as(_Derived, _Derived)

_FIT_NOT_PRIVATE = (
    "{0} has a fit() of its own, which may change the examples after they are "
    "drawn, so that nothing can be said of privacy. Preprocess the examples "
    "before, as in x, y, sample_weight = model.preprocessor(texts), give "
    "these to private.batches(), and set model.preprocessor = None."
)


@keras.saving.register_keras_serializable(PACKAGE)
class WrappedModel(PerGradModel):
    """What `PerGradModel.from_model` gives for models that only have `call`."""

    def __init__(self, model, name=None, **kwargs):
        super().__init__(name=name or model.name, **kwargs)
        self.wrapped = model
        self.output_names = getattr(model, "output_names", None)
        if model.built:
            self.built = True

    def call(self, inputs, training=None):
        if takes_training(self.wrapped):
            return self.wrapped(inputs, training=training)
        return self.wrapped(inputs)

    @property
    def metrics(self):
        # Keras leaves those out that the wrapped model made for itself.
        metrics = super().metrics
        wrapped = getattr(self, "wrapped", None)
        if wrapped is None:  # not yet
            return metrics
        known_ids = {id(metric) for metric in metrics}
        wrapped_metrics = metrics_outside_compile(wrapped)
        return metrics + [
            metric for metric in wrapped_metrics if id(metric) not in known_ids
        ]

    def get_config(self):
        config = {"name": self.name}
        config["model"] = keras.saving.serialize_keras_object(self.wrapped)
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        config["model"] = keras.saving.deserialize_keras_object(
            config["model"], custom_objects=custom_objects
        )
        return cls(**config)


@keras.saving.register_keras_serializable(PACKAGE)
class _WithLoss(WrappedModel):
    """For models with a `compute_loss` of their own."""

    def compute_loss(
        self,
        x=None,
        y=None,
        y_pred=None,
        sample_weight=None,
        training=True,
    ):
        with compile_like(self.wrapped, self):
            return compute_loss(
                self.wrapped, x, y, y_pred, sample_weight, training
            )


@keras.saving.register_keras_serializable(PACKAGE)
class _WithMetrics(WrappedModel):
    """For models with a `compute_metrics` of their own."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        with compile_like(self.wrapped, self):
            return self.wrapped.compute_metrics(x, y, y_pred, sample_weight)


@keras.saving.register_keras_serializable(PACKAGE)
class _WithBoth(_WithLoss, _WithMetrics):
    """For models with both."""


PerGradModel._wrap_model = staticmethod(from_model)
