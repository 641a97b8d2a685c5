from keras_pergrad import callbacks as callbacks
from keras_pergrad import factors as factors
from keras_pergrad import modes as modes
from keras_pergrad import proof as types
from keras_pergrad import results as results
from keras_pergrad import runs as runs
from keras_pergrad import trackers as trackers
from keras_pergrad.aggregations import IMTLG as IMTLG
from keras_pergrad.aggregations import MGDA as MGDA
from keras_pergrad.aggregations import AlignedMTL as AlignedMTL
from keras_pergrad.aggregations import CAGrad as CAGrad
from keras_pergrad.aggregations import GeometricMedian as GeometricMedian
from keras_pergrad.aggregations import GramianAggregation as GramianAggregation
from keras_pergrad.aggregations import Krum as Krum
from keras_pergrad.aggregations import PCGrad as PCGrad
from keras_pergrad.aggregations import UPGrad as UPGrad
from keras_pergrad.aggregations.aggregation import Aggregation as Aggregation
from keras_pergrad.aggregations.aggregation import (
    GradientStatistics as GradientStatistics,
)
from keras_pergrad.aggregations.aggregation import Mean as Mean
from keras_pergrad.aggregations.aggregation import (
    register_aggregation as register_aggregation,
)
from keras_pergrad.aggregations.clipping import ClippedMean as ClippedMean
from keras_pergrad.batch_norm.replacement import (
    replace_batch_norm as replace_batch_norm,
)
from keras_pergrad.checking.check import check_gradients as check_gradients
from keras_pergrad.explanation.layer_report import explain as explain
from keras_pergrad.explanation.what_fits import what_fits as what_fits
from keras_pergrad.functions.per_sample import (
    gradient_statistics as gradient_statistics,
)
from keras_pergrad.functions.per_sample import (
    per_sample_dots as per_sample_dots,
)
from keras_pergrad.functions.per_sample import (
    per_sample_gradients as per_sample_gradients,
)
from keras_pergrad.functions.per_sample import (
    per_sample_norms as per_sample_norms,
)
from keras_pergrad.influence.attribution import Influence as Influence
from keras_pergrad.influence.fisher import fisher as fisher
from keras_pergrad.inputs import input_gradients as input_gradients
from keras_pergrad.model.model import PerGradModel as PerGradModel
from keras_pergrad.modes import Accumulated as Accumulated
from keras_pergrad.modes import Batch as Batch
from keras_pergrad.modes import ByTask as ByTask
from keras_pergrad.modes import GradientMode as GradientMode
from keras_pergrad.modes import PerSample as PerSample
from keras_pergrad.modes import Vectorized as Vectorized
from keras_pergrad.modes import register_gradient_mode as register_gradient_mode
from keras_pergrad.placement.comparison import (
    compare_devices as compare_devices,
)
from keras_pergrad.placement.prediction import (
    predict_placement as predict_placement,
)
from keras_pergrad.privacy.audit import audit_privacy as audit_privacy
from keras_pergrad.privacy.clipping_variants import (
    AdaptiveClippedMean as AdaptiveClippedMean,
)
from keras_pergrad.privacy.clipping_variants import (
    AutomaticClippedMean as AutomaticClippedMean,
)
from keras_pergrad.privacy.training import PrivateTraining as PrivateTraining
from keras_pergrad.proof.tensor_types import (
    register_type_rule as register_type_rule,
)
from keras_pergrad.runs.comparison import compare_runs as compare_runs
from keras_pergrad.stalls.profile import profile_pipeline as profile_pipeline
from keras_pergrad.uses import layer_rules as rules
from keras_pergrad.uses.layer_rules import register_rule as register_rule
