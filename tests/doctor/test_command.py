"""The doctor in environments that are right, wrong and empty."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import venv

import pytest

import keras_pergrad
from keras_pergrad.doctor import command
from tests.metal_stub import build, session

ROOT = pathlib.Path(__file__).parents[2]
METAL_ERROR = (
    "dlopen(/Users/ann/lib/python3.12/site-packages/tensorflow-plugins/"
    "libmetal_plugin.dylib, 0x0006): Library not loaded: "
    "@rpath/_pywrap_tensorflow_internal.so"
)


def doctor(python=sys.executable, options=("--json",), **environment):
    """Runs the doctor; returns its exit code and what it says."""
    done = subprocess.run(
        [python, "-m", "keras_pergrad", "doctor", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert not done.stderr, done.stderr
    said = json.loads(done.stdout) if "--json" in options else done.stdout
    return done.returncode, said


def errors(said):
    return {f["subject"]: f for f in said["findings"] if f["level"] == "error"}


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A virtual environment with nothing in it: `(python, packages)`."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    return str(folder / "bin" / "python"), packages


def install(packages, name, version, *, code=None):
    """Imitates an installed package."""
    info = packages / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    if code is not None:
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text(code)


def test_an_environment_in_which_all_is_right():
    code, said = doctor()
    assert code == said["errors"] == 0, said
    found = {f["subject"]: f["message"] for f in said["findings"]}
    assert {*found} >= {"Python", "TensorFlow", "Keras", "NumPy", "devices"}
    first, *_, last = re.findall(r"\d+\.\d+", found["training"])
    assert float(first) > float(last)
    assert found["XLA"] == "works on CPU:0"


def test_no_tensorflow_then_a_bad_pair(empty):
    python, packages = empty
    code, said = doctor(python)
    assert code == 1
    assert '"tensorflow>=2.18"' in errors(said)["TensorFlow"]["fix"]

    install(packages, "numpy", "2.1.3")
    install(packages, "keras", "3.12.0")
    install(packages, "tensorflow_metal", "1.2.0")
    failing = f"raise ImportError({METAL_ERROR!r})\n"
    install(packages, "tensorflow", "2.20.0", code=failing)
    code, said = doctor(python)
    assert code == 1
    found = errors(said)
    assert "not work with TensorFlow 2.20.0" in found["Metal"]["message"]
    assert "<2.20" in found["Metal"]["fix"]
    assert METAL_ERROR in found["import tensorflow"]["message"]

    code, screen = doctor(python, options=[])
    assert code == 1
    assert "ERROR  Metal" in screen
    assert "→ pip install" in screen
    assert "2 errors" in screen
    assert len(screen.splitlines()) < 25


@pytest.fixture
def folder():
    """Where the stand-in plugin is."""
    if build.compiler() is None:
        pytest.skip("no g++: the stand-in plugin cannot be built")
    return build.build()


def doctor_with(plugin, **environment):
    """Runs the doctor with a plugin, or with all in a folder."""
    return doctor(
        TF_PLUGGABLE_DEVICE_LIBRARY_PATH=str(plugin),
        METALSTUB_TYPE=session.device_type(),
        **environment,
    )


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["", "MatMul"])
def test_every_device_trains_with_the_same_loss(broken, folder):
    plugin = folder / build.PLUGIN
    code, said = doctor_with(plugin, METALSTUB_BREAK_OPS=broken)
    name = f"{session.device_type()}:0"
    found = [(f["subject"], f["message"]) for f in said["findings"]]
    assert ("devices", f"CPU, {name} (Metal); this is Metal") in found
    trained = [message for subject, message in found if subject == "training"]
    assert "trains on CPU:0" in trained[0]
    assert name in trained[1]
    assert code == bool(broken)
    if broken:
        assert "not rounding" in errors(said)["training"]["message"]


@pytest.mark.slow
def test_of_a_crash_the_last_words_are_given(folder, tmp_path):
    for name in ("libmetal_stub.so", "libmetal_stub_again.so"):
        (tmp_path / name).symlink_to(folder / build.PLUGIN)
    code, said = doctor_with(tmp_path)
    assert code == 1
    message = errors(said)["TensorFlow"]["message"]
    assert "platform is already registered" in message


def test_a_planned_mac_needs_no_tensorflow(empty):
    python, _ = empty
    code, screen = doctor(python, options=["--for", "metal"])
    assert code == 0
    assert "for a Mac with Metal" in screen
    assert "tensorflow-metal 1.2.0" in screen


@pytest.mark.parametrize(
    ("option", "printed"),
    [
        (
            "--help",
            "usage: keras-pergrad [-h] [--version] {doctor,show,compare}",
        ),
        ("--version", f"keras-pergrad {keras_pergrad.__version__}\n"),
    ],
)
def test_the_command_does_not_load_tensorflow_for(option, printed):
    code = (
        f"import sys; sys.argv = ['/bin/keras-pergrad', {option!r}]\n"
        "from keras_pergrad.__main__ import main\n"
        "try:\n    main()\n"
        "finally:\n    print('tensorflow' in sys.modules)"
    )
    run = [sys.executable, "-c", code]
    said = subprocess.run(run, capture_output=True, text=True).stdout
    assert said.startswith(printed)
    assert said.endswith("False\n")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_who_waits_at_a_terminal_is_told(is_terminal, monkeypatch, capsys):
    report = {"system": "Linux", "findings": [], "errors": 0}
    monkeypatch.setattr(command, "examine", lambda: report)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    assert command.run(argparse.Namespace(json=False, planned=None)) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("Trying TensorFlow") == is_terminal
    assert printed.out == command.text(report) + "\n"


def test_the_command_is_declared():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    scripts = declared["project"]["scripts"]
    assert scripts == {"keras-pergrad": "keras_pergrad.__main__:main"}
