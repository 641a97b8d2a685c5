"""`Influence`: training samples that helped or hurt a prediction."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_pergrad.common.arguments import positive_integer
from keras_pergrad.influence.argument_checks import (
    Curvature,
    check_arguments,
    checked_shard,
    comes_in_batches,
)
from keras_pergrad.influence.checkpoints import Checkpoints
from keras_pergrad.influence.in_weight_space import (
    Identity,
    InWeightSpace,
    exact,
    kronecker,
)
from keras_pergrad.influence.page import page, rows_of
from keras_pergrad.influence.projected import (
    Projected,
    samples_of,
    shapes_of,
)
from keras_pergrad.influence.projected_rows import OnDisk
from keras_pergrad.influence.same_order import SameOrder
from keras_pergrad.influence.served import (
    require_built,
    require_served,
    tests_of,
)
from keras_pergrad.keras_internals.data_batches import batches_of

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

    H depends on `curvature`:

    - "exact": the Hessian of the compiled loss, weight regularisers included.
    - "ekfac": the Gauss-Newton matrix of the losses, block by block, as
      Kronecker products with measured eigenvalues, and the curvature of L2
      regularisers (Grosse et al., arXiv 2308.03296). A kernel and the bias
      that is added to its products (Dense, Conv2D, Conv3D) are one block,
      others are on their own. Labels are what the model predicts, all at
      once with random signs (Dangel et al., arXiv 1912.10985, who draw some):
      for the losses that `fisher` knows, one for each output, no other term.
    - "kfac": the same with the products' own eigenvalues.
    - "projected": the mean of g gᵀ over the training samples, of random
      projections of the gradients (Park et al., arXiv 2303.14186; Choe et
      al., arXiv 2405.13954), without regularisers. It can be saved.
    - "none": none. g_tᵀ g_j / n is by how much a step of rate 1 on the mean
      loss lowers the loss of t by way of j (Pruthi et al., arXiv 2002.08484).

    Layers act as in `evaluate` (`training=False`). The model is left as it
    is. Nothing is computed until you ask.

    Args:
        model: a compiled `keras.Model`, a PerGradModel or not.
        x: the inputs that it was trained with, of n samples: an array, or the
            structure of arrays that the model takes; or a `tf.data.Dataset`
            or `keras.utils.PyDataset` of batches of (x, y) or
            (x, y, sample_weight), the same in the same order each time.
        y: the targets; None with a data set.
        sample_weight: the weights, (n,), or None.
        curvature: see above.
        damping: a number that is added to every eigenvalue of H. None: 0 for
            "exact"; else a tenth of the mean eigenvalue (of each block; of
            the projections).
        checkpoints: files from `model.save_weights`; the scores are summed
            over them. None: the weights that the model has now.
        batch_size: how many samples go through the model at a time. None: 256
            of arrays, the own batches of a data set. A loss that divides by
            what a batch holds (its masks) does so in these batches of training
            samples; a test sample then counts as a batch of its own.
        projection_size: how many numbers a sample's gradient becomes for
            "projected", at most.
        seed: of the random signs, and of the projections.
        verbose: whether to show progress bars.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of
            range; the model is not compiled or a loss adds up over the
            batch. When scores are asked for: as for `per_sample_gradients`,
            such as for a layer that mixes samples; the weights have changed;
            a data set gives other batches than before; H + damping is not
            positive definite; or an op has no second derivative.

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
        projection_size: int = 1024,
        seed: int = 0,
        verbose: int | bool = 1,
    ):
        check_arguments(curvature, damping, checkpoints)
        data = x, y, sample_weight
        if batch_size is None and not comes_in_batches(x):
            batch_size = _BATCH
        self._batches = batches_of(*data, batch_size)
        if comes_in_batches(x):
            self._batches = SameOrder(self._batches, "x")
        require_served(model, next(iter(self._batches)))
        self._model, self._verbose = model, verbose
        self._curvature = curvature
        self._checkpoints = Checkpoints(model, checkpoints)
        size = positive_integer("projection_size", projection_size)
        shared = model, self._batches
        make = {
            "none": lambda: Identity,
            "exact": lambda: exact(damping),
            "kfac": lambda: kronecker(damping, False, seed),
            "ekfac": lambda: kronecker(damping, True, seed),
            "projected": lambda: None,
        }[curvature]()
        self._parts = [
            Projected(*shared, size, damping, seed, verbose)
            if make is None
            else InWeightSpace(*shared, make, verbose)
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
        tests = tests_of(self._model, x_test, y_test, sample_weight)
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
        return _top(scores, k, helpful)

    def page(
        self,
        path: str | os.PathLike,
        x_test: Any,
        y_test: Any = None,
        k: int = 5,
        class_names: Sequence[str] | None = None,
        show: Callable | None = None,
    ) -> None:
        """Write a page of test samples with what helped and hurt them.

        One HTML file for light and dark, with no script, no other file and no
        network. Images are shown as such, other samples as text or numbers.

        Args:
            path: of the file.
            x_test, y_test: as for `scores`; a handful of samples.
            k: how many helpful, and harmful, training samples of each test.
            class_names: the names of the classes that targets count; None:
                their numbers.
            show: `show(x)` makes of one sample what is shown: a text, an
                image (height, width[, 1 or 3]), numbers, or a dict of these.
                None: the sample itself.

        Raises:
            ValueError: as for `scores`; or this Influence was loaded from a
                store, which has no samples to show.
        """
        if self._batches is None:
            raise ValueError(
                "A page shows training samples. Expected an Influence made "
                "with x and y. Received: one from Influence.load, whose store "
                "has gradients alone."
            )
        k = positive_integer("k", k)
        tests = tests_of(self._model, x_test, y_test, None)
        scores = self._summed(lambda part: part.scores(tests))
        best, worst = _top(scores, k, True), _top(scores, k, False)
        tests = rows_of(tests(None), range(len(scores)))
        rows = np.union1d(best.samples, worst.samples)
        train = rows_of(self._batches, rows)
        text = page(tests, train, best, worst, class_names, show)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def save(
        self, path: str | os.PathLike, shard: tuple[int, int] = (0, 1)
    ) -> bool:
        """Build a store of the projected gradients, or what it lacks.

        The data go through the model batch by batch; what is done is on disk.
        If the process ends, call it again: at most the last batch is built
        again. Several processes, or machines with one file system, build one
        store: give each another `shard`. It then equals that of one process.
        The rows of a store are in `path/0/gradients.npy` in half precision,
        each over its entry in `path/0/scales.npy` (`1` and so on: of further
        checkpoints).

        Args:
            path: of the store, a directory.
            shard: (i, of): part i of so many, from 0.

        Returns:
            Whether the store is complete, so that `load` takes it.

        Raises:
            ValueError: the curvature is not "projected"; the store there is
                of other weights, data sizes or settings; `shard` is none; or
                the batches are not of one size.
        """
        if self._curvature != "projected":
            raise ValueError(
                "A store has projected gradients. Expected "
                "curvature='projected'. Received: "
                f"curvature={self._curvature!r}"
            )
        number, of = checked_shard(shard)
        if self._batches is None:
            raise ValueError(
                "This Influence was loaded from a store, and has no data to "
                "build another one. Make one with x and y."
            )
        complete, samples = True, samples_of(self._batches)
        for k, part in enumerate(self._parts):
            about = {"weights": self._checkpoints.checksum(k)}
            with self._checkpoints.at(k):
                place = os.path.join(path, str(k))
                store = part.save(place, (number, of), about, samples)
            complete = complete and not store.missing()
        return complete

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        model: keras.Model,
        *,
        damping: float | None = None,
        checkpoints: Sequence[str | os.PathLike] | None = None,
        verbose: int | bool = 1,
    ) -> "Influence":
        """Open a store that `save` has built; its rows stay on disk.

        Args:
            path: of the store.
            model: the model, compiled and built, with the same weights.
            damping: as for `Influence`.
            checkpoints: the same files as when it was built.
            verbose: as for `Influence`.

        Returns:
            An `Influence` that answers as the one that built it, to half
            precision.

        Raises:
            ValueError: there is no store, chunks of it are missing, or it is
                of other weights or another model.

        Example:

        >>> import tempfile, keras, numpy as np
        >>> import keras_pergrad as kpg
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x, y = np.eye(4), np.ones((4, 1))
        >>> influence = kpg.Influence(
        ...     model, x, y, curvature="projected", verbose=0
        ... )
        >>> path = tempfile.mkdtemp()
        >>> influence.save(path)
        True
        >>> kpg.Influence.load(path, model).scores(x[:2], y[:2]).shape
        (2, 4)
        """
        check_arguments("projected", damping, checkpoints)
        require_built(model)
        self = object.__new__(cls)
        self._batches, self._model, self._verbose = None, model, verbose
        self._curvature = "projected"
        self._checkpoints = Checkpoints(model, checkpoints)
        self._parts = []
        for k in range(len(self._checkpoints)):
            weights = {"weights": self._checkpoints.checksum(k)}
            rows = OnDisk(os.path.join(path, str(k)))
            rows.require({**weights, "shapes": shapes_of(model)})
            rows.require_complete()
            settings = rows.about["projection_size"], damping
            self._parts.append(
                Projected(
                    model, None, *settings, rows.about["seed"], verbose, rows
                )
            )
        return self

    def _summed(self, ask):
        total: Any = 0.0
        for number, part in enumerate(self._parts):
            with self._checkpoints.at(number):
                total = total + ask(part)
        return total / np.shape(total)[-1]


def _top(scores, k, helpful):
    order = np.argsort(-scores if helpful else scores, 1, kind="stable")
    order = order[:, :k]
    return Top(order, np.take_along_axis(scores, order, 1))
