"""CABS: the batch size that goes with a learning rate.

Balles, Romero, Hennig, "Coupling adaptive batch sizes with learning rates",
arXiv 1612.05086: rate · tr Σ / loss, for plain SGD and a loss whose least
value is about 0. Σ is the biased covariance, with 1 / n.
"""

import numpy as np

from keras_pergrad.analysis.health.observation import Answer


def cabs(seen):
    """Return the number of samples that CABS advises."""
    biased = seen.trace * (seen.n - 1) / seen.n
    with np.errstate(divide="ignore", invalid="ignore"):
        size = seen.learning_rate * biased / np.float64(seen.loss)
    return Answer({"gradient_cabs": float(size)})
