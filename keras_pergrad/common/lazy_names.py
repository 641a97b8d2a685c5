"""Public names of a package, imported when they are first asked for.

What one of them needs of Keras or TensorFlow, and is missing there, then
breaks that name alone.
"""

import importlib
import sys


def lazy(package, places, modules=None):
    """Return a package's `__getattr__`.

    Args:
        package: the package's `__name__`.
        places: module below the package → the names to take from it.
        modules: name → the module below the package that it is.
    """
    known = {name: place for place, names in places.items() for name in names}
    modules = modules or {}

    def get(name):
        if name in modules:
            value = importlib.import_module(f"{package}.{modules[name]}")
        elif name in known:
            module = importlib.import_module(f"{package}.{known[name]}")
            value = getattr(module, name)
        else:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
            )
        setattr(sys.modules[package], name, value)
        return value

    return get
