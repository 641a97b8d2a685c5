"""The way out for models with batch normalisation."""

from keras_pergrad.analysis.batch_norm.replacement import replace_batch_norm

__all__ = ["replace_batch_norm"]
