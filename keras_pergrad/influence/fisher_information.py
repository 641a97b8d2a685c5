"""The Fisher information of a model, from per-sample gradients."""

import dataclasses
import weakref
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import batches_of, first_tensor, ranks
from keras_pergrad.common.names import named_arguments, require_one_of
from keras_pergrad.common.numbers import positive_integer, seed_or_none
from keras_pergrad.functions import batch_loss
from keras_pergrad.functions.data_passes import (
    build_for_gradients,
    run_on_batch,
    with_progress,
)
from keras_pergrad.influence.likelihoods import (
    KNOWN_LOSSES,
    NOT_PROBABILITIES,
    Likelihood,
    NoLikelihood,
    likelihoods_for,
)
from keras_pergrad.influence.sides import Kronecker, as_matrices, kronecker
from keras_pergrad.keras_internals.losses.losses import (
    additional_losses,
    total_loss,
)
from keras_pergrad.keras_internals.models.parts import build_symbolically
from keras_pergrad.modes.inspection import require_compiled, require_targets
from keras_pergrad.uses import TracedStep

# The sums of one batch, as one traced function.


@dataclasses.dataclass(frozen=True)
class FisherStatistic:
    """Sums over the samples of a batch, of gradients of a log-likelihood.

    Attributes:
        kind: "diagonal" or "kfac".
        likelihoods: one for each flat output, or None for an output without a
            loss; None instead: the compiled loss.
        sampled: whether labels are drawn.
        training: whether layers act as in training.
        as_loss: whether positions count as in n times the compiled loss, and
            labels have random signs (`draw_signed`); else each position
            counts as one.
        adds_up: whether the compiled loss is a sum over samples, no mean.
    """

    kind: str
    likelihoods: tuple[Likelihood | None, ...] | None
    sampled: bool
    training: bool
    as_loss: bool = False
    adds_up: bool = False

    def trace(self, model):
        """Return a function of (x, y, sample_weight, seed, *more)."""
        reference = weakref.ref(model)

        @tf.function(autograph=False, reduce_retracing=True)
        def function(x, y, sample_weight, seed, *more):
            data = x, y, sample_weight
            return self._batch_sums(reference(), data, seed, more)

        return function

    def _batch_sums(self, model, batch, seed, more):
        x, y, sample_weight = batch

        def loss(model, x, y, y_pred, sample_weight, training):
            if self.likelihoods is None:
                return total_loss(model, x, y, y_pred, None, training)
            if additional_losses(model):
                raise NoLikelihood("terms of add_loss")
            return self._weighted_loss(y, y_pred, sample_weight, seed)

        traced = TracedStep(model, batch, self.training, loss)
        with traced:
            y_pred = traced.forward(x)
            value = loss(model, x, y, y_pred, sample_weight, self.training)
        factors = traced.sample_gradients(value)
        scale = 1
        # Contributions to a mean loss are gradients over n; they get squared.
        if self.likelihoods is None and not self.adds_up:
            n = tf.shape(first_tensor(x))[0]
            scale = tf.square(tf.cast(n, tf.float32))
        return self.of_factors(factors, scale, *more)

    def of_factors(self, factors, scale):
        """Return the sums of each variable; `scale`: of squares."""
        return [factor and self._sums(factor, scale) for factor in factors]

    def _sums(self, factor, scale):
        if self.kind == "kfac":
            inputs, outputs, count, axes = kronecker(factor)
            outputs *= tf.cast(scale, outputs.dtype)
            return inputs, outputs, count, tf.constant(axes, tf.int32)
        total = tf.convert_to_tensor(factor.sum_of_squares())
        return total * tf.cast(scale, total.dtype)

    def _weighted_loss(self, y, y_pred, sample_weight, seed):
        """Return the sum of √weight · −log p over the samples.

        The root, since gradients are squared afterwards.
        """
        outputs = tf.nest.flatten(y_pred)
        labels_by_output = [None] * len(outputs)
        weights = tf.nest.flatten(sample_weight)
        if len(weights) == 1:
            weights *= len(outputs)
        if not self.sampled:
            labels_by_output = self._labels(y, y_pred)
        parts = []
        families = zip(self.likelihoods or (), outputs)
        for k, (family, output) in enumerate(families):
            if family is None:
                continue
            labels = labels_by_output[k]
            if self.sampled:
                draw = family.draw_signed if self.as_loss else family.draw
                labels = draw(output, seed + tf.constant([0, k], seed.dtype))
            if self.as_loss:
                share = tf.stop_gradient(family.shares(output, weights[k]))
                # Gradients are squared.
                values = tf.sqrt(share) * family.position_losses(labels, output)
                parts.append(tf.reduce_sum(values))
            else:
                parts.append(family.negative_log_likelihood(labels, output))
        values = tf.add_n(parts)
        if self.as_loss:
            return values
        if sample_weight is not None:
            weight = tf.cast(tf.reshape(sample_weight, [-1]), values.dtype)
            values *= tf.sqrt(weight)
        return tf.reduce_sum(values)

    def _labels(self, y, y_pred):
        """Return the labels of each flat output."""
        if not tf.nest.is_nested(y_pred):
            return tf.nest.flatten(y)[:1]
        if isinstance(y_pred, dict) and isinstance(y, dict):
            return tf.nest.flatten({k: y.get(k) for k in y_pred})
        return tf.nest.flatten(y)


