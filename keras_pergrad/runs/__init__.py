"""Run records on disk: what `GradientVariance(log_dir=...)` writes.

`kpg.diagnose.compare_runs` compares them.
"""

from keras_pergrad.common.lazy_names import refuse_name as _refuse_name
from keras_pergrad.runs.reading import Histogram, Reading
from keras_pergrad.runs.records import (
    Run,
    RunRecordWarning,
    export,
    list_runs,
    read_run,
)
from keras_pergrad.runs.run_info import RunInfo
from keras_pergrad.runs.run_page import page

__all__ = [
    "Histogram",
    "Reading",
    "Run",
    "RunInfo",
    "RunRecordWarning",
    "export",
    "list_runs",
    "page",
    "read_run",
]


def __dir__():
    return __all__


def __getattr__(name):
    _refuse_name(__name__, name)
