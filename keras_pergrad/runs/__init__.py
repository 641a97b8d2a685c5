"""Run records on disk, and their comparison."""

from keras_pergrad.runs.recording import RunInfo, RunWriter, export
from keras_pergrad.runs.sketch import GradientSketch
from keras_pergrad.runs.store import Run, RunRecordWarning, list_runs, read_run

__all__ = [
    "GradientSketch",
    "Run",
    "RunInfo",
    "RunRecordWarning",
    "RunWriter",
    "export",
    "list_runs",
    "read_run",
]
