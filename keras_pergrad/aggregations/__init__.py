"""Aggregations whose weights follow from the Gramian of all gradients."""

from keras_pergrad.aggregations.gramian import GramianAggregation
from keras_pergrad.aggregations.of_conflicts import IMTLG, PCGrad, UPGrad
from keras_pergrad.aggregations.of_weights import MGDA, AlignedMTL, CAGrad
from keras_pergrad.aggregations.robust import GeometricMedian, Krum

__all__ = [
    "IMTLG",
    "MGDA",
    "AlignedMTL",
    "CAGrad",
    "GeometricMedian",
    "GramianAggregation",
    "Krum",
    "PCGrad",
    "UPGrad",
]
