"""The tables of docs/types.md: rules, models that are proved, refusals.

`python docs/make_type_table.py` writes them; tests compare them.
"""

import pathlib
import re
import sys

from keras_pergrad.proof import calls
from keras_pergrad.proof.op_facts import CALLS, ops_with
from keras_pergrad.proof.tensor_types import RULES
from tests.further import all_kinds, refused

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "types.md"
BEGIN, END = "<!-- table of rules -->\n", "<!-- end of the table -->\n"


def table():
    """The table, from the registry."""
    found = {}
    for op, rule in RULES.items():
        found.setdefault(rule.__module__, []).append(op)
    lines = ["| rules | ops |", "|---|---|"]
    for module, ops in sorted(found.items()):
        lines.append(_line(module, ops))
    lines.append(_line(calls.__name__, ops_with(CALLS)))
    return "".join(f"{line}\n" for line in lines)


def _line(module, ops):
    about = (sys.modules[module].__doc__ or "").splitlines()[0].rstrip(".")
    about = re.sub("^(The types|Type rules) of ", "", about)
    name = module.split(".")[-1]
    return f"| `{name}`: {about} | {', '.join(sorted(ops))} |"


def page(text):
    """The page with the tables in their places."""
    text = _put(text, BEGIN, END, part=table())
    text = _put(text, *_marks("models"), all_kinds.listed())
    return _put(text, *_marks("refusals"), refused.table())


def _marks(name):
    return f"<!-- {name} -->\n", f"<!-- end of the {name} -->\n"


def _put(text, begin, end, part):
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{part}\n{end}{after}"
