"""From the fourth argument on package and benchmarks pass them by name."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
LIMIT = 3
#: Keras's own order; everybody passes these by position.
KERAS = {"self", "cls", "x", "y", "y_true", "y_pred", "sample_weight"}
KERAS |= {"training"}
#: What TensorFlow, Keras or a table of functions calls by position.
CALLED_BY_POSITION = {
    "checking/plain_tape.py": {"_sample"},  # a tf.function
    "keras_internals/graphs/draws.py": {"record", "draw", "replay"},
    "keras_internals/state/model.py": {"_moments"},  # in place of TensorFlow's
    "modes/per_sample.py": {"body"},  # of loops, from here on
    "multitask/cagrad.py": {"should_continue", "step"},
    "multitask/linear_systems.py": {"should_continue", "step"},
    "multitask/programs.py": {"exchange"},
    "privacy/phase_noise.py": {"draw"},
    "stalls/stopwatch.py": {"call"},
}


def _trees():
    package = ROOT / "keras_pergrad"
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        yield name, ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(ROOT.glob("benchmarks/**/*.py")):
        name = path.relative_to(ROOT).as_posix()
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def test_definitions_take_three_arguments_by_position():
    found, exempt = {}, {}
    for file, tree in _trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef):
                continue
            named = node.args.posonlyargs + node.args.args
            if len([a for a in named if a.arg not in KERAS]) > LIMIT:
                allowed = node.name in CALLED_BY_POSITION.get(file, ())
                (exempt if allowed else found).setdefault(file, set()).add(
                    node.name
                )
    assert found == {}, "put `*` behind the third argument"
    assert exempt == CALLED_BY_POSITION


def test_records_are_made_with_three_arguments_by_position():
    records, calls = set(), []
    for file, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                marks = [*node.decorator_list, *node.bases]
                marks = " ".join(map(ast.unparse, marks))
                if "dataclass" in marks or "NamedTuple" in marks:
                    records.add(node.name)
            elif isinstance(node, ast.Call) and len(node.args) > LIMIT:
                calls.append((file, node))
    assert "Finding" in records
    found = [
        f"{file}:{node.lineno} {ast.unparse(node.func)}"
        for file, node in calls
        if ast.unparse(node.func).split(".")[-1] in records | {"cls"}
    ]
    assert found == []
