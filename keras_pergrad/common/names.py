"""Names that a user gives: those of choices and arguments, misspelt or not."""

import difflib
import inspect

#: What TensorFlow Privacy, Opacus, Keras and others call the same, in lower
#: case: arguments and classes.
_PEERS = {
    "dpkerasmodel": "PrivateTraining",
    "dpmodel": "PrivateTraining",
    "gradientaccumulatemodel": "Accumulated",
    "gradientaccumulator": "Accumulated",
    "privacyengine": "PrivateTraining",
    "accumulate_grad_batches": "steps",
    "accumulation_steps": "steps",
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
    if _PEERS.get(name) in lower.values():
        return _PEERS[name]
    # 0.7: of shorter words the default, 0.6, takes others for the same.
    found = difflib.get_close_matches(name, lower, 1, 0.7)
    found = found or [k for k in lower if len(name) > 2 and k.startswith(name)]
    return lower[found[0]] if found else None


def require_one_of(name, value, choices):
    """Refuse an argument that is none of the choices."""
    if isinstance(value, (str, type(None))) and value in choices:
        return
    raise ValueError(
        f"`{name}` must be one of {', '.join(map(repr, choices))}. "
        f"Received: {name}={value!r}.{did_you_mean(value, choices)}"
    )


class NamedArguments:
    """A base of classes that explain an argument which they do not have."""

    def __new__(cls, *args, **kwargs):
        parameters = inspect.signature(cls.__init__).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        known = [k for k in parameters if k not in ("self", "args", "kwargs")]
        for name in () if inspect.Parameter.VAR_KEYWORD in kinds else kwargs:
            if name not in parameters:
                raise TypeError(
                    f"{cls.__name__}() expected arguments among "
                    f"{', '.join(known)}. Received: {name}="
                    f"{kwargs[name]!r}.{did_you_mean(name, known)}"
                )
        base = super().__new__
        return (
            base(cls) if base is object.__new__ else base(cls, *args, **kwargs)
        )
