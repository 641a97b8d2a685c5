"""Public names of a package, imported when they are first asked for.

What one of them needs of Keras or TensorFlow, and is missing there, then
breaks that name alone. The names stand in the package's stub, the file with
the ending `.pyi`, which editors and type checkers read as well.
"""

import ast
import importlib
import pathlib
import sys


def lazy(package, file):
    """Return a package's `__getattr__`, `__dir__` and `__all__`."""
    origins = _imported_names(pathlib.Path(file).with_suffix(".pyi"))

    def get(name):
        if name not in origins:
            path = _namespace_path(name)
            hint = f"; it is {path}" if path else ""
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}{hint}"
            )
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

    def _namespace_path(name):
        """Return the full path of a name that one of the namespaces has."""
        folder = pathlib.Path(file).parent
        for namespace in names if name[0] != "_" else ():
            # Of `.py` and `.pyi` the stub comes last.
            for stub in sorted(folder.glob(f"{namespace}/__init__.py*"))[-1:]:
                if name in _imported_names(stub):
                    return f"{package}.{namespace}.{name}"
        return None

    names = sorted(origins)
    version_name = (
        ["__version__"] if hasattr(sys.modules[package], "__version__") else []
    )
    return get, lambda: names + version_name, names


def _imported_names(stub):
    """Return each name that a stub imports → (module, its name there)."""
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in ast.parse(stub.read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
