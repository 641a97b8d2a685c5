"""Gradients of a model's outputs with respect to its inputs, of any size."""

from keras_pergrad.inputs.gradients import input_gradients

__all__ = ["input_gradients"]
