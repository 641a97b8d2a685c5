"""Runs a check in a process of its own, with the stand-in plugin loaded.

A plugin can be loaded once in a process, before TensorFlow's context exists,
and never be unloaded: hence the subprocesses. A check is a function of one
argument, the `Plugin`, that returns something JSON can hold.
"""

import ctypes
import fcntl
import importlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.metal_stub import build

ROOT = pathlib.Path(__file__).parents[2]
_EACH = "each"


class Plugin:
    """The loaded plugin: its own counters are the truth."""

    def __init__(self, folder):
        from tensorflow.python.framework import load_library

        path = str(folder / build.PLUGIN)
        load_library.load_pluggable_device_library(path)
        load_library.load_op_library(str(folder / build.RESOURCE))
        self._library = ctypes.CDLL(path)
        self._library.metalstub_report.restype = ctypes.c_char_p
        self.type = os.environ["METALSTUB_TYPE"]

    @property
    def device(self):
        return f"{self.type}:0"

    def damage(self, op, nodes="", by=1.0):
        """Makes an op's kernels wrong, from the next one that is made on."""
        number = ctypes.c_float(by)
        library = self._library
        library.metalstub_break(op.encode(), nodes.encode(), number)

    def reset(self):
        self._library.metalstub_reset()

    def counters(self):
        return json.loads(self._library.metalstub_report())


def device_type():
    """The device type the installed wheel can take the plugin as.

    CUDA-built wheels have kernels of their own for "GPU", which would run
    on the stand-in's memory; there it is a device type "METAL".
    """
    return "GPU" if build.wheel().startswith("tensorflow-cpu") else "METAL"


def run(check, *arguments, **switches):
    """Runs `"module:function"` with the plugin and returns its result.

    Args:
        check: where the function is.
        *arguments: strings handed to it after the plugin.
        **switches: the plugin's switches without their prefix.
    """
    if build.compiler() is None:
        pytest.skip("no g++: the stand-in plugin cannot be built")
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "METALSTUB_TYPE": device_type(),
        "PYTHONPATH": str(ROOT),
        **{f"METALSTUB_{key}": str(value) for key, value in switches.items()},
    }
    command = [sys.executable, "-m", "tests.metal_stub.session", check]
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise AssertionError(
        f"{check} ended with {done.returncode}:\n{done.stdout[-500:]}\n"
        f"{done.stderr[-2500:]}"
    )


def run_each(check, cases):
    """Runs a check for each case in a process with switches of its own.

    TensorFlow is imported once and the process forked for each case: the
    plugin, which reads its switches when it is loaded, comes afterwards.

    Args:
        check: where the function is.
        cases: argument → the plugin's switches without their prefix.

    Returns:
        argument → the function's result.
    """
    return run(_EACH, check, json.dumps(cases))


def _each(check, cases):
    module, _, name = check.partition(":")
    function = getattr(importlib.import_module(module), name)
    folder = build.build()
    found = {}
    for argument, switches in json.loads(cases).items():
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            for key, value in switches.items():
                os.environ[f"METALSTUB_{key}"] = str(value)
            result = json.dumps(function(Plugin(folder), argument))
            with os.fdopen(writer, "w") as stream:
                stream.write(result)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            said = stream.read()
        os.waitpid(child, 0)
        found[argument] = json.loads(said)
    return found


def run_once(tmp_path_factory, check, *arguments, **switches):
    """`run`, once for all test workers."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    name = "-".join([check, *arguments, *switches]).replace(":", "-")
    result = folder / f"{name}.json"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            found = run(check, *arguments, **switches)
            result.write_text(json.dumps(found))
    return json.loads(result.read_text())


if __name__ == "__main__":
    if sys.argv[1] == _EACH:
        print("RESULT " + json.dumps(_each(*sys.argv[2:])))
        sys.exit()
    module, _, name = sys.argv[1].partition(":")
    plugin = Plugin(build.build())
    function = getattr(importlib.import_module(module), name)
    print("RESULT " + json.dumps(function(plugin, *sys.argv[2:])))
