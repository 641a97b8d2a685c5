"""`Influence`: which training samples helped or hurt a prediction."""

import os
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import keras
import numpy as np

from keras_pergrad.common.arguments import is_number, positive_integer
from keras_pergrad.influence.checkpoints import Checkpoints
from keras_pergrad.influence.in_weight_space import (
    Identity,
    InWeightSpace,
    exact,
    kronecker,
)
from keras_pergrad.influence.served import require_served
from keras_pergrad.keras_internals.data_batches import batches_of

Curvature = Literal["ekfac", "kfac", "exact", "projected", "none"]
CURVATURES = ("ekfac", "kfac", "exact", "projected", "none")
_BATCH = 256


class Top(NamedTuple):
    """The training samples of the highest, or lowest, scores.

    Attributes:
        samples: their rows in the training data, (tests, k), best first.
        scores: their scores, (tests, k).
    """

    samples: np.ndarray
    scores: np.ndarray


class Influence:
    """Which training samples made a prediction, helped or hurt.

    The score of training sample j for test sample t is

        g_tᵀ (H + damping · I)⁻¹ g_j / n

    with g the gradients of their losses and H the curvature of the mean loss
    over the n training samples: to first order, how much the loss of t
    **rises if j is left out** (its sample weight set to 0, and the training
    ended again; Koh & Liang, arXiv 1703.04730). Positive: j is helpful for t.
    Negative: harmful. Its unit is that of the loss. The sum of the scores of
    several samples is the prediction for leaving out all of them.

    | curvature | H |
    |---|---|
    | "exact" | the Hessian of the compiled loss, weight regularisers included |
    | "none" | nothing: g_tᵀ g_j / n, by how much a step of rate 1 on the mean
      loss lowers the loss of t by way of j (Pruthi et al., arXiv 2002.08484) |

    Layers act as in `evaluate` (`training=False`). The model is left as it
    is. Nothing is computed until you ask.

    Args:
        model: a compiled `keras.Model`, a PerGradModel or not.
        x: the inputs that it was trained with, of n samples: an array, or the
            structure of arrays that the model takes; or a `tf.data.Dataset`
            or `keras.utils.PyDataset` of batches of (x, y) or
            (x, y, sample_weight), in the same order each time.
        y: the targets; None with a data set.
        sample_weight: the weights, (n,), or None.
        curvature: see above.
        damping: a number that is added to every eigenvalue of H. None: 0 for
            "exact", which a training that has ended with weight
            regularisers needs no more of.
        checkpoints: files from `model.save_weights`; the scores are summed
            over them. None: the weights that the model has now.
        batch_size: how many samples go through the model at a time. None: 256
            of arrays, the own batches of a data set. A loss that divides by
            what a batch holds (its masks) does so in these batches.
        verbose: whether to show progress bars.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of
            range; the model is not compiled or a loss adds up over the
            batch. When scores are asked for: as for `per_sample_gradients`,
            such as for a layer that mixes samples; the weights have changed;
            H + damping is not positive definite; or an op has no second
            derivative.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.eye(4), np.ones((4, 1))
    >>> influence = kpg.Influence(
    ...     model, x, y, curvature="exact", damping=0.1, verbose=0
    ... )
    >>> influence.scores(x[:2], y[:2]).shape
    (2, 4)
    """

    def __init__(
        self,
        model: keras.Model,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        curvature: Curvature = "ekfac",
        damping: float | None = None,
        checkpoints: Sequence[str | os.PathLike] | None = None,
        batch_size: int | None = None,
        verbose: int | bool = 1,
    ):
        _check(curvature, damping, checkpoints)
        data = x, y, sample_weight
        if batch_size is None and not _own_batches(x):
            batch_size = _BATCH
        self._batches = batches_of(*data, batch_size)
        require_served(model, next(iter(self._batches)))
        self._model, self._verbose = model, verbose
        self._checkpoints = Checkpoints(model, checkpoints)
        make = {
            "none": lambda: Identity,
            "exact": lambda: exact(damping),
            "kfac": lambda: kronecker(damping, False, 0),
            "ekfac": lambda: kronecker(damping, True, 0),
        }[curvature]()
        self._parts = [
            InWeightSpace(model, self._batches, make, verbose)
            for _ in range(len(self._checkpoints))
        ]

    def scores(
        self, x_test: Any, y_test: Any = None, sample_weight: Any = None
    ) -> np.ndarray:
        """Return the score of each training sample for each test sample.

        Args:
            x_test, y_test, sample_weight: the test samples, as the training
                samples are given; their losses are the compiled one.

        Returns:
            An array (tests, n), in the unit of the loss; positive: leaving
            out the training sample would raise the loss of the test sample.

        Raises:
            ValueError: as the class says.
        """
        own = _own_batches(x_test)

        def tests(count):
            size = None if own else count
            return batches_of(x_test, y_test, sample_weight, size)

        return self._summed(lambda part: part.scores(tests))

    def self_influence(self) -> np.ndarray:
        """Return the score of each training sample for itself, (n,).

        How much its own loss would rise if it were left out: it is never
        negative. It is large where the model fits the sample only because it
        is there: wrong labels, and what is like nothing else.

        Raises:
            ValueError: as the class says.
        """
        return self._summed(lambda part: part.self_influence())

    def top(
        self,
        x_test: Any,
        y_test: Any = None,
        k: int = 5,
        helpful: bool = True,
        sample_weight: Any = None,
    ) -> Top:
        """Return the k most helpful, or harmful, training samples of each test.

        Args:
            x_test, y_test, sample_weight: as for `scores`.
            k: how many, at most n.
            helpful: whether to return those of the highest scores; False:
                those of the lowest, the most harmful first.

        Returns:
            `samples` and `scores`, each (tests, k).

        Raises:
            ValueError: k is no positive integer; or as the class says.
        """
        k = positive_integer("k", k)
        scores = self.scores(x_test, y_test, sample_weight)
        order = np.argsort(-scores if helpful else scores, 1, kind="stable")
        order = order[:, :k]
        return Top(order, np.take_along_axis(scores, order, 1))

    def _summed(self, ask):
        total: Any = 0.0
        for number, part in enumerate(self._parts):
            with self._checkpoints.at(number):
                total = total + ask(part)
        return total / np.shape(total)[-1]


def _own_batches(x):
    """Whether data come in batches."""
    import tensorflow as tf

    return isinstance(x, (tf.data.Dataset, keras.utils.PyDataset))


def _check(curvature, damping, checkpoints):
    if curvature not in CURVATURES:
        raise ValueError(
            f"`curvature` must be one of {CURVATURES}. Received: "
            f"curvature={curvature!r}"
        )
    if damping is not None and not (
        is_number(damping) and 0 <= damping < float("inf")
    ):
        raise ValueError(
            "`damping` must be None or a number of at least 0. Received: "
            f"damping={damping!r}"
        )
    if curvature == "none" and damping is not None:
        raise ValueError(
            "`damping` is added to a curvature, and curvature='none' has "
            f"none. Expected damping=None. Received: damping={damping!r}"
        )
    if isinstance(checkpoints, (str, os.PathLike)) or (
        checkpoints is not None and not len(checkpoints)
    ):
        raise ValueError(
            "`checkpoints` must be None or a list of at least one weights "
            f"file. Received: checkpoints={checkpoints!r}"
        )
