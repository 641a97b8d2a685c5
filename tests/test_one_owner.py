"""What several parts of the package use, and one module alone reads or edits.

So whatever is wrapped, moved or hidden is put back in one place.
"""

import ast
import pathlib

import pytest

import keras_pergrad

ROOT = pathlib.Path(keras_pergrad.__file__).parent
FUNCTIONS = {"train_function", "test_function"}
MODULES_OF_KERAS = {"keras.callbacks", "kpg.callbacks"}


def _is_function(node):
    if isinstance(node, ast.Attribute):
        if ast.unparse(node.value) == "super()":  # an override of Keras's
            return False
        return node.attr in FUNCTIONS | {f"make_{f}" for f in FUNCTIONS}
    return isinstance(node, ast.Constant) and node.value in FUNCTIONS


def _is_list(node):
    """Whether this is the list inside a `CallbackList`."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "callbacks"
        and ast.unparse(node) not in MODULES_OF_KERAS
    )


def _is_table(node):
    if isinstance(node, ast.Attribute):
        return node.attr in ("ljust", "rjust")
    value = node.value if isinstance(node, ast.Constant) else ""
    return isinstance(value, str) and "<thead>" in value


@pytest.mark.parametrize(
    ("owner", "is_owned"),
    [
        ("keras_internals/fit/train_function.py", _is_function),
        ("common/callback_list.py", _is_list),
        ("common/text.py", _is_table),
    ],
)
def test_it_stands_in_one_module(owner, is_owned):
    users = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if any(map(is_owned, ast.walk(ast.parse(path.read_text()))))
    }
    assert users == {owner}
