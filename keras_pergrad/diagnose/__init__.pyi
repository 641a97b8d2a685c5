from keras_pergrad.checking.check_table import CheckRow as CheckRow
from keras_pergrad.checking.check_table import GradientCheck as GradientCheck
from keras_pergrad.checking.numerics import Verdict as Verdict
from keras_pergrad.explanation.explanation import Explanation as Explanation
from keras_pergrad.explanation.explanation import LayerRow as LayerRow
from keras_pergrad.explanation.explanation import VariableRow as VariableRow
from keras_pergrad.explanation.step_memory import StepMemory as StepMemory
from keras_pergrad.explanation.what_fits import MemoryFit as MemoryFit
from keras_pergrad.explanation.what_fits import what_fits as what_fits
from keras_pergrad.placement.comparison import Comparison as Comparison
from keras_pergrad.placement.comparison import (
    DeviceComparison as DeviceComparison,
)
from keras_pergrad.placement.comparison import (
    compare_devices as compare_devices,
)
from keras_pergrad.placement.prediction import (
    predict_placement as predict_placement,
)
from keras_pergrad.placement.report import PlacementReport as PlacementReport
from keras_pergrad.runs.comparison import RunComparison as RunComparison
from keras_pergrad.runs.comparison import compare_runs as compare_runs
from keras_pergrad.runs.divergence import Divergence as Divergence
from keras_pergrad.runs.effects import Effect as Effect
from keras_pergrad.runs.findings import Finding as Finding
from keras_pergrad.runs.noise_scale import NoiseScale as NoiseScale
from keras_pergrad.stalls.measuring import WorkerTrial as WorkerTrial
from keras_pergrad.stalls.profile import PipelineProfile as PipelineProfile
from keras_pergrad.stalls.profile import profile_pipeline as profile_pipeline
from keras_pergrad.stalls.stages import StageRow as StageRow
