"""The export of a run of the past."""

import dataclasses
import os
from typing import Any

from keras_pergrad.runs.recording import RunInfo
from keras_pergrad.runs.store import read_run


def export(path: str | os.PathLike, *, to: Any):
    """Write the readings of a recorded run to a tracker.

    The tracker gets what `callbacks.GradientVariance(trackers=[to])` would
    have given it. Runs that were recorded without instruments have the
    figures of the gradient, the norm and the variance of each variable's.

    Args:
        path: the run's directory.
        to: a tracker, such as `trackers.TensorBoard("logs")`.

    Raises:
        FileNotFoundError: `path` is not a run.
        ValueError: its records are of another version, or damaged.
        Exception: whatever the tracker raises.

    Example:

    ```python
    for path in kpg.runs.list_runs("runs"):
        page = kpg.trackers.Page(f"{path}.html")
        kpg.runs.export(path, to=page)
    ```
    """
    run = read_run(path)
    fields = [field.name for field in dataclasses.fields(RunInfo)]
    known = {name: run.info[name] for name in fields if name in run.info}
    try:
        to.begin(RunInfo(**known))
        for reading in run.readings:
            to.write(reading)
    finally:
        to.end()
