"""Builds the stand-in plugin and the library of resource kernels.

    python tests/metal_stub/build.py

prints the folder they are in. What is built once is kept under build/, one
folder for each TensorFlow and state of the sources.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
PLUGIN, RESOURCE = "libmetal_stub.so", "libmetal_stub_resource.so"


def compiler():
    """The C++ compiler, or `None`."""
    return shutil.which("g++")


def wheel():
    """The name of the installed TensorFlow wheel."""
    for name in ("tensorflow-cpu", "tensorflow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name}-{importlib.metadata.version(name)}"
    return "tensorflow"


def build():
    """Compiles what is not there yet and returns the folder."""
    sources = sorted(HERE.glob("*.cc"))
    state = hashlib.sha256()
    for file in (*sources, *sorted(HERE.glob("*.h")), pathlib.Path(__file__)):
        state.update(file.read_bytes())
    folder = HERE / "build" / f"{wheel()}-{state.hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    # Two test workers may come here at once.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        plugin = [s for s in sources if s.name != "resource_kernels.cc"]
        _compile(folder / PLUGIN, plugin, "-fvisibility=hidden")
        _compile(
            folder / RESOURCE,
            [HERE / "resource_kernels.cc"],
            f"-L{folder}",
            f"-l:{PLUGIN}",
            "-Wl,-rpath,$ORIGIN",
        )
    return folder


def _compile(target, sources, *options):
    if target.exists():
        return
    origin = importlib.util.find_spec("tensorflow").origin
    tensorflow = pathlib.Path(origin).parent
    unfinished = target.with_suffix(".tmp")
    command = [
        compiler(),
        *("-std=c++17", "-O1", "-fPIC", "-shared", "-w"),
        f"-I{tensorflow / 'include'}",
        *map(str, sources),
        *("-o", str(unfinished)),
        f"-L{tensorflow}",
        "-l:libtensorflow_framework.so.2",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the stand-in did not compile:\n{done.stderr}")
    unfinished.rename(target)


if __name__ == "__main__":
    if compiler() is None:
        sys.exit("g++ expected on the path. Received: none. Install it.")
    print(build())