def compute_sums(statistic, model, batch, seed, *more):
    """Return the sums of a batch; the function is traced once."""
    build = build_symbolically if statistic.likelihoods is None else _build
    try:
        return run_on_batch(
            model,
            batch,
            (statistic, ranks(batch)),
            lambda: statistic.trace(model),
            statistic.training,
            (seed, *more),
            build,
        )
    except tf.errors.InvalidArgumentError as error:
        if NOT_PROBABILITIES not in str(error):
            raise
        raise ValueError(f"Model {model.name!r}: {NOT_PROBABILITIES}") from None


def _build(model, batch):
    """Build a model by a call; its loss, which would need targets, is not."""
    if not model.built:
        model(batch[0])


def require_finite(model, sums, first, n):
    """Refuse gradients with NaN or infinity, and name their batch."""
    for variable, variable_sums in zip(model.trainable_variables, sums):
        parts = tf.nest.flatten(variable_sums)[:2]
        if all(p is None or np.isfinite(np.sum(p)) for p in parts):
            continue
        raise ValueError(
            f"The squared gradients of {variable.path!r} are not finite in the "
            f"batch of samples {first} to {first + n - 1}. Look for NaN or "
            "infinity in x[i] and y[i] of these samples, or for a loss that "
            "overflows on them: per_sample_norms names the samples."
        )


# The Fisher information of a model, as `fisher` returns it.


