"""What the package knows of each type of op, in one table.

    python -m benchmarks.steps.op_matrix [FILE]

It writes op_matrix.csv, or FILE: a row for each type of op that `proof/` or
`uses/` names, or `keras_internals` about ops of a step. Beside the table of
`proof/op_facts.py` and the rules, other tables are found in the modules when
they run: a set, tuple or dict at the top of a module whose texts are all types
of ops. A cell has the tables of one file, in small letters; `(in code)` says
that a function compares with the op's name.

| column | is |
|---|---|
| rule | the function that types it, and its file |
| looks at | the inputs at which the rule looks: places, or "all" |
| sizes | the places of inputs that are sizes or places |
| facts | its traits in `proof/op_facts.py` |
| op rule, path rule | the functions for its use, and behind weights alone |
| all others | a file of the package: its tables that name the op |
"""

import argparse
import ast
import csv
import importlib
import pathlib
import pkgutil
import types

from tensorflow.python.framework import op_def_registry

import keras_pergrad
from benchmarks.harness.process import RESULTS
from keras_pergrad.proof import op_facts
from keras_pergrad.proof.op_facts import FACTS
from keras_pergrad.proof.tensor_types import INPUTS, RULES
from keras_pergrad.uses import op_rules, weight_paths

STORE = RESULTS / "op_matrix.csv"
FOLDERS = ("proof", "uses")
#: Further modules with facts about ops that a step has.
OTHERS = ("graphs.gradients", "graphs.nodes", "state.model")
#: Traits that are no unions of others.
_SINGLE = [1 << k for k in range(64)]
_HEAD = ["op", "rule", "looks at", "sizes", "facts", "op rule", "path rule"]
#: Tables that have columns of their own.
_OWN_COLUMNS = {
    id(table)
    for table in (
        RULES,
        INPUTS,
        FACTS,
        op_facts._TRAITS,
        op_rules._RULES,
        weight_paths._RULES,
    )
}


def is_op(name):
    """Whether TensorFlow has an op of this type."""
    return isinstance(name, str) and op_def_registry.get(name) is not None


def modules():
    """Yield the modules of the folders."""
    for folder in FOLDERS:
        package = importlib.import_module(f"keras_pergrad.{folder}")
        for found in pkgutil.walk_packages(
            package.__path__, f"{package.__name__}."
        ):
            if not found.ispkg:
                yield importlib.import_module(found.name)
    for name in OTHERS:
        yield importlib.import_module(f"keras_pergrad.keras_internals.{name}")


def named(value):
    """Return the types of ops that a table names; empty: it is none."""
    if isinstance(value, dict):
        for part in (value.keys(), value.values()):
            texts = [text for one in part for text in _texts(one)]
            if texts and all(map(is_op, texts)):
                return frozenset(texts)
        return frozenset()
    texts = _texts(value) if not isinstance(value, str) else []
    return frozenset(texts) if texts and all(map(is_op, texts)) else frozenset()


def _texts(value):
    """Return a text, or the texts of a set, list or tuple of texts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, (set, frozenset, tuple, list)):
        if all(isinstance(one, str) for one in value):
            return list(value)
        if value and all(
            isinstance(one, (set, frozenset, tuple, list)) for one in value
        ):
            return [text for one in value for text in _texts(one)]
    return []


def tables():
    """Yield (module, name, types of ops), each table where it is made."""
    seen = set(_OWN_COLUMNS)
    for module in modules():
        made_here = _assigned(module)
        for name, value in vars(module).items():
            if name in made_here and id(value) not in seen:
                ops = named(value)
                if ops:
                    seen.add(id(value))
                    yield module, name, ops


def _assigned(module):
    """Return the names that a module assigns at its top."""
    tree = ast.parse(pathlib.Path(module.__file__).read_text())
    targets = [
        target
        for statement in tree.body
        if isinstance(statement, (ast.Assign, ast.AnnAssign))
        for target in getattr(statement, "targets", None) or [statement.target]
    ]
    return {
        name.id
        for target in targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }


def in_code():
    """Yield (module, types of ops) that functions of a module compare with."""
    for module in modules():
        path = pathlib.Path(module.__file__)
        code = compile(path.read_text(), str(path), "exec")
        found = set()
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                found |= _compared(constant)
        if found:
            yield module, frozenset(found)


def _compared(code):
    found = set()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _compared(constant)
        elif is_op(constant):
            found.add(constant)
        elif isinstance(constant, (tuple, frozenset)):
            texts = _texts(constant)
            if texts and all(map(is_op, texts)):
                found.update(texts)
    return found


def rows():
    """Return the head and the rows."""
    cells, columns = {}, []

    def add(module, op, text):
        column = module.__name__.removeprefix(f"{keras_pergrad.__name__}.")
        if column not in columns:
            columns.append(column)
        cells.setdefault(op, {}).setdefault(column, []).append(text)

    count = 0
    for module, name, ops in tables():
        count += 1
        for op in ops:
            add(module, op, name.strip("_").lower().replace("_", " "))
    for module, ops in in_code():
        for op in ops:
            add(module, op, "(in code)")
    known = {*cells, *RULES, *op_rules._RULES, *weight_paths._RULES}
    known.update(op_facts._TRAITS)
    found = [[*_HEAD, *columns]]
    for op in sorted(known):
        own = cells.get(op, {})
        found.append(
            [
                op,
                _function(RULES.get(op)),
                _places(INPUTS.get(op)),
                _places(FACTS[op].size_inputs),
                _facts(FACTS[op]),
                _function(op_rules._RULES.get(op)),
                _function(weight_paths._RULES.get(op)),
                *(", ".join(own.get(column, ())) for column in columns),
            ]
        )
    return found, count


def _function(rule):
    if rule is None:
        return ""
    name = getattr(rule, "__name__", type(rule).__name__)
    return f"{rule.__module__.rsplit('.', 1)[-1]}.{name}"


def _places(places):
    if not places or isinstance(places, str):
        return places or ""
    return " ".join(map(str, sorted(places)))


def _facts(facts):
    names = [
        name.lower()
        for name, trait in vars(op_facts).items()
        if name.isupper() and trait in _SINGLE and facts.has(trait)
    ]
    names += ["has_state"] * facts.has_state
    return " ".join([*names, *["has_functions"] * facts.has_functions])


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps.op_matrix"
    )
    parser.add_argument("file", type=pathlib.Path, nargs="?", default=STORE)
    given = parser.parse_args()
    found, count = rows()
    with given.file.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(found)
    print(f"{len(found) - 1} types of ops, {count} tables: {given.file}")


if __name__ == "__main__":
    main()
