"""Aggregations whose weights follow from the Gramian of all gradients."""

from keras_pergrad.gramian.aligned import AlignedMTL
from keras_pergrad.gramian.base import GramianAggregation
from keras_pergrad.gramian.impartial import IMTLG

__all__ = ["IMTLG", "AlignedMTL", "GramianAggregation"]