class Fisher:
    """The Fisher information of a model, a part for each variable.

    Attributes:
        kind: "diagonal" or "kfac".
        labels: "sampled" or "data".
        likelihood: what the outputs stand for: "categorical", "bernoulli",
            "gaussian", several of these, or "loss": the compiled loss was
            taken as −log p.
        samples: how many samples it is a mean over.
        paths: the paths of the variables, in their order.
        parts: a part for each variable; None: the loss does not depend on it.
    """

    kind = ""

    def __init__(
        self, parts: Any, paths: Any, labels: str, likelihood: str, samples: int
    ):
        self.parts: list[Any] = list(parts)
        self.paths: list[str] = list(paths)
        self.labels, self.likelihood, self.samples = labels, likelihood, samples

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}: {len(self.parts)} variables, "
            f"{self.samples} samples, labels {self.labels!r}, likelihood "
            f"{self.likelihood!r}>"
        )

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, key: str | int) -> Any:
        """Return the part of a variable, by its path or its index."""
        if isinstance(key, str):
            if key not in self.paths:
                raise KeyError(
                    f"Expected one of the paths {self.paths}. Received: {key!r}"
                )
            key = self.paths.index(key)
        return self.parts[key]

    def quadratic(self, differences: Any) -> tf.Tensor:
        """Return Σ dᵀ F d over the variables, a scalar.

        Args:
            differences: d, a tensor of the variable's shape for each variable
                (None: it does not count).

        Raises:
            ValueError: there are not as many as variables.
        """
        differences = list(differences)
        if len(differences) != len(self.parts):
            raise ValueError(
                f"Expected {len(self.parts)} differences, one for each "
                f"variable of {self.paths}. Received: {len(differences)}"
            )
        terms = [
            self._quadratic_form(part, tf.convert_to_tensor(d))
            for part, d in zip(self.parts, differences)
            if part is not None and d is not None
        ]
        dtype = keras.config.floatx()
        return tf.add_n(
            [tf.zeros([], dtype)] + [tf.cast(t, dtype) for t in terms]
        )

    def penalty(self, variables: Any, anchors: Any) -> tf.Tensor:
        """Return ½ Σ F (w − w₀)², the penalty of EWC, a scalar.

        Elastic weight consolidation (Kirkpatrick et al., arXiv 1612.00796)
        adds it, times a strength, to the loss of another task. For "kfac" it
        is ½ Σ (w − w₀)ᵀ F (w − w₀).

        Args:
            variables: w, those of the model, in its order.
            anchors: w₀, their values for the first task: arrays.

        Example:

        >>> import numpy as np
        >>> from keras_pergrad.influence import DiagonalFisher
        >>> parts = [np.array([1.0, 3.0], "float32")]
        >>> result = DiagonalFisher(parts, ["w"], "data", "gaussian", 10)
        >>> float(result.penalty([np.ones(2, "float32")], [np.zeros(2)]))
        2.0
        """
        variables = [tf.convert_to_tensor(w) for w in variables]
        differences = [
            w - tf.cast(a, w.dtype)
            for w, a in zip(variables, anchors, strict=True)
        ]
        return self.quadratic(differences) / 2

    def regularizers(self, anchors: Any, strength: float = 1.0) -> list[Any]:
        """Return a Keras regularizer for each variable: its part of EWC.

        Set them as `variable.regularizer` before `compile`: the penalty is
        then part of the loss, of no sample, and not clipped.

        Args:
            anchors: the values of the variables for the first task: arrays.
            strength: what the penalties are multiplied by.

        Returns:
            A list, with None for a variable that does not count.
        """
        return [
            None if part is None else _EWCPenalty(self, part, anchor, strength)
            for part, anchor in zip(self.parts, anchors, strict=True)
        ]

    def _quadratic_form(self, part, difference):
        raise NotImplementedError


class _EWCPenalty(keras.regularizers.Regularizer):
    """½ strength · dᵀ F d, with d the distance of a variable to its anchor."""

    def __init__(self, fisher, part, anchor, strength):
        self.fisher, self.part = fisher, part
        self.anchor, self.strength = np.array(anchor), strength

    def __call__(self, x):
        value = tf.convert_to_tensor(x)
        difference = value - tf.cast(self.anchor, value.dtype)
        squares = self.fisher._quadratic_form(self.part, difference)
        return self.strength * squares / 2


class DiagonalFisher(Fisher):
    """E[g²] of each entry: parts are arrays of the variables' shapes.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> result = kpg.influence.fisher(model, np.ones((5, 4)), np.ones((5, 3)))
    >>> result.parts[0].shape, result.samples
    ((4, 3), 5)
    """

    kind = "diagonal"

    def _quadratic_form(self, part, difference):
        return tf.reduce_sum(tf.cast(part, difference.dtype) * difference**2)


class KroneckerFisher(Fisher):
    """Kronecker products: parts are `Kronecker`s of mean arrays.

    The block of a variable is about inputs ⊗ outputs (`count` is 1): with
    them a gradient is seen as a matrix by `axes`. A side with one axis is a
    diagonal. Biases and scales of at most 1,024 entries have their exact
    block, and what is no outer product its exact diagonal, in `outputs`.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> x = np.ones((5, 4))
    >>> result = kpg.influence.fisher(model, x, kind="kfac", verbose=0)
    >>> kernel = result.parts[0]
    >>> kernel.inputs.shape, kernel.outputs.shape
    ((4, 4), (3, 3))
    """

    kind = "kfac"

    def _quadratic_form(self, part: Kronecker, difference):
        matrix = as_matrices(difference[None], part.axes)[0]
        inputs, outputs = (tf.cast(s, matrix.dtype) for s in part[:2])
        left_product = (
            inputs[:, None] * matrix
            if inputs.shape.rank == 1
            else tf.matmul(inputs, matrix)
        )
        product = (
            left_product * outputs
            if outputs.shape.rank == 1
            else tf.matmul(left_product, outputs)
        )
        return tf.reduce_sum(product * matrix)


