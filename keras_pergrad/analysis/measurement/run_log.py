"""The recording of a callback's measurements as a run."""

import dataclasses
import os
import time

from keras_pergrad.analysis.measurement.gradient_logs import scalars
from keras_pergrad.runs import RunWriter, list_runs, read_run


class RunLog:
    """The run of one `fit`."""

    def __init__(self, log_dir, info, resumes, sketch):
        make = RunWriter.resume if info.run and resumes else RunWriter.create
        info = dataclasses.replace(info, run=info.run or _new_name(info.seed))
        self.info, self._sketch = info, sketch
        self._log_dir = os.fspath(log_dir)
        self._writer = make(self._log_dir, info)
        self.directory = self._writer.directory

    def last_of_another_probe(self):
        """Return the name of the last other run if its probe is another."""
        for path in reversed(list_runs(self._log_dir)):
            if os.path.basename(path) != self.info.run:
                try:
                    other = read_run(path, scalars=()).info
                except (OSError, ValueError):  # damaged, or being written
                    continue
                same = other["probe"] == self.info.probe
                return None if same else other["run"]
        return None

    def earlier(self):
        """Return the readings before, of a run that is resumed."""
        return read_run(self.directory).readings

    def add(self, epoch, measured, gradient, reading):
        """Record a `BatchGradient`, its mean gradient and its reading."""
        whole, each = self._sketch(gradient)
        record = {"step": reading.step, "epoch": epoch, "time": time.time()}
        record |= {"loss": measured.loss, **scalars(measured)}
        vectors = measured.norms, measured.variances, each, whole
        self._writer.append(record, *vectors, reading)

    def close(self):
        """Release the run."""
        self._writer.close()


def require_unnamed(run_name, tags):
    """Refuse a name and tags where nothing records the run."""
    if run_name is not None or tags:
        raise ValueError(
            "`run_name` and `tags` belong to a run in `log_dir`, or to "
            f"`trackers`. Received: run_name={run_name!r}, tags={tags!r}, "
            "log_dir=None, trackers=()"
        )


def require_tags(tags):
    """Refuse tags that are no dict of names to strings or numbers."""
    if tags is None:
        return
    if not isinstance(tags, dict) or not all(
        isinstance(name, str) and isinstance(value, (str, int, float))
        for name, value in tags.items()
    ):
        raise ValueError(
            "`tags` expected a dict of names to strings or numbers, such as "
            f"{{'device': 'cpu'}}. Received: tags={tags!r}"
        )


def _new_name(seed):
    """Return a new name that sorts by time and tells the seed."""
    known = "" if seed is None else f"seed{seed}-"
    return time.strftime("%Y%m%d-%H%M%S-") + known + os.urandom(3).hex()
