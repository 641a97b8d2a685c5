"""The types of what reports and callbacks return, for annotations.

Example:

>>> import keras_pergrad as kpg
>>> def slowest(profile: kpg.results.PipelineProfile) -> str:
...     return max(profile.stages, key=lambda row: row.share).name
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_pergrad.analysis.checking.check_table import (
        CheckRow,
        GradientCheck,
    )
    from keras_pergrad.analysis.explain.explanation import (
        Explanation,
        LayerRow,
        VariableRow,
    )
    from keras_pergrad.analysis.explain.step_memory import StepMemory
    from keras_pergrad.analysis.explain.what_fits import MemoryFit
    from keras_pergrad.analysis.health.judgements import HealthAdvice
    from keras_pergrad.analysis.measurement.batch_gradient import BatchGradient
    from keras_pergrad.analysis.measurement.tasks import (
        TaskConflicts,
    )
    from keras_pergrad.analysis.numerics import Verdict
    from keras_pergrad.analysis.pipelines.accounting import StallReport
    from keras_pergrad.analysis.pipelines.advice import Advice
    from keras_pergrad.analysis.pipelines.measuring import WorkerTrial
    from keras_pergrad.analysis.pipelines.profile import PipelineProfile
    from keras_pergrad.analysis.pipelines.stages import StageRow
    from keras_pergrad.analysis.placement.comparison import (
        Comparison,
        DeviceComparison,
    )
    from keras_pergrad.analysis.placement.report import (
        PlacementReport,
    )
    from keras_pergrad.fisher_information.fisher_result import (
        DiagonalFisher,
        KroneckerFisher,
    )
    from keras_pergrad.modes.base import Step
    from keras_pergrad.privacy.audit import AuditResult
    from keras_pergrad.privacy.statement import Statement
    from keras_pergrad.runs.comparison import RunComparison
    from keras_pergrad.runs.divergence import Divergence
    from keras_pergrad.runs.effects import Effect
    from keras_pergrad.runs.findings import Finding
    from keras_pergrad.runs.store import HealthReading, Histogram
else:
    from keras_pergrad.common.lazy_names import lazy

    __getattr__ = lazy(
        __name__,
        {
            "analysis.checking.check_table": ("CheckRow", "GradientCheck"),
            "analysis.explain.explanation": (
                "Explanation",
                "LayerRow",
                "VariableRow",
            ),
            "analysis.explain.step_memory": ("StepMemory",),
            "analysis.explain.what_fits": ("MemoryFit",),
            "analysis.health.judgements": ("HealthAdvice",),
            "analysis.measurement.batch_gradient": ("BatchGradient",),
            "analysis.measurement.tasks": ("TaskConflicts",),
            "analysis.numerics": ("Verdict",),
            "analysis.pipelines.advice": ("Advice",),
            "analysis.pipelines.profile": ("PipelineProfile",),
            "analysis.pipelines.stages": ("StageRow",),
            "analysis.pipelines.accounting": ("StallReport",),
            "analysis.pipelines.measuring": ("WorkerTrial",),
            "analysis.placement.comparison": (
                "Comparison",
                "DeviceComparison",
            ),
            "analysis.placement.report": ("PlacementReport",),
            "fisher_information.fisher_result": (
                "DiagonalFisher",
                "KroneckerFisher",
            ),
            "modes.base": ("Step",),
            "privacy.audit": ("AuditResult",),
            "privacy.statement": ("Statement",),
            "runs.comparison": ("RunComparison",),
            "runs.divergence": ("Divergence",),
            "runs.effects": ("Effect",),
            "runs.findings": ("Finding",),
            "runs.store": ("HealthReading", "Histogram"),
        },
        below="keras_pergrad",
    )

__all__ = [
    "Advice",
    "AuditResult",
    "BatchGradient",
    "CheckRow",
    "Comparison",
    "DeviceComparison",
    "DiagonalFisher",
    "Divergence",
    "Effect",
    "Explanation",
    "Finding",
    "GradientCheck",
    "HealthAdvice",
    "HealthReading",
    "Histogram",
    "KroneckerFisher",
    "LayerRow",
    "MemoryFit",
    "PipelineProfile",
    "PlacementReport",
    "RunComparison",
    "StageRow",
    "StallReport",
    "Statement",
    "Step",
    "StepMemory",
    "TaskConflicts",
    "VariableRow",
    "Verdict",
    "WorkerTrial",
]


def __dir__():
    return __all__
