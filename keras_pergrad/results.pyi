from keras_pergrad.checking.check_table import CheckRow as CheckRow
from keras_pergrad.checking.check_table import GradientCheck as GradientCheck
from keras_pergrad.checking.numerics import Verdict as Verdict
from keras_pergrad.explanation.explanation import Explanation as Explanation
from keras_pergrad.explanation.explanation import LayerRow as LayerRow
from keras_pergrad.explanation.explanation import VariableRow as VariableRow
from keras_pergrad.explanation.step_memory import StepMemory as StepMemory
from keras_pergrad.explanation.what_fits import MemoryFit as MemoryFit
from keras_pergrad.gradient_health.batch_gradient import (
    BatchGradient as BatchGradient,
)
from keras_pergrad.gradient_health.judgements import (
    HealthAdvice as HealthAdvice,
)
from keras_pergrad.gradient_health.tasks import TaskConflicts as TaskConflicts
from keras_pergrad.influence.fisher import DiagonalFisher as DiagonalFisher
from keras_pergrad.influence.fisher import KroneckerFisher as KroneckerFisher
from keras_pergrad.modes.base import Step as Step
from keras_pergrad.placement.comparison import Comparison as Comparison
from keras_pergrad.placement.comparison import (
    DeviceComparison as DeviceComparison,
)
from keras_pergrad.placement.report import PlacementReport as PlacementReport
from keras_pergrad.privacy.audit import AuditResult as AuditResult
from keras_pergrad.privacy.statement import Statement as Statement
from keras_pergrad.runs.comparison import RunComparison as RunComparison
from keras_pergrad.runs.divergence import Divergence as Divergence
from keras_pergrad.runs.effects import Effect as Effect
from keras_pergrad.runs.findings import Finding as Finding
from keras_pergrad.runs.store import HealthReading as HealthReading
from keras_pergrad.runs.store import Histogram as Histogram
from keras_pergrad.stalls.accounting import StallReport as StallReport
from keras_pergrad.stalls.advice import Advice as Advice
from keras_pergrad.stalls.measuring import WorkerTrial as WorkerTrial
from keras_pergrad.stalls.profile import PipelineProfile as PipelineProfile
from keras_pergrad.stalls.stages import StageRow as StageRow
