"""What a worker measures, and the settings that all frameworks share."""

import dataclasses
from collections.abc import Callable

CLIP_NORM = 1.0
LEARNING_RATE = 0.01


@dataclasses.dataclass
class Job:
    """A model and a batch, ready to run.

    Attributes:
        step: does the task once and waits for the result; the clipped task
            changes the weights, the materialised one returns the list of
            per-sample gradients.
        weights: returns the trainable weights as NumPy arrays.
    """

    step: Callable
    weights: Callable
