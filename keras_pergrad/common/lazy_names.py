"""Public names of a package, imported when they are first asked for.

What one of them needs of Keras or TensorFlow, and is missing there, then
breaks that name alone.
"""

import importlib
import sys


def lazy(package, places, modules=None, below=None):
    """Return a package's `__getattr__`, for modules and names in modules."""
    # `below` is the package that modules are named from, by default this one.
    known = {name: place for place, names in places.items() for name in names}
    modules, below = modules or {}, below or package

    def get(name):
        if name in modules:
            value = importlib.import_module(f"{below}.{modules[name]}")
        elif name in known:
            module = importlib.import_module(f"{below}.{known[name]}")
            value = getattr(module, name)
        else:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
            )
        setattr(sys.modules[package], name, value)
        return value

    return get
