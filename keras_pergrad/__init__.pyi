from keras_pergrad import aggregations as aggregations
from keras_pergrad import callbacks as callbacks
from keras_pergrad import diagnose as diagnose
from keras_pergrad import extending as extending
from keras_pergrad import influence as influence
from keras_pergrad import modes as modes
from keras_pergrad import privacy as privacy
from keras_pergrad import runs as runs
from keras_pergrad import trackers as trackers
from keras_pergrad.aggregations import ClippedMean as ClippedMean
from keras_pergrad.batch_norm.replacement import (
    replace_batch_norm as replace_batch_norm,
)
from keras_pergrad.checking.check import check_gradients as check_gradients
from keras_pergrad.explanation.layer_report import explain as explain
from keras_pergrad.functions.dot_products import (
    per_sample_dots as per_sample_dots,
)
from keras_pergrad.functions.per_sample import (
    gradient_statistics as gradient_statistics,
)
from keras_pergrad.functions.per_sample import (
    per_sample_gradients as per_sample_gradients,
)
from keras_pergrad.functions.per_sample import (
    per_sample_norms as per_sample_norms,
)
from keras_pergrad.inputs import input_gradients as input_gradients
from keras_pergrad.model.model import PerGradModel as PerGradModel
from keras_pergrad.modes import Accumulated as Accumulated
from keras_pergrad.modes import Batch as Batch
from keras_pergrad.modes import ByTask as ByTask
from keras_pergrad.modes import PerSample as PerSample
from keras_pergrad.modes import Vectorized as Vectorized
from keras_pergrad.privacy.training import PrivateTraining as PrivateTraining
