"""Means and variances in one pass, and joined from several places."""

import numpy as np


class Moments:
    """Count, mean and summed squared deviations of arrays of one shape.

    Numbers are added one array at a time (Welford); what was gathered in
    several places is merged (Chan), with the same result as in one place.
    Where an array is NaN, that entry does not count.

    Args:
        shape: of the arrays.

    Attributes:
        count, mean, squares: arrays of `shape`.

    Example:

    >>> from keras_pergrad.runs.moments import Moments
    >>> here, there = Moments(), Moments()
    >>> here.add(1.0), here.add(2.0), there.add(6.0)
    (None, None, None)
    >>> both = here.merge(there)
    >>> float(both.mean), float(both.variance)
    (3.0, 7.0)
    """

    def __init__(self, shape=()):
        self.count = np.zeros(shape)
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)

    def add(self, values):
        """Takes in one array.

        Raises:
            ValueError: it has another shape.
        """
        values = np.asarray(values, np.float64)
        if values.shape != self.mean.shape:
            raise ValueError(
                f"Expected an array of shape {self.mean.shape}. Received: "
                f"shape {values.shape}"
            )
        there = ~np.isnan(values)
        self.count += there
        with np.errstate(invalid="ignore", divide="ignore"):
            before = values - self.mean
            mean = self.mean + before / self.count
            squares = self.squares + before * (values - mean)
        self.mean = np.where(there, mean, self.mean)
        self.squares = np.where(there, squares, self.squares)

    def merge(self, other):
        """The moments of what both have seen; both stay as they were.

        Raises:
            ValueError: `other` is of arrays of another shape.
        """
        if other.mean.shape != self.mean.shape:
            raise ValueError(
                f"Expected moments of arrays of shape {self.mean.shape}. "
                f"Received: shape {other.mean.shape}"
            )
        both = Moments(self.mean.shape)
        both.count = self.count + other.count
        share = other.count / np.maximum(both.count, 1)
        between = other.mean - self.mean
        both.mean = self.mean + between * share
        both.squares = (
            self.squares + other.squares + between**2 * self.count * share
        )
        return both

    @property
    def variance(self):
        """The unbiased variance; NaN of fewer than two values."""
        enough = np.where(self.count > 1, self.count - 1, np.nan)
        return self.squares / enough

    @property
    def average(self):
        """The mean; NaN where there was no value."""
        return np.where(self.count > 0, self.mean, np.nan)
