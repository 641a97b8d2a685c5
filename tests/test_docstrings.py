"""Every public name has a docstring with what is needed; its examples run."""

import ast
import collections
import doctest
import inspect
import itertools
import pathlib
import re

import pytest

import keras_pergrad
from tests.test_reference import EXPORTED as PUBLIC

ROOT = pathlib.Path(keras_pergrad.__file__).parent


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


def _trees():
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
        for path in sorted(ROOT.rglob("*.py"))
    }


def _listed(node, section):
    """Return the names of a section of a docstring: `a, b: what they are`."""
    lines = iter((ast.get_docstring(node) or "").splitlines())
    if not any(line == f"{section}:" for line in lines):
        return []
    entries = itertools.takewhile(lambda line: line[:1] in ("", " "), lines)
    heads = [re.match(r" {4}(\*{0,2}\w[\w*, ]*):", line) for line in entries]
    names = [re.split(r",\s*", head[1]) for head in heads if head]
    return [name.strip("*") for group in names for name in group]


def _parameters(function):
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    starred = [a for a in (arguments.vararg, arguments.kwarg) if a]
    return {argument.arg for argument in [*named, *starred]}


def _fields(cls):
    """Return the annotated names of a class: a record's fields."""
    return {
        node.target.id for node in cls.body if isinstance(node, ast.AnnAssign)
    }


def _attributes(cls):
    """Return what a class defines, and what its methods set on `self`."""
    names = {node.name for node in cls.body if hasattr(node, "name")}
    for node in cls.body:
        if isinstance(node, ast.Assign):
            names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    for node in ast.walk(cls):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return names | _fields(cls)


def _strings(cls):
    nodes = [n for n in ast.walk(cls) if isinstance(n, ast.Constant)]
    return {n.value for n in nodes if isinstance(n.value, str)}


def _with_bases(cls, classes):
    """Return a class and those of the package that it derives from."""
    names = {
        getattr(base, "attr", getattr(base, "id", "")) for base in cls.bases
    }
    names -= {cls.name}  # A class of Keras that has the same name.
    bases = [base for name in names for base in classes.get(name, ())]
    return [cls, *[c for base in bases for c in _with_bases(base, classes)]]


def _known_attributes(cls, classes):
    """Return the attributes of a class, those that `setattr` sets included."""
    parts = _with_bases(cls, classes)
    names = set().union(*map(_attributes, parts))
    if any("setattr(self, name" in ast.unparse(part) for part in parts):
        names = names.union(*map(_strings, parts))
    return names


def _arguments(cls, classes):
    """Return what a class is made with: of `__init__`, or its fields."""
    names = set()
    for part in _with_bases(cls, classes):
        made = [n for n in part.body if getattr(n, "name", "") == "__init__"]
        names |= _parameters(made[0]) if made else _fields(part)
        if made and made[0].args.vararg:  # All that a class of Keras takes.
            return names | set(_listed(cls, "Args"))
        if made and not made[0].args.kwarg:
            break
    return names


def _missing_names(node, classes):
    if isinstance(node, ast.FunctionDef):
        return set(_listed(node, "Args")) - _parameters(node)
    if not isinstance(node, ast.ClassDef):
        return set()
    missing = set(_listed(node, "Args")) - _arguments(node, classes)
    if attributes := _listed(node, "Attributes"):
        missing |= set(attributes) - _known_attributes(node, classes)
    return missing


def test_docstrings_name_what_exists():
    """Each name under `Args:` and `Attributes:`, as far as the code tells."""
    trees, classes = _trees(), collections.defaultdict(list)
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(node)
    wrong = [
        f"{path}: {node.name}: {name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        for name in sorted(_missing_names(node, classes))
    ]
    assert not wrong, f"no such names: {wrong}"
