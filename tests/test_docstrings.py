"""Every public name has a docstring with what is needed; its examples run."""

import doctest
import inspect

import pytest

from tests.test_reference import EXPORTED as PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_examples_run(name):
    thing = PUBLIC[name]
    assert inspect.getdoc(thing)
    finder = doctest.DocTestFinder(recurse=False)
    members = [thing]
    if inspect.isclass(thing):
        members += [m for k, m in vars(thing).items() if k[0] != "_"]
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for member in members:
        member = getattr(member, "__func__", member)
        for test in finder.find(member, name, globs={}):
            runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize(
    "name", [name for name in sorted(PUBLIC) if inspect.isclass(PUBLIC[name])]
)
def test_public_methods_have_docstrings(name):
    """Their own, or that of what they override; Keras tells of its own."""
    cls = PUBLIC[name]
    ours = "keras_pergrad"
    others = [base for base in cls.__mro__ if ours not in base.__module__]
    without = [
        key
        for key in vars(cls)
        if key[0] != "_"
        and not any(key in vars(base) for base in others)
        and (
            callable(getattr(cls, key)) or isinstance(vars(cls)[key], property)
        )
        and not inspect.getdoc(getattr(cls, key))
    ]
    assert without == []
