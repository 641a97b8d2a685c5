"""Public names of a package, imported when they are first asked for.

What one of them needs of Keras or TensorFlow, and is missing there, then
breaks that name alone. The names stand in the package's stub, the file with
the ending `.pyi`, which editors and type checkers read as well.
"""

import ast
import importlib
import pathlib
import sys

from keras_pergrad.common.names import most_alike


def lazy(package, file):
    """Return a package's `__getattr__`, `__dir__` and `__all__`."""
    origins = _imported_names(pathlib.Path(file).with_suffix(".pyi"))

    def get(name):
        if name not in origins:
            refuse_name(package, name)
        module, attribute = origins[name]
        try:  # A module of a package, or a name in a module.
            value = importlib.import_module(f"{module}.{attribute}")
        except ModuleNotFoundError as error:
            # Another name is missing: a dependency of the module.
            if error.name != f"{module}.{attribute}":
                raise
            value = getattr(importlib.import_module(module), attribute)
        # Python then finds it as an attribute and does not call this again.
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(origins)
    version_name = (
        ["__version__"] if hasattr(sys.modules[package], "__version__") else []
    )
    return get, lambda: names + version_name, names


def refuse_name(package, name):
    """Raise that a package has no such name, and what may be meant."""
    hint = "" if name[:1] == "_" else _hint(package, name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")


def _hint(package, name):
    paths = _public_paths()
    if name in paths:
        return f"; it is {paths[name]}"
    alike = most_alike(name, paths)
    if alike is None:
        return ""
    is_here = paths[alike] == f"{package}.{alike}"
    return f". Did you mean {(alike if is_here else paths[alike])!r}?"


def _public_paths():
    """Return each public name → its full path, the shortest there is."""
    root = pathlib.Path(__file__).parents[1]
    here, paths = root.name, {}
    namespaces = _imported_names(root / "__init__.pyi")
    for namespace in namespaces:
        # Of `.py` and `.pyi` the stub comes last.
        for stub in sorted(root.glob(f"{namespace}/__init__.py*"))[-1:]:
            for name in _imported_names(stub):
                paths[name] = f"{here}.{namespace}.{name}"
    paths.update({name: f"{here}.{name}" for name in namespaces})
    return {name: path for name, path in paths.items() if name[0] != "_"}


def _imported_names(stub):
    """Return each name that a stub imports → (module, its name there)."""
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in ast.parse(stub.read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
