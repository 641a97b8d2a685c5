"""The training samples that helped or hurt a prediction."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import keras
import numpy as np

from keras_pergrad.common.arguments import (
    NamedArguments,
    integer_seed,
    named_arguments,
    path_text,
    positive_integer,
    require_one_of,
)
from keras_pergrad.common.batches import require_arrays
from keras_pergrad.common.data_batches import batches_of
from keras_pergrad.common.page import PAGE, write
from keras_pergrad.functions.data_passes import require_outside_functions
from keras_pergrad.influence.checkpoints import Checkpoints
from keras_pergrad.influence.fixed_order import (
    FixedOrderBatches,
    count_and_checksum,
    definition_checksum,
)
from keras_pergrad.influence.page import (
    render_page,
    samples_by_row,
    score_in_words,
)
from keras_pergrad.influence.preconditions import (
    STORE,
    Curvature,
    check_arguments,
    is_batched,
    make_test_batches,
    parse_shard,
    require_built,
    require_class_numbers,
    require_mean_loss,
    require_page_arguments,
)
from keras_pergrad.influence.predictions import make_prediction_batches
from keras_pergrad.influence.projected import (
    ProjectedInfluence,
    projected_shapes,
)
from keras_pergrad.influence.projected_rows import RowsOnDisk
from keras_pergrad.influence.weight_space import WeightSpaceInfluence
from keras_pergrad.keras_internals.models.parts import require_inputs
from keras_pergrad.keras_internals.replicas.advice import advising
from keras_pergrad.modes.inspection import require_compiled

_DEFAULT_BATCH_SIZE = 256
#: Scores of the last test samples that are kept, in numbers.
_MAX_KEPT_SCORES = 2**24

Question = Literal["loss", "prediction"]
QUESTIONS = ("loss", "prediction")


class Top(NamedTuple):
    """The training samples of the highest, or lowest, scores.

    Attributes:
        samples: their rows in the training data, (tests, k), best first.
        scores: their scores, (tests, k), in the unit of `Influence.scores`.
    """

    samples: np.ndarray
    scores: np.ndarray


class Influence(NamedArguments):
    """Scores of training samples: which of them helped or hurt a prediction.

    The score of training sample j for test sample t is

        g_tᵀ (H + damping · I)⁻¹ g_j / n

    with g the gradients of their losses and H the curvature of the mean loss
    over the n training samples: to first order, how much the loss of t
    **rises if j is left out** (its sample weight set to 0, and the training
    ended again; Koh & Liang, arXiv 1703.04730). Positive: j is helpful for t.
    Negative: harmful. The sum of the scores of several samples is the
    prediction for leaving out all of them.

    With `of="prediction"` no target of t is needed: in place of its loss
    stands −log p of the class that the model takes it for, or minus the output
    of a regression. Positive: j made the model say so, or raised the output.

    The unit is that of the loss or output: nats for a cross-entropy and for
    log p. A score carries a slope on in a straight line. So where it is large,
    +32 nats, say, the loss itself would rise by less: compare the scores of
    one test sample with each other.

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
        projection_size: for "projected", to how many numbers a sample's
            gradient is projected, at most.
        seed: the seed of the random signs and of the projections.
        verbose: whether to show progress bars.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of
            range; the model is not compiled or a loss adds up over the
            batch. When scores are asked for: as for `per_sample_gradients`,
            such as for a layer that mixes samples; the weights have changed;
            a data set gives other batches than before; H + damping is not
            positive definite beyond rounding; or an op has no second
            derivative.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.eye(4), np.ones((4, 1))
    >>> influence = kpg.influence.Influence(
    ...     model, x, y, curvature="exact", damping=0.1, verbose=0
    ... )
    >>> influence.scores(x[:2], y[:2]).shape
    (2, 4)
    """

    #: A checksum of the last test samples, and their scores.
    _last_scores: tuple[Any, np.ndarray] | None = None

    def __init__(
        self,
        model: keras.Model,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        curvature: Curvature = "ekfac",
        damping: float | None = None,
        checkpoints: Sequence[str | os.PathLike[str]] | None = None,
        batch_size: int | None = None,
        projection_size: int = 1024,
        seed: int = 0,
        verbose: int | bool = 1,
    ):
        require_outside_functions()
        require_compiled(model)
        check_arguments(curvature, damping, checkpoints)
        size = positive_integer("projection_size", projection_size)
        seed = integer_seed(seed)
        if batch_size is None and not is_batched(x):
            batch_size = _DEFAULT_BATCH_SIZE
        self._batches = batches_of(x, y, sample_weight, batch_size=batch_size)
        if is_batched(x):
            self._batches = FixedOrderBatches(self._batches, "x")
        batch = next(iter(self._batches))
        require_mean_loss(model, batch)
        require_class_numbers(model, batch, batch[1] if y is None else y)
        self._model = model
        self._curvature = curvature
        self._checkpoints = Checkpoints(model, checkpoints)
        self._estimators = [
            ProjectedInfluence(
                model,
                self._batches,
                size=size,
                damping=damping,
                seed=seed,
                verbose=verbose,
            )
            if curvature == "projected"
            else WeightSpaceInfluence(
                model,
                self._batches,
                curvature,
                damping=damping,
                seed=seed,
                verbose=verbose,
            )
            for _ in range(len(self._checkpoints))
        ]

    @advising()
    @named_arguments
    def scores(
        self,
        x_test: Any,
        y_test: Any = None,
        sample_weight: Any = None,
        *,
        of: Question = "loss",
    ) -> np.ndarray:
        """Return the score of each training sample for each test sample.

        Args:
            x_test, y_test, sample_weight: the test samples, as the training
                samples are given; their losses are the compiled one.
            of: "loss"; or "prediction": of the class that the model (with its
                weights of now) takes the test sample for, or of the output of
                a regression. Then `y_test` and `sample_weight` stay None, and
                those of a data set are ignored.

        Returns:
            An array (tests, n). Of a loss, in its unit; positive: leaving out
            the training sample would raise the loss of the test sample. Of a
            prediction, in nats of its log-probability, or in the unit of the
            output; positive: leaving it out would lower these.

        Raises:
            ValueError: as the class says; or a model has no prediction that
                is one class or one number for each sample.
        """
        return self._scores_of(
            self._test_batches(x_test, y_test, sample_weight, of=of)
        )

    def _test_batches(self, x, y, sample_weight, *, of):
        """Return a function from a batch size to batches of test samples."""
        require_outside_functions()
        require_one_of("of", of, QUESTIONS)
        if not is_batched(x):
            require_arrays(x, y)
            require_inputs(self._model, x)
        if of == "loss":
            return make_test_batches(
                self._model, x, y, sample_weight=sample_weight
            )
        if y is not None or sample_weight is not None:
            name = "sample_weight" if y is None else "y_test"
            raise ValueError(
                f"A prediction has no targets and no weights. Expected {name}="
                f"None with of='prediction'. Received: `{name}`. Leave it out, "
                "or use of='loss'."
            )
        return make_prediction_batches(self._model, x)

    def _scores_of(self, make_batches):
        """Return the scores of test samples, and keep the last ones."""
        key = count_and_checksum(make_batches(None))
        if self._last_scores is not None and self._last_scores[0] == key:
            for k in range(len(self._checkpoints)):
                with self._checkpoints.at(k):  # refuses weights that changed
                    pass
            return self._last_scores[1].copy()
        scores = self._sum_checkpoints(
            lambda estimator: estimator.scores(make_batches)
        )
        if scores.size <= _MAX_KEPT_SCORES:
            self._last_scores = key, scores.copy()
        return scores

    @advising()
    def self_influence(self) -> np.ndarray:
        """Return the score of each training sample for itself, (n,).

        How much its own loss would rise if it were left out: it is never
        negative. It is large where the model fits the sample only because it
        is there: wrong labels, and what is like nothing else.

        Raises:
            ValueError: as the class says.
        """
        require_outside_functions()
        return self._sum_checkpoints(
            lambda estimator: estimator.self_influence()
        )

    @named_arguments
    def top(
        self,
        x_test: Any,
        y_test: Any = None,
        k: int = 5,
        *,
        helpful: bool = True,
        sample_weight: Any = None,
        of: Question = "loss",
    ) -> Top:
        """Return the k most helpful, or harmful, training samples of each test.

        Args:
            x_test, y_test, sample_weight, of: as for `scores`.
            k: how many, at most n.
            helpful: whether to return those of the highest scores; False:
                those of the lowest, the most harmful first.

        Returns:
            `samples` and `scores`, each (tests, k).

        Raises:
            ValueError: k is no positive integer; or as the class says.
        """
        k = positive_integer("k", k)
        scores = self.scores(x_test, y_test, sample_weight, of=of)
        return _top_samples(scores, k, helpful)

    @advising()
    @named_arguments
    def page(
        self,
        path: str | os.PathLike[str],
        x_test: Any,
        y_test: Any = None,
        *,
        k: int = 5,
        class_names: Sequence[str] | None = None,
        show: Callable | None = None,
        of: Question = "loss",
    ) -> None:
        """Write a page of test samples with what helped and hurt them.

        One HTML file for light and dark, with no script, no other file and no
        network. Images are shown as such, other samples as text or numbers.
        Scores of the same test samples are not computed again.

        Args:
            path: the file to write.
            x_test, y_test: as for `scores`; a handful of samples.
            k: how many helpful, and harmful, training samples of each test.
            class_names: the names of the classes that targets count; None:
                their numbers.
            show: `show(x)` returns what is shown of one sample: a text, an
                image (height, width[, 1 or 3]), numbers, or a dict of these.
                None: the sample itself.
            of: as for `scores`. With "prediction", `y_test` is only shown.

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
        path_text("path", path, PAGE)
        require_page_arguments(self._model, class_names, show)
        if of == "prediction":
            make_batches = self._test_batches(x_test, None, None, of=of)
            shown = batches_of(x_test, y_test)
        else:
            make_batches = self._test_batches(x_test, y_test, None, of=of)
            shown = make_batches(None)
        tests = ((x, y, self._model(x, training=False)) for x, y, _ in shown)
        scores = self._scores_of(make_batches)
        best = _top_samples(scores, k, True)
        worst = _top_samples(scores, k, False)
        rows = np.union1d(best.samples, worst.samples)
        text = render_page(
            samples_by_row(tests, range(len(scores))),
            samples_by_row(self._batches, rows),
            best=best,
            worst=worst,
            class_names=class_names,
            show=show,
            of=of,
            score=score_in_words(
                self._curvature, len(self._checkpoints), of=of
            ),
        )
        write(path, text)

    @named_arguments
    def save(
        self, path: str | os.PathLike[str], shard: tuple[int, int] = (0, 1)
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
            path: the directory of the store.
            shard: (i, of): the chunks of shard i of so many, from 0.

        Returns:
            Whether the store is complete, so that `load` takes it.

        Raises:
            ValueError: the curvature is not "projected"; the store there is
                of other weights, data, layers, loss or settings; `shard` is
                none; or the batches are not of one size.
        """
        if self._curvature != "projected":
            raise ValueError(
                "A store has projected gradients. Expected "
                "curvature='projected'. Received: "
                f"curvature={self._curvature!r}"
            )
        shard = parse_shard(shard)
        path = path_text("path", path, STORE)
        if self._batches is None:
            raise ValueError(
                "This Influence was loaded from a store, and has no data to "
                "build another one. Make one with x and y."
            )
        complete, model = True, definition_checksum(self._model)
        samples, data = count_and_checksum(self._batches)
        for k, estimator in enumerate(self._estimators):
            metadata = {
                "weights": self._checkpoints.checksum(k),
                "data": data,
                "model": model,
            }
            with self._checkpoints.at(k):
                directory = os.path.join(path, str(k))
                store = estimator.save(
                    directory, shard, metadata, samples=samples
                )
            complete = complete and not store.missing()
        return complete

    @classmethod
    @named_arguments
    def load(
        cls,
        path: str | os.PathLike[str],
        model: keras.Model,
        *,
        damping: float | None = None,
        checkpoints: Sequence[str | os.PathLike[str]] | None = None,
        verbose: int | bool = 1,
    ) -> "Influence":
        """Open a store that `save` has built; its rows stay on disk.

        Args:
            path: the directory of the store.
            model: the model, compiled and built, with the same weights.
            damping: as for `Influence`.
            checkpoints: the same files as when it was built.
            verbose: as for `Influence`.

        Returns:
            An `Influence` that answers as the one that built it, to half
            precision.

        Raises:
            ValueError: there is no store, chunks of it are missing, or it is
                of other weights, layers or another loss.

        Example:

        >>> import tempfile, keras, numpy as np
        >>> import keras_pergrad as kpg
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x, y = np.eye(4), np.ones((4, 1))
        >>> influence = kpg.influence.Influence(
        ...     model, x, y, curvature="projected", verbose=0
        ... )
        >>> path = tempfile.mkdtemp()
        >>> influence.save(path)
        True
        >>> kpg.influence.Influence.load(path, model).scores(x[:2], y[:2]).shape
        (2, 4)
        """
        path = path_text("path", path, STORE)
        check_arguments("projected", damping, checkpoints)
        require_built(model)
        self = object.__new__(cls)
        self._batches, self._model = None, model
        self._curvature = "projected"
        self._checkpoints = Checkpoints(model, checkpoints)
        self._estimators = []
        for k in range(len(self._checkpoints)):
            store = RowsOnDisk(os.path.join(path, str(k)))
            store.require(
                {
                    "weights": self._checkpoints.checksum(k),
                    "model": definition_checksum(model),
                    "shapes": projected_shapes(model),
                }
            )
            store.require_complete()
            self._estimators.append(
                ProjectedInfluence(
                    model,
                    batches=None,
                    size=store.metadata["projection_size"],
                    damping=damping,
                    seed=store.metadata["seed"],
                    verbose=verbose,
                    rows=store,
                )
            )
        return self

    def _sum_checkpoints(self, compute):
        total: Any = 0.0
        for checkpoint, estimator in enumerate(self._estimators):
            with self._checkpoints.at(checkpoint):
                total = total + compute(estimator)
        return total / np.shape(total)[-1]


def _top_samples(scores, k, helpful):
    order = np.argsort(-scores if helpful else scores, 1, kind="stable")
    order = order[:, :k]
    return Top(order, np.take_along_axis(scores, order, 1))
