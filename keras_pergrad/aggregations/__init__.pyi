from keras_pergrad.aggregations.aggregation import Aggregation as Aggregation
from keras_pergrad.aggregations.aggregation import (
    GradientStatistics as GradientStatistics,
)
from keras_pergrad.aggregations.aggregation import Mean as Mean
from keras_pergrad.aggregations.aggregation import (
    register_aggregation as register_aggregation,
)
from keras_pergrad.aggregations.clipping import ClippedMean as ClippedMean
from keras_pergrad.multitask.gramian import (
    GramianAggregation as GramianAggregation,
)
from keras_pergrad.multitask.of_conflicts import IMTLG as IMTLG
from keras_pergrad.multitask.of_conflicts import PCGrad as PCGrad
from keras_pergrad.multitask.of_conflicts import UPGrad as UPGrad
from keras_pergrad.multitask.of_weights import MGDA as MGDA
from keras_pergrad.multitask.of_weights import AlignedMTL as AlignedMTL
from keras_pergrad.multitask.of_weights import CAGrad as CAGrad
from keras_pergrad.multitask.robust import GeometricMedian as GeometricMedian
from keras_pergrad.multitask.robust import Krum as Krum
