"""Who may import whom."""

import ast
import pathlib

import keras_pergrad

ROOT = pathlib.Path(keras_pergrad.__file__).parent

# The first level inside the package: what each may import from inside it.
ALLOWED = {
    "patching": set(),
    "replicas": set(),
    "strategies": set(),
    "tallies": {"replicas"},
    "logs": {"tallies"},
    "batches": set(),
    "epochs": set(),
    "registry": set(),
    "carriers": set(),
    "factors": {"factors"},
    "noise": set(),
    "aggregation": {"registry", "noise"},
    "statistics": set(),
    "metrics": set(),
    "runs": {"runs"},
    "compare_command": {"runs"},
    "draws": {"patching"},
    "coupling": {"patching"},
    "outside": {"patching"},
    "refusals": set(),
    "trial": {
        "kept_state",
        "coupling",
        "draws",
        "patching",
        "refusals",
        "calls",
        "losses",
        "replay",
        "trial",
    },
    "replay": {"draws", "carriers", "refusals"},
    "rules": {"rules", "factors", "replay", "patching"},
    "calls": {"replay"},
    "applied": {"rules"},
    "tape": {
        "applied",
        "calls",
        "losses",
        "rules",
        "factors",
        "replay",
        "draws",
        "coupling",
        "outside",
        "refusals",
        "carriers",
        "patching",
        "trial",
    },
    "losses": {"patching", "refusals", "replay", "tallies"},
    "modes": {
        "arguments",
        "modes",
        "tape",
        "rules",
        "factors",
        "aggregation",
        "statistics",
        "metrics",
        "losses",
        "replay",
        "draws",
        "coupling",
        "outside",
        "carriers",
        "registry",
        "patching",
        "replicas",
        "tallies",
        "trial",
    },
    "traces": {"rules"},
    "functional": {
        "modes",
        "tape",
        "losses",
        "factors",
        "replay",
        "rules",
        "traces",
        "trial",
        "aggregation",
        "statistics",
    },
    "explanation": set(),
    "explain": {
        "arguments",
        "explanation",
        "factors",
        "refusals",
        "replay",
        "tape",
    },
    "judgement": set(),
    "arguments": set(),
    "arithmetic": set(),
    "placement": {"placement", "judgement", "arithmetic"},
    "reasons": set(),
    "checking": {
        "checking",
        "reasons",
        "arithmetic",
        "judgement",
        "placement",
        "modes",
        "losses",
        "coupling",
        "draws",
        "patching",
        "registry",
    },
    "doctor": {"doctor", "judgement", "placement"},
    "batch_gradient": set(),
    "batch_norm": {"batch_norm", "patching"},
    "kept_state": set(),
    "measured_loss": {"losses"},
    "measurement": {
        "batch_gradient",
        "kept_state",
        "losses",
        "measured_loss",
        "modes",
        "reasons",
        "tape",
    },
    "callbacks": {
        "callbacks",
        "runs",
        "functional",
        "measured_loss",
        "measurement",
        "pipelines",
        "placement",
    },
    "pipelines": {"pipelines", "patching", "arguments"},
    "inputs": {"inputs", "coupling", "patching", "arguments"},
    "model": {
        "batches",
        "logs",
        "epochs",
        "inputs",
        "modes",
        "losses",
        "registry",
        "tape",
        "functional",
        "aggregation",
        "replicas",
        "strategies",
        "tallies",
    },
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


def test_imports_go_one_way():
    seen = 0
    for path in sorted(ROOT.rglob("*.py")):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        for name in _imports(path):
            if not name.startswith("keras_pergrad."):
                continue
            target = name.split(".")[1]
            seen += 1
            assert target in ALLOWED[part], f"{path.name} imports {name}"
    assert seen > 20


def test_files_stay_short():
    long = {
        path.name: lines
        for path in ROOT.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert not long
