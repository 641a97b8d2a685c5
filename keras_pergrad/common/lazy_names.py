"""Public names of a package, imported when they are first asked for.

What one of them needs of Keras or TensorFlow, and is missing there, then
breaks that name alone. The names stand in the package's stub, the file with
the ending `.pyi`, which editors and type checkers read as well.
"""

import ast
import importlib
import inspect
import pathlib
import sys


def lazy(package, file):
    """Return a package's `__getattr__`, `__dir__` and `__all__`."""
    places = {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in _stub(file).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def get(name):
        if name not in places:
            # Of classes alone: an import asks for the names of submodules.
            where = _where(name) if name[:1].isupper() else None
            hint = f"; it is {where}" if where else ""
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}{hint}"
            )
        module, attribute = places[name]
        try:  # A module of a package, or a name in a module.
            value = importlib.import_module(f"{module}.{attribute}")
        except ModuleNotFoundError as error:
            if error.name != f"{module}.{attribute}":
                raise
            value = getattr(importlib.import_module(module), attribute)
        setattr(sys.modules[package], name, value)
        return value

    def _where(name):
        """Return the whole name of what stands in one of the namespaces."""
        for known in names:
            value = get(known) if known.islower() else None
            if inspect.ismodule(value) and name in value.__all__:
                return f"{package}.{known}.{name}"
        return None

    names = sorted(places)
    more = (
        ["__version__"] if hasattr(sys.modules[package], "__version__") else []
    )
    return get, lambda: names + more, names


def _stub(file):
    return ast.parse(pathlib.Path(file).with_suffix(".pyi").read_text("utf-8"))
