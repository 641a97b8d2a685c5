"""Libraries that only an extra of the package installs."""

import importlib


def import_if_there(name):
    """Return a module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def import_extra(name, what, extra):
    """Return a module that `what` needs, or say how to install it.

    Args:
        name: of the module, such as "matplotlib.pyplot".
        what: the beginning of the message, such as "Drawing".
        extra: the extra that installs it; None: a library of that name.

    Raises:
        ImportError: it is not installed.
    """
    library = name.partition(".")[0]
    try:
        importlib.import_module(library)
        return importlib.import_module(name)
    except ImportError as error:
        wanted = library if extra is None else f"'keras-pergrad[{extra}]'"
        raise ImportError(
            f"{what} needs {library}, which is not installed. Install it "
            f"with: pip install {wanted}"
        ) from error
