"""The libraries that only an extra of the package installs."""

import importlib


def load(name, what, extra="compare"):
    """Return a module that `what` needs, or say how to install it."""
    library = name.partition(".")[0]
    try:
        importlib.import_module(library)
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {library}, which is not installed. Install it "
            f"with: pip install 'keras-pergrad[{extra}]'"
        ) from error
