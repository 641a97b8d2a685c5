"""The reading of one measurement, by instruments of gradient health."""

from keras_pergrad.runs.store import HealthReading, Histogram

__all__ = ["HealthReading", "Histogram"]
