"""Callbacks that watch training; they depend on no mode and no rule."""

from keras_pergrad.callbacks.data_stall import DataStall
from keras_pergrad.callbacks.device_placement import DevicePlacement
from keras_pergrad.callbacks.gradient_variance import GradientVariance

__all__ = ["DataStall", "DevicePlacement", "GradientVariance"]
