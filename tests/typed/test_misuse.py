"""Misspelt arguments and wrong types, as a type checker shows them."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

CALLS = pathlib.Path(__file__).with_name("misuse.py")
KINDS = {"reportCallIssue", "reportArgumentType", "reportAttributeAccessIssue"}


def test_an_editor_shows_what_is_wrong_and_nothing_else():
    pyright = shutil.which("pyright", path=pathlib.Path(sys.executable).parent)
    if pyright is None:
        pytest.skip("pyright is not installed")
    done = subprocess.run(
        [pyright, "--pythonpath", sys.executable, "--outputjson", str(CALLS)],
        capture_output=True,
        text=True,
        check=False,
    )
    shown = {
        (d["range"]["start"]["line"] + 1, d["rule"])
        for d in json.loads(done.stdout)["generalDiagnostics"]
        if d.get("rule") in KINDS
    }
    expected = {
        (number, match[1])
        for number, line in enumerate(CALLS.read_text().splitlines(), 1)
        if (match := re.search(r"# expect: (\w+)", line))
    }
    assert len(expected) > 20
    assert shown == expected
