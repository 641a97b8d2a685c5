"""Faults that replace functions of the package while they are planted."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Fault:
    """A wrong function.

    Attributes:
        name: what is wrong, in words.
        owner: the class or module, or a dict such as the rules of ops.
        attribute: the function's name there, or several names.
        make: of the right function, gives the wrong one.
        is_pure: whether the function only says something, so that the fault
            counts as touched where it says something else.
    """

    name: str
    owner: Any
    attribute: str
    make: Callable
    is_pure: bool = False

    @contextlib.contextmanager
    def planted(self):
        """The fault is in the engine until this closes."""
        with self._replaced(self.make):
            yield

    @contextlib.contextmanager
    def watched(self, touched):
        """Adds `self` to the set `touched` when the function is called."""

        def make(right):
            wrong = self.make(right)

            def called(*args, **kwargs):
                if not self.is_pure or _said(right, args) != _said(wrong, args):
                    touched.add(self.name)
                return right(*args, **kwargs)

            return called

        with self._replaced(make):
            yield

    @contextlib.contextmanager
    def _replaced(self, make):
        with contextlib.ExitStack() as stack:
            for name in self.attribute.split():
                stack.enter_context(_replaced(self.owner, name, make))
            yield


def instead(wrong):
    """A maker of a function that calls `wrong` with the right one in front."""
    return lambda right: lambda *args, **kw: wrong(right, *args, **kw)


def _said(rule, args):
    """What a rule says: types, or the error that it raises."""
    try:
        return rule(*args)
    except Exception as error:
        return repr(error)


@contextlib.contextmanager
def _replaced(owner, name, make):
    is_dict = isinstance(owner, dict)
    own = name in (owner if is_dict else vars(owner))
    right = owner[name] if is_dict else getattr(owner, name)
    put = owner.__setitem__ if is_dict else functools.partial(setattr, owner)
    put(name, make(right))
    try:
        yield
    finally:
        if own:
            put(name, right)
        else:
            delattr(owner, name)
