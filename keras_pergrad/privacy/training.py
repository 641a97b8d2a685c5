"""Private training as one object: mode, batches, accounting."""

import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import numpy as np

from keras_pergrad.aggregations.clipping import ClippedMean, Schedule
from keras_pergrad.common.arguments import NamedArguments, named_arguments
from keras_pergrad.common.warning import warn_user
from keras_pergrad.modes import Accumulated, GradientMode
from keras_pergrad.privacy import accounting
from keras_pergrad.privacy.batch_sizes import (
    BatchSizeComparison,
    compare_batch_sizes,
)
from keras_pergrad.privacy.ledger import ledger_of
from keras_pergrad.privacy.mechanism import EXAMPLE, USER, Mechanism
from keras_pergrad.privacy.plan import Plan
from keras_pergrad.privacy.privacy_budget import (
    PrivacyBudget,
    TrainedModels,
    is_trained_elsewhere,
)
from keras_pergrad.privacy.private_batches import PrivateBatches
from keras_pergrad.privacy.private_mean import PrivateMean
from keras_pergrad.privacy.random_access import make_source, require_examples
from keras_pergrad.privacy.settings import METHODS, Settings
from keras_pergrad.privacy.statement import Statement
from keras_pergrad.privacy.statement_words import describe_plan


class PrivateTraining(NamedArguments):
    """Training whose result reveals little about any one example (DP-SGD).

    One object gives the gradient mode, the batches and the callback, so that
    clipping, noise, sampling and accounting cannot disagree. It never changes,
    and several models may be trained with it: what each has spent is kept in
    the model and saved with it.

    ```
    B ← each sample with probability batch_size / samples
    g ← (Σ_{i in B} clip(g_i) + N(0, (noise_multiplier · clip_norm)²))
        / batch_size
    ```

    Abadi et al., "Deep learning with differential privacy", arXiv 1607.00133;
    dp-accounting (`pip install keras-pergrad[privacy]`) computes epsilon, from
    privacy loss distributions where possible.

    | `sampling` | a batch has | neighbouring data have | amplified |
    |---|---|---|---|
    | `"poisson"` | each with a probability | one example more or less | yes |
    | `"fixed"` | batch_size, drawn anew | one example exchanged | yes |
    | `"shuffled"` | the next of an epoch | a blank for an example | no |
    | `"cyclic"` | as "poisson", from a group | a blank for an example | yes |
    | `"ordered"` | the next, always in one order | a blank for one | no |

    Args:
        delta: the probability with which epsilon need not hold; less than
            1 / samples.
        samples: the number of samples in the data; it counts as public.
        batch_size: the expected number of samples in a batch.
        target_epsilon: the budget. The noise is calibrated to it, unless
            `noise_multiplier` is given, and training stops before it is
            exceeded. None: epsilon follows from `noise_multiplier`.
        clip_norm: the norm that each example's gradient is clipped to, or a
            schedule of it (see `ClippedMean`). Default: 1.0.
        epochs: how many epochs of ⌈samples / batch_size⌉ steps the noise is
            calibrated for.
        steps: the number of steps in place of `epochs`.
        sampling: "poisson", "fixed", "shuffled", "cyclic" or "ordered".
            Default: "poisson", with correlated noise "cyclic".
        noise: "independent" or "correlated": later steps then take back part
            of the noise of earlier ones, so that their sum holds less of it
            (BandMF, arXiv 2306.08153).
        bands: with correlated noise, how many steps are correlated, at most
            samples / batch_size. Default: the power of two, up to 32, that
            promises the least noise in the weights.
        earlier_noise: "kept", which takes (bands − 1) · 4 bytes for each
            weight, or "redrawn", which takes time in place of memory and
            needs sampling="ordered" (BISR, arXiv 2505.12128).
        noise_multiplier: the noise's standard deviation over the clip norm, or
            a schedule of it; epsilon then follows from it.
        clipping: in place of `clip_norm` a `ClippedMean`, such as one with
            per="variable", an `AutomaticClippedMean` or an
            `AdaptiveClippedMean`. Give it no noise, seed or expected batch
            size: they are set here.
        microbatch_size: how many examples go through the model at a time.
        method: "vectorized" or "per_sample", the mode inside.
        seed: an integer makes noise and batches repeatable, for a
            reproduction. Whoever knows it can remove the noise, and the
            statement says that it was given. Without it noise and batches have
            a key of 128 bits from the operating system, whatever
            `keras.utils.set_random_seed` was given.
        user_ids: the user of each sample, (samples,). The guarantee is then
            for users, with all their examples. "unique": each example is from
            a different person; this turns off the warning that the guarantee
            is for examples.
        samples_per_user: with `user_ids`, how many samples one user may
            have; from a user with more, that many are chosen at random.
        public_layers: names of layers, such as Normalization, that were
            adapted to public data.
        continue_from: a privately trained model, whose training continues
            here, in it or in a model that begins with its weights. The noise is
            calibrated so that both together stay within the budget.
        augmentations: how many augmented views each example has in a step,
            together with `augment`. The example's loss, and so its gradient,
            is the mean over its views, and is clipped once (De et al., arXiv
            2204.13650). Epsilon is the same, and a step costs about as much
            as one of so many times more examples. Metrics see all views.
        augment: a keras layer, called with training=True, or a function of a
            batch of inputs, (n, ...) or a structure of these, that returns a
            view of each. It draws by `keras.random`. It gets one example at a
            time, while data are prepared; `evaluate` and `predict` do not
            call it. The seed, the number of the step and that of the example
            determine what it draws.
        vouched: the name of the class of `clipping`, if it is a custom class:
            nothing proves that it keeps each sample's gradient within
            `clip_norm`. The statement says that you vouch for it.

    Raises:
        ValueError: an argument is out of range.
        ImportError: dp-accounting is not installed.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> x, y = np.random.normal(size=(200, 4)), np.zeros((200, 1))
    >>> private = kpg.PrivateTraining(
    ...     target_epsilon=3.0,
    ...     delta=1e-3,
    ...     samples=len(x),
    ...     batch_size=50,
    ...     epochs=2,
    ...     user_ids="unique",
    ... )
    >>> inputs = keras.Input((4,))
    >>> model = kpg.PerGradModel(inputs, keras.layers.Dense(1)(inputs))
    >>> model.compile("sgd", "mse", gradient_mode=private.gradient_mode)
    >>> history = model.fit(
    ...     private.batches(x, y),
    ...     epochs=2,
    ...     callbacks=[private.callback],
    ...     verbose=0,
    ... )
    >>> history.history["epsilon"][-1] <= 3.0
    True
    >>> private.statement()["epsilon"] == history.history["epsilon"][-1]
    True
    """

    def __init__(
        self,
        *,
        delta: float,
        samples: int,
        batch_size: int,
        target_epsilon: float | None = None,
        clip_norm: float | Schedule | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        sampling: Literal["poisson", "fixed", "shuffled", "cyclic", "ordered"]
        | None = None,
        noise: Literal["independent", "correlated"] = "independent",
        bands: int | None = None,
        earlier_noise: Literal["kept", "redrawn"] = "kept",
        noise_multiplier: float | Schedule | None = None,
        clipping: ClippedMean | None = None,
        microbatch_size: int | None = None,
        method: Literal["vectorized", "per_sample"] = "vectorized",
        seed: int | None = None,
        user_ids: Any = None,
        samples_per_user: int | None = None,
        public_layers: Sequence[str] = (),
        continue_from: keras.Model | None = None,
        augmentations: int | None = None,
        augment: Callable[[Any], Any] | None = None,
        vouched: Sequence[str] = (),
    ):
        # All of them, by the same names.
        arguments = {**locals()}
        del arguments["self"]
        self._follow(Settings(**arguments))

    def _follow(self, settings):
        """Be the training of some settings."""
        plan = Plan.of(settings)
        self._settings = settings
        self.delta: float = settings.delta
        self.target_epsilon: float | None = settings.target_epsilon
        self.microbatch_size: int | None = settings.microbatch_size
        self.method: str = settings.method
        self.public_layers: Sequence[str] = settings.public_layers
        self.seed: int | None = settings.seed
        self.num_samples: int = settings.samples
        self.augment: Callable[[Any], Any] | None = settings.augment
        self.steps: int | None = settings.planned_steps
        self.mechanism: Mechanism = plan.mechanism
        self.clipping: ClippedMean = plan.clipping
        self._models = TrainedModels()

    @property
    def noise_multiplier(self) -> Any:
        """The noise's standard deviation over the clip norm, or a schedule."""
        return self.clipping.noise_multiplier

    @property
    def has_users(self) -> bool:
        """Whether the guarantee is for users with all their examples."""
        return self.mechanism.unit == USER

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch of `fit` has."""
        return self.mechanism.steps_per_epoch

    @property
    def gradient_mode(self) -> GradientMode:
        """The mode for `compile(gradient_mode=...)`."""
        inner = METHODS[self.method](
            PrivateMean(
                self.clipping,
                self.mechanism,
                self.delta,
                target_epsilon=self.target_epsilon,
                public_layers=self.public_layers,
                after=self._settings.spent_record,
            )
        )
        if self.microbatch_size is None:
            return inner
        return Accumulated(microbatch_size=self.microbatch_size, inner=inner)

    @property
    def callback(self) -> keras.callbacks.Callback:
        """A new callback for `fit(callbacks=[...])`.

        It logs `epsilon` and stops training before the budget is exceeded.
        """
        if self.mechanism.unit == EXAMPLE:
            warn_user(
                "The guarantee is for one example. If a person may have "
                "several, give user_ids=..., and it protects persons; if each "
                "example comes from a different person, say so with "
                "user_ids='unique'."
            )
        return PrivacyBudget(
            self.mechanism,
            self.delta,
            target_epsilon=self.target_epsilon,
            register_model=self._models.add,
        )

    @named_arguments
    def batches(
        self, x: Any, y: Any = None, sample_weight: Any = None
    ) -> PrivateBatches:
        """Return the data to pass to `fit` as `x`.

        Args:
            x: an array or a structure of arrays of shape (examples, ...),
                memory-mapped or not; an object with `len(x)` and `x[i]`, which
                gives one example as (inputs, targets); a
                `keras.utils.PyDataset` of batches of one size; or a
                `tf.data.Dataset` of single examples that can be indexed. Under
                a strategy each replica draws its own part of the examples.
            y, sample_weight: with arrays, arrays of the same number of rows,
                or None. A weight may depend on its own example only.

        Raises:
            ValueError: there are not `samples` samples, or they cannot be
                taken at random.
            TypeError: `x` is something else.
        """
        source = make_source(x, y, sample_weight)
        require_examples(source, self.num_samples)
        _warn_of_weights(sample_weight)
        return PrivateBatches(
            source, self.mechanism, self._settings.users, augment=self.augment
        )

    @named_arguments
    def epsilon(self, steps: int | None = None) -> float:
        """Return the epsilon of some steps, those of `continue_from` included.

        Args:
            steps: how many; by default all planned ones.

        Raises:
            TypeError: it is no number, such as a model; what a model has
                spent is `statement(model)["epsilon"]`.
            ValueError: it is below 0, or not known.
        """
        if steps is None:
            steps = self.steps
        phases = (*self._settings.spent, (self.mechanism, _check_steps(steps)))
        return accounting.compute_epsilon(phases, self.delta)

    @named_arguments
    def compare(self, batch_sizes: Sequence[int]) -> BatchSizeComparison:
        """Compare batch sizes before training; print the result.

        All else stays as it was given: with `target_epsilon` the noise is
        calibrated for each size, as for a new `PrivateTraining` with that
        `batch_size`; with `noise_multiplier` epsilon follows. With `epochs` a
        larger batch takes fewer steps, with `steps` more epochs.

        Args:
            batch_sizes: those to compare, at most `samples` each.

        Returns:
            A `BatchSizeComparison`, with a row for each size.

        Raises:
            ValueError: neither `epochs` nor `steps` is planned; a size is no
                positive integer or too large, or no noise is enough for it.

        Example:

        >>> import keras_pergrad as kpg
        >>> private = kpg.PrivateTraining(
        ...     noise_multiplier=2.0,
        ...     delta=1e-5,
        ...     samples=1000,
        ...     batch_size=100,
        ...     epochs=2,
        ... )
        >>> [row.steps for row in private.compare([50, 100, 200]).rows]
        [40, 20, 10]
        """
        return compare_batch_sizes(self._settings, batch_sizes)

    @named_arguments
    def statement(
        self,
        model: keras.Model | None = None,
        weights_file: str | os.PathLike[str] | None = None,
    ) -> Statement:
        """Return what is guaranteed for a model, a `Statement`.

        Args:
            model: one that was trained with this object; by default the only
                one. Before training, the statement describes the plan.
            weights_file: the path of the file that is published; the
                statement then has its SHA-256.

        Raises:
            ValueError: it is not known which model is meant, or, before
                training, how many steps are planned.
        """
        if model is None:
            trained = list(self._models)
            if len(trained) > 1:
                raise ValueError(
                    "Several models were trained with this PrivateTraining. "
                    "Expected statement(model). Received: no model"
                )
            model = trained[0] if trained else None
        if model is None:
            steps = _check_steps(self.steps)
            earlier_proof = (self._settings.spent_record or {}).get("proof", {})
            return Statement.of(
                (*self._settings.spent, (self.mechanism, steps)),
                self.delta,
                self.target_epsilon,
                planned=True,
                has_seed=self.seed is not None,
                has_views=self.augment is not None,
                vouched=earlier_proof.get("names", ()),
                weights_file=weights_file,
            )
        ledger = ledger_of(model)
        if ledger is None:
            raise ValueError(
                "Expected a model that was compiled with the gradient_mode of "
                f"a PrivateTraining. Received: {model!r}"
            )
        return Statement.of(
            ledger.spent,
            self.delta,
            self.target_epsilon,
            outside=ledger.outside
            or ledger.was_changed(model)
            or is_trained_elsewhere(model),
            has_seed=ledger.has_seed,
            has_views=self.augment is not None or bool(ledger.phase.augment),
            proof=ledger.proof,
            vouched=getattr(model, "vouched", ()),
            weights_file=weights_file,
        )

    def __str__(self) -> str:
        return describe_plan(self)

    def __repr__(self) -> str:
        m = self.mechanism
        return (
            f"PrivateTraining(target_epsilon={self.target_epsilon}, delta="
            f"{self.delta}, noise_multiplier={self.noise_multiplier}, "
            f"clip_norm={self.clipping.clip_norm}, steps={self.steps}, "
            f"samples={m.examples}, batch_size={m.batch_size}, "
            f"sampling={m.sampling!r}, unit={m.unit!r})"
        )


def _check_steps(value):
    """Return a number of steps as an int, or refuse it."""
    if value is None:
        raise ValueError(
            "The number of steps is not known. Expected PrivateTraining with "
            "`epochs` or `steps`, or epsilon(steps)."
        )
    try:
        steps = operator.index(value)
    except TypeError:
        raise TypeError(
            "Expected epsilon(steps) with a number of steps, or epsilon() for "
            f"all planned ones. Received: {value!r} of type "
            f"{type(value).__name__}. What a model has spent is in "
            "statement(model)['epsilon']."
        ) from None
    if steps < 0:
        raise ValueError(
            "Expected a number of steps that is at least 0. Received: "
            f"epsilon({steps})"
        )
    return steps


def _warn_of_weights(weights):
    """Warn if weights seem to have been divided by their sum."""
    if weights is None or not hasattr(weights, "mean"):
        return
    # In float64, where the squares of large weights are finite.
    weights = np.asarray(weights, "float64")
    mean, spread = float(weights.mean()), float(weights.std())
    total = mean * len(weights)
    if spread > 0 and min(abs(mean - 1), abs(total - 1)) < 1e-6:
        warn_user(
            "The sample weights add up to 1, or to their number: if they were "
            "divided by their sum, each depends on other examples, which the "
            "guarantee does not cover. Use weights that follow from each "
            "example alone."
        )
