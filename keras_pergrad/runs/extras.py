"""The optional libraries of a comparison: SciPy and matplotlib."""

import importlib

_INSTALL = "pip install 'keras-pergrad[compare]'"


def scipy_special():
    """Return `scipy.special`."""
    return _load("scipy.special", "Comparing runs")


def matplotlib(part=""):
    """Return `matplotlib`, or a part of it such as ".pyplot"."""
    return _load(f"matplotlib{part}", "Drawing")


def _load(name, what):
    library = name.partition(".")[0]
    try:
        importlib.import_module(library)
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {library}, which is not installed. Install it "
            f"with: {_INSTALL}"
        ) from error
