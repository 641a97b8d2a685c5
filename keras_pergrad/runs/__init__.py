"""Run records on disk, and their comparison."""

from keras_pergrad.runs.info import RunInfo
from keras_pergrad.runs.reader import (
    Run,
    RunRecordWarning,
    list_runs,
    read_run,
)
from keras_pergrad.runs.sketch import GradientSketch
from keras_pergrad.runs.writer import RunWriter

__all__ = [
    "GradientSketch",
    "Run",
    "RunInfo",
    "RunRecordWarning",
    "RunWriter",
    "list_runs",
    "read_run",
]
