"""Callbacks that watch training; they know no mode and no rule."""

from keras_pergrad.callbacks.data_stall import DataStall as DataStall
