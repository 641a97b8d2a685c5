"""The layout of the package: who may import whom, and file sizes."""

import ast
import collections
import pathlib

import keras_pergrad
from tests import rooms

ROOT = pathlib.Path(keras_pergrad.__file__).parent

#: The core, lowest layer first: a folder imports those of its own row and of
#: the rows before it. (docs/architecture.md draws the lowest at the bottom.)
CORE = [
    {"common"},
    {"keras_internals"},
    {"factors", "aggregations"},
    {"proof"},
    {"uses"},
    {"modes"},
    {"model", "functions"},
]
#: The extras: each imports the core, and of extras those named here.
EXTRAS = {
    "batch_norm": set(),
    "inputs": set(),
    "multitask": set(),
    "stalls": set(),
    "runs": set(),
    "trackers": {"runs"},
    "checking": set(),
    "explanation": {"checking"},
    "placement": {"checking"},
    "doctor": {"checking", "placement"},
    "gradient_health": {"multitask", "runs", "trackers"},
    "influence": set(),
    "privacy": set(),
}
#: All that factors know of Keras and TensorFlow: how products are computed.
FACTORS_IMPORT = {"keras_internals.tensorflow"}


def _allowed():
    """Return for each folder those that it may import."""
    allowed, above = {}, set()
    for row in CORE:
        above |= row
        allowed |= {folder: set(above) for folder in row}
    return allowed | {name: above | more for name, more in EXTRAS.items()}


def test_imports_go_one_way():
    allowed = _allowed()
    for folder, others in rooms.imports().items():
        assert folder in allowed, (
            f"keras_pergrad/{folder} is new: name it in EXTRAS, behind the "
            "extras that it imports"
        )
        more = sorted(others - allowed[folder])
        assert not more, f"keras_pergrad/{folder} may not import {more}"


def test_extras_stand_in_the_order_of_their_imports():
    above = set()
    for name, more in EXTRAS.items():
        assert more <= above, name
        above.add(name)


def test_no_two_files_import_each_other():
    """Nor do three in a circle."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in ROOT.rglob("*.py")
    }
    waiting = collections.defaultdict(set)
    for name, path in files.items():
        for parts in rooms.imported(path):
            whole, module = ".".join(parts), ".".join(parts[:-1])
            target = whole if whole in files else module
            if target in files and target != name:
                waiting[name].add(target)
    done = set()
    while ready := {n for n in files if n not in done and waiting[n] <= done}:
        done |= ready
    assert set(files) - done == set()


def test_factors_know_nothing_else():
    for path in (ROOT / "factors").rglob("*.py"):
        others = {
            ".".join(name[:2])
            for name in rooms.imported(path)
            if name[0] != "factors"
        }
        assert others <= FACTORS_IMPORT, path


def _lines_of_code(path):
    """Counts lines that are no docstring, comment or blank."""
    text = path.read_text()
    told = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(
            node, (ast.Module, ast.ClassDef, ast.FunctionDef)
        ) and ast.get_docstring(node):
            first = node.body[0]
            told.update(range(first.lineno, first.end_lineno + 1))
    return sum(
        number not in told and bool(line.split("#")[0].strip())
        for number, line in enumerate(text.splitlines(), 1)
    )


def test_files_stay_short():
    """Docstrings do not count: nobody is to leave one out."""
    long = {
        path.relative_to(ROOT).as_posix(): lines
        for path in ROOT.rglob("*.py")
        if (lines := _lines_of_code(path)) > 370
    }
    assert not long, f"{long}: split the file, or move a part; at most 370"


def test_modules_are_described_by_noun_phrases():
    questions = {"What", "Which", "How", "Where", "Whether", "Why", "When"}
    asking = {
        path.name: text
        for path in ROOT.rglob("*.py")
        if (
            text := ast.get_docstring(ast.parse(path.read_text())) or "?"
        ).split()[0]
        in questions | {"?"}
    }
    assert not asking


def _trees():
    """Yield the path and the tree of each file."""
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        yield name, ast.parse(path.read_text())


def _packed(function):
    """Yield the lines where a tuple gets a name only to be `*unpacked`."""
    nodes = list(ast.walk(function))
    loads = collections.Counter(
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )
    unpacked = {
        argument.value.id
        for node in nodes
        if isinstance(node, ast.Call)
        for argument in node.args
        if isinstance(argument, ast.Starred)
        and isinstance(argument.value, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            for target in node.targets:
                name = getattr(target, "id", None)
                if name in unpacked and loads[name] == 1:
                    yield node.lineno


def test_arguments_are_not_packed():
    """They are given by name instead, each on a line of its own."""
    packed = {
        f"{path}:{line}"
        for path, tree in _trees()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for line in _packed(function)
    }
    assert not packed, f"{packed}: give the arguments by name"


def test_tuples_are_assigned_in_one_line():
    """One that takes more is two statements."""
    broken = {
        f"{path}:{node.lineno}"
        for path, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        for target in node.targets
        if isinstance(target, ast.Tuple) and node.end_lineno > node.lineno
    }
    assert not broken, f"{broken}: one statement for each name"


def _headings(text):
    """Yield the lines where a comment stands alone between definitions."""
    lines = [*text.splitlines(), ""]
    for number, line in enumerate(lines[1:], 2):
        above = lines[number - 2]
        if above.startswith("#") and not line and not above.startswith("#!"):
            yield number - 1


def test_no_heading_stands_between_definitions():
    """A file has one job, which its docstring names; else it is several."""
    headings = {
        f"{path}:{line}"
        for path, _ in _trees()
        for line in _headings((ROOT / path).read_text())
    }
    assert not headings, f"{headings}: split the file, or leave it out"
