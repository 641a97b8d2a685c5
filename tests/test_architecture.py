"""The layout of the package: who may import whom, names, and file sizes."""

import ast
import collections
import pathlib

import keras_pergrad

ROOT = pathlib.Path(keras_pergrad.__file__).parent

#: Each package or root module, with those that it may import: all above it.
MAY_IMPORT = {
    "common": set(),
    "keras_internals": {"common"},
    "factors": {"keras_internals"},
    "runs": {"common", "keras_internals"},
    "trackers": {"common", "runs"},
    "aggregation": {"common"},
    "logs": {"keras_internals"},
    "statistics": {"aggregation"},
    "gramian": {"aggregation", "common", "keras_internals", "logs"},
    "clipping": {"aggregation", "common", "keras_internals", "logs"},
    "samples": {"common", "factors", "keras_internals"},
    "modes": {
        "aggregation",
        "common",
        "factors",
        "keras_internals",
        "logs",
        "samples",
        "statistics",
    },
    "analysis": {
        "aggregation",
        "clipping",
        "common",
        "factors",
        "keras_internals",
        "modes",
        "runs",
        "samples",
    },
    "data_passes": {"factors", "keras_internals", "modes", "samples"},
    "functional": {
        "common",
        "data_passes",
        "factors",
        "keras_internals",
        "statistics",
    },
    "fisher_information": {
        "common",
        "data_passes",
        "factors",
        "keras_internals",
        "samples",
    },
    "influence": {
        "common",
        "data_passes",
        "factors",
        "fisher_information",
        "keras_internals",
        "runs",
        "samples",
    },
    "model_aggregation": {"keras_internals"},
    "dots": {"common", "data_passes", "factors", "keras_internals"},
    "custom_step": {"keras_internals", "logs", "modes"},
    "model": {
        "analysis",
        "common",
        "custom_step",
        "keras_internals",
        "logs",
        "model_aggregation",
        "modes",
        "samples",
    },
    "callbacks": {
        "analysis",
        "common",
        "keras_internals",
        "runs",
        "trackers",
    },
    "privacy": {
        "aggregation",
        "callbacks",
        "clipping",
        "common",
        "functional",
        "keras_internals",
        "model",
        "modes",
        "samples",
    },
    "results": {
        "analysis",
        "common",
        "fisher_information",
        "modes",
        "privacy",
        "runs",
    },
}
#: A model makes wrapped ones, and those are models: one part of two files.
SAME_PART = {"wrapped_model": "model"}
START = {"__init__", "__main__"}
#: All that factors know of Keras and TensorFlow: how products are computed.
FACTORS_IMPORT = {"keras_internals.tensor_float", "keras_internals.xla"}


def _imports(path):
    """Yield the dotted names below the package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("keras_pergrad."):
                yield name.split(".")[1:]


def _part(name):
    return SAME_PART.get(name, name)


def _edges():
    """Return the parts that each part imports."""
    edges = collections.defaultdict(set)
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part not in START:
            targets = {_part(first) for first, *_ in _imports(path)}
            edges[_part(part)] |= targets - {_part(part)}
    return edges


def test_imports_go_one_way():
    for part, targets in _edges().items():
        assert part in MAY_IMPORT, f"{part}: say what it may import"
        more = targets - MAY_IMPORT[part]
        assert not more, f"{part} may not import {', '.join(sorted(more))}"


def test_parts_stand_in_the_order_of_their_imports():
    above = set()
    for part, targets in MAY_IMPORT.items():
        assert targets <= above, part
        above.add(part)


def test_factors_know_nothing_else():
    for path in (ROOT / "factors").rglob("*.py"):
        others = {
            ".".join(name[:2])
            for name in _imports(path)
            if name[0] != "factors"
        }
        assert others <= FACTORS_IMPORT, path


def test_analyses_do_not_need_each_other():
    folders = {p.parent.name for p in ROOT.glob("analysis/*/__init__.py")}
    for name in folders:
        for path in (ROOT / "analysis" / name).rglob("*.py"):
            others = {
                rest[0]
                for first, *rest in _imports(path)
                if first == "analysis" and rest
            }
            assert not others & folders - {name}, path


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
        path.name: lines
        for path in ROOT.rglob("*.py")
        if (lines := _lines_of_code(path)) > 350
    }
    assert not long


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
