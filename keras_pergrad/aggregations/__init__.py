"""Aggregations: what makes one gradient of the samples'.

Given to a mode: `Vectorized(aggregation=ClippedMean(1.0))`.
"""

from keras_pergrad.aggregations.aggregation import (
    Aggregation,
    GradientStatistics,
    Mean,
    register_aggregation,
)
from keras_pergrad.aggregations.clipping import ClippedMean
from keras_pergrad.aggregations.gramian import GramianAggregation
from keras_pergrad.aggregations.of_conflicts import IMTLG, PCGrad, UPGrad
from keras_pergrad.aggregations.of_weights import MGDA, AlignedMTL, CAGrad
from keras_pergrad.aggregations.robust import GeometricMedian, Krum
from keras_pergrad.common.lazy_names import refuse_name as _refuse_name

__all__ = [
    "IMTLG",
    "MGDA",
    "Aggregation",
    "AlignedMTL",
    "CAGrad",
    "ClippedMean",
    "GeometricMedian",
    "GradientStatistics",
    "GramianAggregation",
    "Krum",
    "Mean",
    "PCGrad",
    "UPGrad",
    "register_aggregation",
]


def __dir__():
    return __all__


def __getattr__(name):
    _refuse_name(__name__, name)
