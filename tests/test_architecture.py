"""Who may import whom, and how long a file may be."""

import ast
import pathlib

import keras_pergrad

ROOT = pathlib.Path(keras_pergrad.__file__).parent

#: Parts of the package that know none of those behind them.
NEVER = {
    "factors": {"samples", "modes", "rules", "losses", "aggregation"},
    "samples": {"modes", "aggregation", "model", "functional", "replay"},
    "rules": {"samples", "modes"},
    "aggregation": {"modes", "samples", "factors"},
    "statistics": {"modes", "factors"},
    "modes": {"model", "functional", "callbacks", "explain", "checking"},
    "model": {"callbacks", "runs", "placement", "checking", "explain"},
    "functional": {"model", "callbacks"},
    "runs": {"model", "modes", "samples", "callbacks", "placement"},
    "pipelines": {"modes", "samples", "callbacks", "runs"},
    "placement": {"callbacks", "runs", "checking", "pipelines"},
    "doctor": {"model", "modes", "samples", "callbacks", "runs"},
}


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{a.name}" for a in node.names]
            yield from (
                names if node.module == "keras_pergrad" else [node.module]
            )
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _edges():
    """For each part of the package those that it imports."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        # Each needs the other, when a wrapped model is made.
        part = part.replace("wrapped_model", "model")
        if part in ("__init__", "__main__"):
            continue
        targets = found.setdefault(part, set())
        targets.update(
            name.split(".")[1]
            for name in _imports(path)
            if name.startswith("keras_pergrad.")
        )
        targets -= {part, "wrapped_model"}
    return found


def test_parts_know_none_of_those_behind_them():
    edges = _edges()
    assert set(NEVER) <= set(edges)
    for part, never in NEVER.items():
        assert never <= set(edges), f"{never - set(edges)} is no part"
        assert not edges[part] & never, part


def test_imports_make_no_circle():
    edges = _edges()
    while edges:
        last = [p for p, targets in edges.items() if not targets & set(edges)]
        assert last, f"a circle among {sorted(edges)}"
        for part in last:
            del edges[part]


def test_files_stay_short():
    long = {
        path.name: lines
        for path in ROOT.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert not long
