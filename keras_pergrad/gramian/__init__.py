"""Aggregations whose weights follow from the Gramian of all gradients."""

from keras_pergrad.gramian.aligned import AlignedMTL
from keras_pergrad.gramian.conflict_averse import CAGrad
from keras_pergrad.gramian.gramian_aggregation import GramianAggregation
from keras_pergrad.gramian.impartial import IMTLG
from keras_pergrad.gramian.krum import Krum
from keras_pergrad.gramian.median import GeometricMedian
from keras_pergrad.gramian.min_norm import MGDA
from keras_pergrad.gramian.surgery import PCGrad
from keras_pergrad.gramian.upgrad import UPGrad

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
