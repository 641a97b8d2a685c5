"""Run records on disk: what `GradientVariance(log_dir=...)` writes.

`kpg.diagnose.compare_runs` compares them.
"""

from keras_pergrad.common.lazy_names import refuse_name as _refuse_name
from keras_pergrad.runs.recording import export
from keras_pergrad.runs.store import (
    HealthReading,
    Histogram,
    Run,
    RunRecordWarning,
    list_runs,
    read_run,
)

__all__ = [
    "HealthReading",
    "Histogram",
    "Run",
    "RunRecordWarning",
    "export",
    "list_runs",
    "read_run",
]


def __dir__():
    return __all__


def __getattr__(name):
    _refuse_name(__name__, name)