# The Fisher information of a model over data.


KINDS = ("diagonal", "kfac")
LABELS = ("sampled", "data")


@named_arguments
def fisher(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    kind: Literal["diagonal", "kfac"] = "diagonal",
    labels: Literal["sampled", "data"] = "sampled",
    draws: int = 1,
    seed: int = 0,
    training: bool = False,
    batch_size: int | None = None,
    verbose: int | bool = 1,
) -> Fisher:
    """Return the Fisher information of a model's weights.

    It is E[g gᵀ], over the samples, of the gradient g of log p(label | x): the
    mean of squares of per-sample gradients, not the square of their mean. The
    labels are drawn from the model's own predictions; with those of the data
    it is the empirical Fisher, which is another matrix (Kunstner et al., arXiv
    1905.12558).

    What the model predicts is read off the compiled loss: a softmax or sigmoid
    cross-entropy, from logits or not, with classes or one-hot labels, and the
    mean squared error as a Gaussian of unit variance. log p is the sum over
    the outputs, positions and channels of a sample (masked ones left out),
    whatever mean the loss takes. Regularisers are left out. A mean over all
    samples; the model is left as it is.

    Args:
        model: a compiled `keras.Model`, a PerGradModel or not.
        x, batch_size, verbose: as for `per_sample_gradients`. Labels that are
            drawn depend on the seed and on the batches.
        y: the targets; with `labels="sampled"` they are not looked at.
        sample_weight: (n,), not negative: how often a sample counts; or None.
        kind: "diagonal", or "kfac": Kronecker products of the weights that
            meet the data in matrix products and convolutions (`Kronecker`).
        labels: "sampled", or "data": those of `y`. With it any loss serves: a
            sample's part of a loss without a known distribution, times n if
            it is a mean over the samples, is taken as −log p.
        draws: how many labels are drawn for a sample; each costs a pass.
        seed: of the draws.
        training: whether layers such as Dropout act as in training.

    Returns:
        A `DiagonalFisher` or a `KroneckerFisher`.

    Raises:
        ValueError: an argument is none of those above; the loss has no known
            distribution and labels are "sampled"; y is missing with "data";
            weights are negative, or given for a loss without a known
            distribution; gradients are not finite; or as for
            `per_sample_gradients`.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile("sgd", loss)
    >>> result = kpg.influence.fisher(model, np.eye(4))
    >>> [part.shape for part in result.parts]
    [(4, 3), (3,)]
    """
    require_compiled(model)
    _check_arguments(kind, labels, seed)
    draws = positive_integer("draws", draws)
    if labels == "data":
        draws = 1
    totals, count, weight_sum, statistic = None, 0, 0.0, None
    general = FisherStatistic(kind, None, labels == "sampled", training)
    batches = batches_of(x, y, sample_weight, batch_size)
    for number, batch in enumerate(with_progress(batches, verbose)):
        batch, weights = _checked_batch(model, batch, labels)
        for draw in range(draws):
            key = tf.constant([seed, number * draws + draw], tf.int64)
            if statistic is None:
                statistic, sums = _first_sums(model, batch, key, general)
            else:
                sums = compute_sums(statistic, model, batch, key)
            require_finite(model, sums, count, len(weights))
            totals = sums if totals is None else _add_sums(totals, sums)
        count, weight_sum = count + len(weights), weight_sum + weights.sum()
    return _make_fisher(model, statistic, totals, count, weight_sum * draws)


