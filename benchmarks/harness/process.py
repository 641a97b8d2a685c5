"""A worker process, seen from the driver."""

import importlib.util
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
#: Where what was measured is kept, and the pages that show it.
RESULTS = ROOT / "benchmarks" / "results"
THREADS = 2
#: Set in the environment, workers use a GPU, and all cores.
GPU = "BENCH_GPU"

#: No request takes longer than this many seconds, unless it may.
LIMIT = 100


class WorkerError(Exception):
    """A request failed; `fatal` if the process is gone with it."""

    def __init__(self, message, fatal=False):
        super().__init__(message)
        self.fatal = fatal


def interpreter(framework):
    """The Python of a framework's environment, or None without one."""
    if framework == "tensorflow":
        return sys.executable
    path = ROOT / ".bench-venvs" / framework / "bin" / "python"
    if path.exists():
        return str(path)
    # A machine that is set up for the GPU may have all in one environment.
    is_here = GPU in os.environ and importlib.util.find_spec(framework)
    return sys.executable if is_here else None


def figures_of(*command):
    """The figures that a Python process prints in its last line, as JSON."""
    output = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return json.loads(output.splitlines()[-1])


class Worker:
    """One framework in a process of its own, asked line by line.

    Args:
        framework: which worker module to run.
        onednn: whether TensorFlow may use oneDNN.
        limit: seconds that a request may take.

    Raises:
        WorkerError: the framework's environment is not installed.
    """

    def __init__(self, framework, onednn=True, limit=LIMIT):
        self._limit = limit
        python = interpreter(framework)
        if python is None:
            raise WorkerError("not installed (see `make bench-venvs`)")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (see close)
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.peers", framework],
            cwd=ROOT,
            env={**os.environ, **_environment(framework, onednn)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def ask(self, do, **request):
        """Sends a request and waits for the reply."""
        self.send(do, **request)
        return self.receive()

    def send(self, do, **request):
        line = json.dumps({"do": do, **request}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._last_words(), fatal=True) from None

    def receive(self):
        ready, _, _ = select.select([self._process.stdout], [], [], self._limit)
        if not ready:
            self.close()
            raise WorkerError(f"no answer in {self._limit} s", fatal=True)
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(self._last_words(), fatal=True)
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def close(self):
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _last_words(self):
        code = self._process.wait()
        if code < 0:
            return f"the process died of signal {-code}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        return f"exit code {code}: {lines[-1][:200] if lines else ''}"


def _environment(framework, onednn):
    on_jax = framework == "jax_privacy"
    common = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_BACKEND": "jax" if on_jax else "tensorflow",
    }
    if GPU in os.environ:
        # Several processes share the card.
        return {
            **common,
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
    return {
        **common,
        "OMP_NUM_THREADS": str(THREADS),
        "TF_NUM_INTRAOP_THREADS": str(THREADS),
        "TF_NUM_INTEROP_THREADS": str(THREADS),
        "TF_ENABLE_ONEDNN_OPTS": str(int(onednn)),
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
    }
