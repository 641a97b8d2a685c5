"""The models that `PerGradModel.from_model` makes of models with only `call`.

Private names in use: `Model._compute_loss`, `Model._compile_loss`,
`Model._compile_metrics`, `Model._loss_tracker`, `Layer._metrics`,
`keras.src.models.functional.Functional`, `Model._inputs_struct`,
`Model._outputs_struct`.
"""

import contextlib

import keras
from keras.src.models.functional import Functional

from keras_pergrad.keras_internals.patching import attribute
from keras_pergrad.keras_internals.registry import PACKAGE
from keras_pergrad.model import PerGradModel

# What compile() sets and the methods below read.
_COMPILED = ("_compile_loss", "_compile_metrics", "_loss_tracker", "compiled")
_STEPS = (
    "train_step",
    "test_step",
    "predict_step",
    "make_train_function",
    "make_test_function",
    "make_predict_function",
)


def overrides(model, name):
    """Whether a model's class has a method of its own by a Keras name."""
    ours = (getattr(keras.Model, name), getattr(PerGradModel, name))
    return getattr(type(model), name) not in ours


def from_model(cls, model):
    """Return a `cls` that shares the layers and weights of `model`."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a keras.Model. Received: "
            f"{model!r} of type {type(model).__name__}"
        )
    if type(model) is keras.Sequential and model.built:
        return cls(model.inputs[0], model.outputs[0], name=model.name)
    if type(model) is Functional:
        return cls(model._inputs_struct, model._outputs_struct, name=model.name)
    return wrap(model)


def wrap(model):
    """Return a `PerGradModel` that calls `model`.

    Raises:
        ValueError: the model has steps of its own, which would be lost.
    """
    for name in _STEPS:
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
    loss = overrides(model, "compute_loss")
    metrics = overrides(model, "compute_metrics")
    if loss and metrics:
        return _WithBoth(model)
    if loss:
        return _WithLoss(model)
    return _WithMetrics(model) if metrics else WrappedModel(model)


@keras.saving.register_keras_serializable(PACKAGE)
class WrappedModel(PerGradModel):
    """What `PerGradModel.from_model` gives for models that only have `call`.

    Args:
        model: the model, which is called as it is.
    """

    def __init__(self, model, name=None, **kwargs):
        super().__init__(name=name or model.name, **kwargs)
        self.wrapped = model
        self.output_names = getattr(model, "output_names", None)

    def call(self, inputs, training=None):
        if self.wrapped._call_has_training_arg:
            return self.wrapped(inputs, training=training)
        return self.wrapped(inputs)

    @property
    def metrics(self):
        # Keras leaves those out that the wrapped model made for itself.
        found = super().metrics
        wrapped = getattr(self, "wrapped", None)
        if wrapped is None:  # not yet
            return found
        compiled = [vars(wrapped).get(name) for name in _COMPILED]
        known = {id(metric) for metric in (*found, *compiled)}
        return found + [m for m in wrapped._metrics if id(m) not in known]

    @contextlib.contextmanager
    def _compiled_wrapped(self):
        """Yield the wrapped model, as if compiled as this one is."""
        with contextlib.ExitStack() as stack:
            for name in _COMPILED:
                value = getattr(self, name)
                stack.enter_context(attribute(self.wrapped, name, value))
            yield self.wrapped

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
        with self._compiled_wrapped() as wrapped:
            return wrapped._compute_loss(
                x, y, y_pred, sample_weight, training=training
            )


@keras.saving.register_keras_serializable(PACKAGE)
class _WithMetrics(WrappedModel):
    """For models with a `compute_metrics` of their own."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        with self._compiled_wrapped() as wrapped:
            return wrapped.compute_metrics(x, y, y_pred, sample_weight)


@keras.saving.register_keras_serializable(PACKAGE)
class _WithBoth(_WithLoss, _WithMetrics):
    """For models with both."""
