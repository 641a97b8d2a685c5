from keras_pergrad.modes.accumulated import Accumulated as Accumulated
from keras_pergrad.modes.base import GradientMode as GradientMode
from keras_pergrad.modes.base import PartialSums as PartialSums
from keras_pergrad.modes.base import Step as Step
from keras_pergrad.modes.base import get as get
from keras_pergrad.modes.base import (
    register_gradient_mode as register_gradient_mode,
)
from keras_pergrad.modes.batch import Batch as Batch
from keras_pergrad.modes.per_sample import PerSample as PerSample
from keras_pergrad.modes.step_options import StepOptions as StepOptions
from keras_pergrad.modes.step_readers import StepReader as StepReader
from keras_pergrad.modes.step_readers import StepSamples as StepSamples
from keras_pergrad.modes.sums import PartOfBatch as PartOfBatch
from keras_pergrad.modes.vectorized import Vectorized as Vectorized
from keras_pergrad.modes.vectorized import sample_gradients as sample_gradients
from keras_pergrad.multitask.by_task import ByTask as ByTask
