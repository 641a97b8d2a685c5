"""Several processes on this machine that train together."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[3]
#: In PYTHONPATH, workers wait for each other however long it takes.
PATIENT = pathlib.Path(__file__).with_name("patient")


def run_alone(module, *words, **arguments):
    """Run a module of the tests in a process of its own.

    Args:
        module: the module, such as "tests.privacy.replicas".
        *words: what it gets on its command line.
        **arguments: what it gets behind them, as JSON.

    Returns:
        What its last line says, read as JSON.
    """
    line = [*words, *([json.dumps(arguments)] if arguments else [])]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *line],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


class Cluster:
    """Workers that run a module of the tests; always stopped at the end.

    Args:
        module: the module to run, such as
            "tests.keras_internals.distribution.worker".
        workers: how many processes.
        patient: whether they wait for one that does not answer.
        **arguments: what each gets on its command line, as JSON.

    Example:

    ```python
    with Cluster(worker.__name__, 2, names=["batch"]) as cluster:
        first, second = cluster.results()
    ```
    """

    def __init__(self, module, workers, patient=True, **arguments):
        self.command = [sys.executable, "-W", "ignore", "-m", module]
        self.command.append(json.dumps(arguments))
        self.size = workers
        path = [PATIENT] * patient + [os.environ.get("PYTHONPATH", "")]
        self._path = os.pathsep.join(map(str, path))
        self.processes = []
        self._files = []
        self._open = contextlib.ExitStack()

    def __enter__(self):
        addresses = [f"127.0.0.1:{port}" for port in free_ports(self.size)]
        for index in range(self.size):
            config = {
                "cluster": {"worker": addresses},
                "task": {"type": "worker", "index": index},
            }
            out, err = self._file(), self._file()
            self._files.append((out, err))
            self.processes.append(
                subprocess.Popen(
                    self.command,
                    stdout=out,
                    stderr=err,
                    cwd=ROOT,
                    env={
                        **os.environ,
                        "PYTHONPATH": self._path,
                        "TF_CONFIG": json.dumps(config),
                        "CUDA_VISIBLE_DEVICES": "",
                        "no_proxy": "*",
                    },
                )
            )
        return self

    def __exit__(self, *error):
        for process in self.processes:
            process.kill()
            process.wait()
        self._open.close()

    def _file(self):
        return self._open.enter_context(tempfile.TemporaryFile("w+"))

    def wait(self):
        """The exit codes, once all processes have ended."""
        return [process.wait() for process in self.processes]

    def output(self, index):
        """What a worker has printed so far: (stdout, stderr)."""
        texts = []
        for file in self._files[index]:
            with open(f"/proc/self/fd/{file.fileno()}") as copy:
                texts.append(copy.read())
        return texts

    def results(self):
        """The last line of each worker, from JSON; fails with its errors."""
        codes = self.wait()
        for index, code in enumerate(codes):
            assert code == 0, self.output(index)[1][-3000:]
        return [
            json.loads(self.output(index)[0].splitlines()[-1])
            for index in range(self.size)
        ]


def free_ports(count):
    """Port numbers that nobody listens on at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
