"""The command that people with a Mac are asked to run for both plugins."""

import json
import pathlib
import runpy
import sys

ROOT = pathlib.Path(__file__).parents[1]
SCRIPT = str(ROOT / "examples" / "try_metal.py")


def test_a_failure_is_in_the_report_and_the_other_plugin_is_tried(
    tmp_path, monkeypatch, capsys
):
    script = runpy.run_path(SCRIPT)
    space = script["main"].__globals__
    calls = []

    class Done:
        def __init__(self, code, output=""):
            self.returncode, self.stdout, self.stderr = code, output, ""

    def run(command, **_):
        words = [str(word) for word in command]
        calls.append(words)
        if "doctor" in words:
            return Done(1, '{"errors": 1}')
        if words[-1].endswith("[metal]"):
            return Done(2, f"no wheel fits in {tmp_path}/lib")
        if "--save" in words:
            pathlib.Path(words[-1]).write_text('{"images": {"agrees": true}}')
        return Done(0)

    monkeypatch.setattr(space["subprocess"], "run", run)
    monkeypatch.setitem(space, "ROOT", tmp_path)
    monkeypatch.setitem(space, "HERE", tmp_path / "examples")
    saved = tmp_path / "report.json"
    monkeypatch.setattr(sys, "argv", [SCRIPT, "--save", str(saved)])
    space["main"]()
    text = saved.read_text()
    report = json.loads(text)
    assert report["apple"]["code"] == 2
    assert "no wheel fits" in report["apple"]["output"]
    assert report["apple"]["doctor"] == {"errors": 1}
    assert report["community"] == {"images": {"agrees": True}}
    assert str(tmp_path) not in text + capsys.readouterr().out
    # TensorFlow is there before the community's plugin is compiled.
    installed = [words[-1] for words in calls if "pip" in words]
    assert installed[-2].startswith("tensorflow==2.21")
    assert installed[-1].endswith("[metal-community]")
