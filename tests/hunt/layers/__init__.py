"""Layers of one's own, of which the package can know nothing.

Every layer treats each sample alone, but for those of `TOGETHER`; `Sized`
follows the number of samples, too. Each needs nothing from its file but what
`HEADER` in cases.py imports and others of `BY_NAME`, so that its source can
stand in a script.
"""

import ast
import importlib
import inspect
import pkgutil
import textwrap

_MODULES = [
    importlib.import_module(f"{__name__}.{module.name}")
    for module in pkgutil.iter_modules(__path__)
]
#: The layers, and the functions that they share.
BY_NAME = {
    name: value
    for module in _MODULES
    for name, value in vars(module).items()
    if getattr(value, "__module__", None) == module.__name__
}


def _forms(cls):
    """The keys of the table that the layer's `forms` returns at its end."""
    source = textwrap.dedent(inspect.getsource(cls.forms))
    table = ast.parse(source).body[0].body[-1].value
    return [key.value for key in table.keys]


#: The forms of the layers that have some.
FORMS = {
    name: _forms(value)
    for name, value in BY_NAME.items()
    if hasattr(value, "forms")
}
#: The layers in which samples meet.
TOGETHER = ["Couples", *(name for name in FORMS if name.endswith("Together"))]
