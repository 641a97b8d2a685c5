"""The bases of a subclass that is used with inputs and outputs.

Private names in use: `keras.src.models.functional.Functional`.
"""

from keras.src.models.functional import Functional


def make_functional(cls, base, functional):
    """Let a subclass be based on a functional class, without touching ours.

    Args:
        cls: a subclass of `base`.
        base: the class whose place is taken.
        functional: the one that takes it.
    """
    if issubclass(cls, Functional):
        return
    cls.__bases__ = tuple(
        functional if other is base else other for other in cls.__bases__
    )
    if not issubclass(cls, Functional):
        for other in cls.__bases__:
            if issubclass(other, base):
                make_functional(other, base, functional)
