"""The options of a model's steps: statistics and readers of its gradients."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class StepOptions:
    """What a step must compute in addition to its gradients.

    The gradients stay the same. Several models may share one mode, which never
    changes; so each model keeps its own options, as `step_options`.
    `GradientMode.step` reads them there, and `partial_sums` finds them in its
    part of a batch.

    Attributes:
        is_watched: whether a callback wants the statistics of the samples'
            gradients.
        readers: the `StepReader`s that read the samples' gradients.
        traced: the eager steps traced with these readers, by what they are
            of; they go with them.

    Example:

    >>> import keras
    >>> import keras_pergrad as kpg
    >>> model = kpg.PerGradModel.from_model(
    ...     keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    ... )
    >>> model.compile("sgd", "mse", gradient_mode="vectorized")
    >>> with model.watch_gradients():
    ...     model.step_options.is_watched
    True
    """

    is_watched: bool = False
    readers: tuple[Any, ...] = ()
    traced: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False)
