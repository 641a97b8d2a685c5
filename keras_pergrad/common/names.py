"""Names that a user gives, misspelt or not, and arguments of on or off."""

import difflib
import functools
import inspect
import numbers
import reprlib
from typing import Any, TypeVar

Function = TypeVar("Function")

#: What TensorFlow Privacy, Opacus, Keras and others call the same, in lower
#: case: functions, classes and arguments.
_PEERS = {
    "compute_gradients": "PerGradModel",
    "dpkerasadamoptimizer": "PrivateTraining",
    "dpkerasmodel": "PrivateTraining",
    "dpkerassgdoptimizer": "PrivateTraining",
    "dpmodel": "PrivateTraining",
    "gradientaccumulatemodel": "Accumulated",
    "gradientaccumulator": "Accumulated",
    "gradsamplemodule": "per_sample_gradients",
    "jacobian": "input_gradients",
    "privacyengine": "PrivateTraining",
    "accumulate_grad_batches": "steps",
    "accumulation_steps": "steps",
    "aggregation": "gradient_mode",
    "clip_norm": "aggregation",
    "clipnorm": "clip_norm",
    "epsilon": "target_epsilon",
    "global_clipnorm": "clip_norm",
    "gradient_accumulation_steps": "steps",
    "l2_norm_clip": "clip_norm",
    "max_grad_norm": "clip_norm",
    "max_physical_batch_size": "microbatch_size",
    "micro_batch_size": "microbatch_size",
    "num_samples": "samples",
    "sample_size": "samples",
    "target_delta": "delta",
}


def did_you_mean(name, known):
    """Return " Did you mean 'x'?" for the known name that is most alike, or "".

    `known`: strings; others are passed over.
    """
    alike = most_alike(name, known)
    return f" Did you mean {alike!r}?" if alike else ""


def most_alike(name, known):
    """Return the known name that is most alike, or None."""
    lower = {k.lower(): k for k in known if isinstance(k, str)}
    name = name.lower() if isinstance(name, str) else ""
    peer = _PEERS.get(name)
    while peer and peer not in lower.values():
        peer = _PEERS.get(peer)
    if peer:
        return peer
    found = [k for k in lower if k.endswith(f"_{name}")]
    # 0.7: of shorter words the default, 0.6, takes others for the same.
    found = found or difflib.get_close_matches(name, lower, 1, 0.7)
    found = found or [k for k in lower if len(name) > 2 and k.startswith(name)]
    return lower[found[0]] if found else None


def named_arguments(function: Function) -> Function:
    """Decorate a function: it explains an argument that it does not have.

    And one that is neither on nor off: a text such as "False" would be on.
    """
    called: Any = function
    parameters = inspect.signature(called).parameters

    @functools.wraps(called)
    def explaining(*args, **kwargs):
        require_known(called.__qualname__, parameters, kwargs)
        _require_places(called.__qualname__, parameters, args)
        _require_switches(parameters, args, kwargs)
        return called(*args, **kwargs)

    explained: Any = explaining
    return explained


class NamedArguments:
    """A base of classes that explain an argument which they do not have."""

    def __new__(cls, *args, **kwargs):
        takes_none = cls.__init__ is object.__init__
        if takes_none and args:  # Python passes over them.
            raise TypeError(
                f"{cls.__name__}() expected no arguments. Received: "
                f"{', '.join(map(reprlib.repr, args))}"
            )
        parameters = inspect.signature(cls.__init__).parameters
        require_known(cls.__name__, {} if takes_none else parameters, kwargs)
        _require_places(cls.__name__, parameters, (None, *args))
        # A user's class may take other things where its default is a bool.
        module = getattr(cls.__init__, "__module__", "")
        if module.startswith("keras_pergrad."):
            _require_switches(parameters, (None, *args), kwargs)
        base = super().__new__
        return (
            base(cls) if base is object.__new__ else base(cls, *args, **kwargs)
        )


def require_known(owner, parameters, arguments):
    """Refuse arguments by name that are none of a signature's parameters."""
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return
    known = [name for name in parameters if name != "self"]
    among = f"arguments among {', '.join(known)}" if known else "no arguments"
    for name, value in arguments.items():
        if name not in parameters:
            raise TypeError(
                f"{owner}() expected {among}. Received: {name}="
                f"{reprlib.repr(value)}.{did_you_mean(name, known)}"
            )


def _require_places(owner, parameters, args):
    """Refuse arguments without a name that a signature takes by name."""
    by_place = _names_of(parameters, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_name = _names_of(parameters, inspect.Parameter.KEYWORD_ONLY)
    any_number = _names_of(parameters, inspect.Parameter.VAR_POSITIONAL)
    if any_number or not by_name or len(args) <= len(by_place):
        return
    known = [name for name in by_place if name != "self"]
    received = len(args) - (len(by_place) - len(known))
    listed = f"{', '.join(known)} without a name, others" if known else "all"
    raise TypeError(
        f"{owner}() expected {listed} as name=value: {', '.join(by_name)}. "
        f"Received: {received} without a name"
    )


def _names_of(parameters, kind):
    return [name for name, p in parameters.items() if p.kind == kind]


def _require_switches(parameters, args, kwargs):
    """Check each argument whose default is True or False, and `verbose`."""
    # All but what follows *args, which stands for any number.
    by_place = _names_of(parameters, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for name, value in {**dict(zip(by_place, args)), **kwargs}.items():
        default = getattr(parameters.get(name), "default", None)
        if name == "verbose":
            require_switch(name, value, most=2)
        elif isinstance(default, bool):
            require_switch(name, value)


def require_switch(name, value, most=1):
    """Refuse what is no bool, nor an integer from 0 to `most`, 1 or 2."""
    is_bool = type(value).__name__ in ("bool", "bool_")  # NumPy's, too
    is_integer = is_bool or isinstance(value, numbers.Integral)
    if not is_integer or int(value) not in range(most + 1):
        expected = "0, 1 or 2" if most == 2 else "True or False"
        raise ValueError(
            f"`{name}` expected {expected}. Received: {name}="
            f"{reprlib.repr(value)}"
        )