def _checked_batch(model, batch, labels):
    """Return a batch without what is not used, and how often samples count."""
    x, y, sample_weight = batch
    n = first_tensor(x).shape[0]
    if labels == "sampled":
        y = None
    else:
        require_targets(model, batch)
    weights = np.ones(n)
    if sample_weight is not None:
        if tf.nest.is_nested(sample_weight):
            raise ValueError(_BAD_WEIGHTS.format(type(sample_weight).__name__))
        weights = np.asarray(sample_weight, "float64")
        if weights.size != n or weights.min() < 0:
            raise ValueError(
                _BAD_WEIGHTS.format(
                    f"shape {weights.shape} for {n} samples, the least of "
                    f"them {weights.min()}"
                )
            )
    return (x, y, sample_weight), weights.reshape(-1)


def _first_sums(model, batch, key, statistic):
    """Return the question that fits the model's loss, and its answers."""
    try:
        specific = dataclasses.replace(
            statistic, likelihoods=tuple(likelihoods_for(model, batch))
        )
        return specific, compute_sums(specific, model, batch, key)
    except NoLikelihood as error:
        if statistic.sampled:
            raise ValueError(
                f"No distribution is known from which to draw labels for "
                f"model {model.name!r}. Expected {KNOWN_LOSSES}, and no other "
                f'term. Received: {error}. Use labels="data", which takes a '
                "sample's part of the compiled loss as −log p."
            ) from None
        if batch[2] is not None:
            raise ValueError(
                f"`sample_weight` expected a model with {KNOWN_LOSSES}, and no "
                f"other term. Received: {error}. Leave the weights out, or "
                "repeat samples."
            ) from None
    build_for_gradients(model, batch)
    kind = batch_loss.batch_reduction(model, batch)
    if kind == batch_loss.NEITHER:
        raise ValueError(
            f"The loss of model {model.name!r} expected to be a mean over the "
            "samples of a batch, or a sum. Received: one that is neither, such "
            "as a mean with an `add_loss` that adds up. Reduce all with "
            "ops.mean, or all with ops.sum."
        )
    adds_up = kind == batch_loss.SUM
    statistic = dataclasses.replace(statistic, adds_up=adds_up)
    return statistic, compute_sums(statistic, model, batch, key)


def _check_arguments(kind, labels, seed):
    for name, value, choices in (
        ("kind", kind, KINDS),
        ("labels", labels, LABELS),
    ):
        require_one_of(name, value, choices)
    if seed_or_none(seed) is None:
        raise ValueError("`seed` must be an integer. Received: seed=None")


def _add_sums(totals, batch_sums):
    results = []
    for total, batch_sum in zip(totals, batch_sums):
        if batch_sum is None or not isinstance(batch_sum, (tuple, list)):
            results.append(None if batch_sum is None else total + batch_sum)
            continue
        # The axes are the same for all batches.
        sums = [a + b for a, b in zip(total[:3], batch_sum[:3])]
        results.append((*sums, batch_sum[3]))
    return results


def _make_fisher(model, statistic, totals, sample_count, total_weight):
    parts = []
    for total in totals:
        if total is None:
            parts.append(None)
        elif statistic.kind == "diagonal":
            parts.append(np.asarray(total / tf.cast(total_weight, total.dtype)))
        else:
            inputs, outputs, count, axes = map(np.asarray, total)
            parts.append(
                Kronecker(
                    inputs / np.maximum(count, 1),
                    outputs / outputs.dtype.type(total_weight),
                    np.ones_like(count),
                    tuple(int(k) for k in axes),
                )
            )
    kinds = {family.kind for family in statistic.likelihoods or () if family}
    cls = DiagonalFisher if statistic.kind == "diagonal" else KroneckerFisher
    return cls(
        parts,
        [v.path for v in model.trainable_variables],
        "sampled" if statistic.sampled else "data",
        " and ".join(sorted(kinds)) or "loss",
        sample_count,
    )


_BAD_WEIGHTS = (
    "`sample_weight` expected one number for each sample, not negative: how "
    "often it counts. Received: {}. Leave out single positions by a mask."
)
