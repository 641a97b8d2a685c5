"""The Fisher information of a model, from per-sample gradients."""

from keras_pergrad.fisher_information.measured import fisher

__all__ = ["fisher"]
