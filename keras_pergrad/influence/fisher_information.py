"""The Fisher information of a model, from per-sample gradients."""

import dataclasses
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.arguments import (
    integer_seed,
    named_arguments,
    positive_integer,
    require_one_of,
)
from keras_pergrad.common.batches import first_tensor
from keras_pergrad.common.data_batches import batches_of
from keras_pergrad.functions import batch_loss
from keras_pergrad.functions.data_passes import (
    build_for_gradients,
    require_outside_functions,
    with_progress,
)
from keras_pergrad.influence.fisher_parts import (
    DiagonalFisher,
    Fisher,
    KroneckerFisher,
)
from keras_pergrad.influence.fisher_sums import (
    FisherStatistic,
    add_sums,
    compute_sums,
    require_finite,
)
from keras_pergrad.influence.likelihoods import (
    KNOWN_LOSSES,
    NoLikelihood,
    likelihoods_for,
)
from keras_pergrad.influence.preconditions import require_class_numbers
from keras_pergrad.influence.sides import Kronecker
from keras_pergrad.keras_internals.models.parts import (
    build_symbolically,
    require_inputs,
    require_targets,
)
from keras_pergrad.keras_internals.replicas.advice import advising
from keras_pergrad.modes.inspection import require_compiled

KINDS = ("diagonal", "kfac")
LABELS = ("sampled", "data")


@advising()
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
        y: the targets; with `labels="sampled"` they are ignored.
        sample_weight: (n,), not negative: how often a sample counts; or None.
        kind: "diagonal", or "kfac": Kronecker products, of the weights used
            by matrix products and convolutions (`Kronecker`).
        labels: "sampled", or "data": those of `y`. With "data" any loss is
            supported: a sample's term of a loss without a known distribution,
            times n if it is a mean over the samples, is taken as −log p.
        draws: how many labels are drawn for a sample; each costs a pass.
        seed: the seed of the draws.
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
    require_outside_functions()
    require_compiled(model)
    require_one_of("kind", kind, KINDS)
    require_one_of("labels", labels, LABELS)
    integer_seed(seed)
    draws = positive_integer("draws", draws)
    if labels == "data":
        draws = 1
    totals, count, weight_sum, statistic = None, 0, 0.0, None
    general = FisherStatistic(
        kind, None, labels == "sampled", training=training
    )
    batches = batches_of(x, y, sample_weight, batch_size=batch_size)
    for number, batch in enumerate(with_progress(batches, verbose)):
        batch, weights = _checked_batch(model, batch, labels)
        if labels == "data" and totals is None:
            build_symbolically(model, batch)  # Its loss fits the targets.
            require_class_numbers(model, batch, batch[1] if y is None else y)
        for draw in range(draws):
            key = tf.constant([seed, number * draws + draw], tf.int64)
            if statistic is None:
                statistic, sums = _first_sums(
                    model, batch, key, statistic=general
                )
            else:
                sums = compute_sums(statistic, model, batch, seed=key)
            require_finite(model, sums, count, n=len(weights))
            totals = sums if totals is None else add_sums(totals, sums)
        count, weight_sum = count + len(weights), weight_sum + weights.sum()
    return _make_fisher(
        model,
        statistic,
        totals,
        sample_count=count,
        total_weight=weight_sum * draws,
    )


def _checked_batch(model, batch, labels):
    """Return a batch without what is not used, and how often samples count."""
    x, y, sample_weight = batch
    n = first_tensor(x).shape[0]
    if labels == "sampled":
        y = None
    else:
        require_targets(model, batch)
    require_inputs(model, x)
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


def _first_sums(model, batch, key, *, statistic):
    """Return the question that fits the model's loss, and its answers."""
    try:
        specific = dataclasses.replace(
            statistic, likelihoods=tuple(likelihoods_for(model, batch))
        )
        return specific, compute_sums(specific, model, batch, seed=key)
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
    return statistic, compute_sums(statistic, model, batch, seed=key)


def _make_fisher(model, statistic, totals, *, sample_count, total_weight):
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
                    axes=tuple(int(k) for k in axes),
                )
            )
    kinds = {family.kind for family in statistic.likelihoods or () if family}
    cls = DiagonalFisher if statistic.kind == "diagonal" else KroneckerFisher
    return cls(
        parts,
        [v.path for v in model.trainable_variables],
        "sampled" if statistic.sampled else "data",
        likelihood=" and ".join(sorted(kinds)) or "loss",
        samples=sample_count,
    )


_BAD_WEIGHTS = (
    "`sample_weight` expected one number for each sample, not negative: how "
    "often it counts. Received: {}. Leave out single positions by a mask."
)
