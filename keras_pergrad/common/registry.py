"""Names for classes, resolved as `keras.optimizers.get` resolves them."""

import inspect
from collections.abc import ItemsView
from typing import Any, Self, TypeVar

import keras

from keras_pergrad.common.arguments import NamedArguments
from keras_pergrad.common.names import did_you_mean

PACKAGE = "keras_pergrad"

#: The class that a decorator gets and returns.
Class = TypeVar("Class", bound=type)


class Registry:
    """The named classes of one kind; `kind` is the word that errors use."""

    def __init__(self, kind: str, base: type):
        self.kind = kind
        self.base = base
        self._classes = {}

    def register(self, name: str, cls: Any = None) -> Any:
        """Register `cls` under an own name; without `cls`, a decorator."""
        if cls is None:
            return lambda decorated: self.register(name, decorated)
        if not (isinstance(cls, type) and issubclass(cls, self.base)):
            raise TypeError(
                f"A {self.kind} must be a subclass of {self.base.__name__}. "
                f"Received: {cls!r}"
            )
        registered = self._classes.get(name)
        if registered is not None and _origin(registered) != _origin(cls):
            raise ValueError(
                f"The {self.kind} name {name!r} is taken by "
                f"{registered.__name__}. Choose another name."
            )
        self._classes[name] = cls
        # Keras must find the class when it loads a model. What a user has
        # registered under a package of his own stays as it is.
        if cls.__module__.split(".")[0] == PACKAGE:
            keras.saving.register_keras_serializable(PACKAGE)(cls)
        elif keras.saving.get_registered_name(cls) == cls.__name__:
            keras.saving.register_keras_serializable("custom")(cls)
        return cls

    def names(self) -> list[str]:
        """Return the registered names, in order of registration."""
        return list(self._classes)

    def items(self) -> ItemsView[str, Any]:
        """Return the names and their classes."""
        return self._classes.items()

    def get(self, identifier: Any) -> Any:
        """Return an object for a name, a config dict or an object."""
        if isinstance(identifier, self.base):
            return identifier
        if isinstance(identifier, str):
            cls = self._classes.get(identifier)
            if cls is None:
                raise ValueError(
                    f"Unknown {self.kind}: {identifier!r}. Known are "
                    + ", ".join(repr(n) for n in self._classes)
                    + f", or pass an object of {self.base.__name__}."
                    + did_you_mean(identifier, self._classes)
                )
            return self._make(cls, {})
        if isinstance(identifier, dict):
            config = dict(identifier)
            name = config.get("class_name")
            # A short config of ours; Keras's own has a registered name.
            if name in self._classes and "registered_name" not in config:
                return self._make(self._classes[name], config.get("config", {}))
            result = keras.saving.deserialize_keras_object(config)
            if isinstance(result, self.base):
                return result
        if isinstance(identifier, type) and issubclass(identifier, self.base):
            raise TypeError(
                f"The {self.kind} must be an object. Received the class "
                f"{identifier.__name__}; write {identifier.__name__}(...)."
            )
        raise TypeError(
            f"The {self.kind} is given as a name ("
            + ", ".join(repr(n) for n in self._classes)
            + f"), an object of {self.base.__name__} or its config dict. "
            f"Received: {identifier!r} of type {type(identifier).__name__}"
        )

    def _make(self, cls, config):
        try:
            return cls.from_config(config)
        except TypeError as error:
            raise ValueError(
                f"The {self.kind} {cls.__name__} cannot be made from "
                f"{config!r}: {error}. Pass an object with its arguments, "
                f"such as {cls.__name__}(...)."
            ) from error


def _origin(cls):
    """Return where a class is defined; a cell that runs again redefines it."""
    return cls.__module__, cls.__qualname__


class Configured(NamedArguments):
    """Something with a config, which its `repr` shows."""

    #: Arguments that are shown even where they are the default.
    always_shown: tuple[str, ...] = ()

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that create another object like it."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return an object made from what `get_config` returns."""
        return cls(**config)

    def __repr__(self) -> str:
        """Show a call that makes an equal one, without most defaults."""
        parameters = inspect.signature(type(self).__init__).parameters
        arguments = []
        for name, value in self.get_config().items():
            # Show an object, not the config dict that it is saved as.
            value = getattr(self, name) if isinstance(value, dict) else value
            parameter = parameters.get(name)
            is_default = parameter is not None and parameter.default == value
            if name in self.always_shown or not is_default:
                arguments.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(arguments)})"


def serialize(instance: Any) -> Any:
    """Return the config dict that `Registry.get` turns back into `instance`."""
    return keras.saving.serialize_keras_object(instance)
