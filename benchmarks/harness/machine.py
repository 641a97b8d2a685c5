"""What the figures were measured on."""

import os
import pathlib
import platform
import subprocess

from benchmarks.harness.process import GPU, THREADS, interpreter

#: Names in the report and names of the distributions.
PACKAGES = {
    "tensorflow": {
        "TensorFlow": "tensorflow",
        "Keras": "keras",
        "keras-hub": "keras-hub",
    },
    "torch": {
        "torch": "torch",
        "Opacus": "opacus",
        "BackPACK": "backpack-for-pytorch",
    },
    "jax": {"JAX": "jax"},
    "jax_privacy": {"jax_privacy": "jax-privacy"},
    "tf_privacy": {
        "TF Privacy": "tensorflow-privacy",
        "TensorFlow for TF Privacy": "tensorflow-cpu",
    },
}


def describe(frameworks):
    """The machine, the threads, and the version of every framework."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": THREADS,
        "accelerator": _card() if GPU in os.environ else "none used",
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": _versions(frameworks),
    }


def _cpu():
    path = pathlib.Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _card():
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return "none found"
    return ", ".join(answer.stdout.split("\n")).strip(", ") or "none found"


def _versions(frameworks):
    """Asked of each environment, without importing the frameworks."""
    found = {}
    for framework in frameworks:
        python = interpreter(framework)
        if python is None:
            continue
        names = PACKAGES[framework]
        command = [python, "-c", _ASK, *names.values()]
        answer = subprocess.run(command, capture_output=True, text=True)
        found.update(zip(names, answer.stdout.split()))
    return found


_ASK = """
import sys
from importlib import metadata
for name in sys.argv[1:]:
    try:
        print(metadata.version(name))
    except metadata.PackageNotFoundError:
        print("none")
"""
