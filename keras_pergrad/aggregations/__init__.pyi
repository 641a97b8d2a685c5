from keras_pergrad.aggregations.aggregation import Aggregation as Aggregation
from keras_pergrad.aggregations.aggregation import Mean as Mean
from keras_pergrad.aggregations.aggregation import (
    register_aggregation as register_aggregation,
)
from keras_pergrad.aggregations.clipping import ClippedMean as ClippedMean
from keras_pergrad.aggregations.statistics import (
    GradientStatistics as GradientStatistics,
)
from keras_pergrad.multitask.aligned_mtl import AlignedMTL as AlignedMTL
from keras_pergrad.multitask.cagrad import CAGrad as CAGrad
from keras_pergrad.multitask.geometric_median import (
    GeometricMedian as GeometricMedian,
)
from keras_pergrad.multitask.gramian import (
    GramianAggregation as GramianAggregation,
)
from keras_pergrad.multitask.imtlg import IMTLG as IMTLG
from keras_pergrad.multitask.krum import Krum as Krum
from keras_pergrad.multitask.mgda import MGDA as MGDA
from keras_pergrad.multitask.pcgrad import PCGrad as PCGrad
from keras_pergrad.multitask.upgrad import UPGrad as UPGrad
