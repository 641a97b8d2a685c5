"""Every exported name is on a page of the reference, with what a user needs."""

import dataclasses
import inspect
import pathlib
import re

import pytest

import keras_pergrad as kpg

PAGES = sorted(pathlib.Path(__file__).parents[1].glob("docs/reference/*.md"))
ENTRIES = {
    name: page
    for page in PAGES
    for name in re.findall(r"^::: ([\w.]+)", page.read_text(), re.MULTILINE)
}
#: Names of `keras_pergrad` that are modules.
MODULES = {name for name in kpg.__all__ if inspect.ismodule(getattr(kpg, name))}
EXPORTED = {
    f"keras_pergrad.{name}": getattr(kpg, name)
    for name in set(kpg.__all__) - MODULES
} | {
    f"keras_pergrad.{module}.{name}": getattr(getattr(kpg, module), name)
    for module in MODULES
    for name in getattr(kpg, module).__all__
    if name not in kpg.__all__
}


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_is_on_a_page_with_arguments_errors_and_example(name):
    thing = EXPORTED[name]
    assert name in ENTRIES, f"{name} has no place in docs/reference"
    text = description(thing)
    if not is_result(thing):
        assert ">>> " in text or "Example:" in text, f"{name}: no example"
    missing = [a for a in arguments(thing) if not re.search(rf"\b{a}\b", text)]
    assert missing == [], f"{name}: these arguments are not described"
    if raises(thing):
        assert "Raises:" in text or "raises" in text, f"{name}: no errors"


def description(thing):
    """Return the docstring; a class shares what its bases describe."""
    parts = thing.__mro__ if isinstance(thing, type) else [thing]
    ours = [p for p in parts if p.__module__.startswith("keras_pergrad")]
    assert inspect.getdoc(thing)
    return "\n".join(inspect.getdoc(part) or "" for part in ours or [thing])


def is_result(thing):
    """Whether users only read it: the example is that of what returns it."""
    return dataclasses.is_dataclass(thing) or issubclass(
        thing if isinstance(thing, type) else object, tuple
    )


def arguments(thing):
    """The names of what it takes, which Args or Attributes describe."""
    if isinstance(thing, type):
        if issubclass(thing, Exception | Warning | dict):
            return []
        if dataclasses.is_dataclass(thing):
            names = [field.name for field in dataclasses.fields(thing)]
            return [name for name in names if name[0] != "_"]
        if thing.__init__ is object.__init__:
            return []
    elif not callable(thing):
        return []
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [
        parameter.name
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.kind not in kinds
    ]


def raises(thing):
    """Whether the function, or the class's `__init__`, raises by itself."""
    made = vars(thing).get("__init__") if isinstance(thing, type) else thing
    if not inspect.isfunction(made) or dataclasses.is_dataclass(thing):
        return False
    return "\n    raise" in inspect.getsource(inspect.unwrap(made))


@pytest.mark.parametrize("name", sorted(MODULES))
def test_module_is_on_the_first_page(name):
    index = next(page for page in PAGES if page.stem == "index")
    assert f"`kpg.{name}`" in index.read_text()


def test_every_entry_can_be_imported():
    for name in ENTRIES:
        thing = kpg
        for part in name.split(".")[1:]:
            thing = getattr(thing, part)
        assert inspect.getdoc(thing), name
