"""An audit: the epsilon that canaries show at least.

Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", arXiv
2305.08846: m canaries are in the data with probability ½ each; someone who sees
the result guesses for r of them whether they were, and v guesses are right.
"""

import dataclasses
import reprlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.arguments import (
    function,
    named_arguments,
    probability,
    seed_or_none,
)
from keras_pergrad.common.batches import map_tensors
from keras_pergrad.functions.dot_products import per_sample_dots
from keras_pergrad.keras_internals.models.parts import build_symbolically
from keras_pergrad.keras_internals.replicas.replicas import out_of_scope
from keras_pergrad.keras_internals.state.model import run_and_restore
from keras_pergrad.privacy.ledger import require_new
from keras_pergrad.privacy.training import PrivateTraining

_MAX_EPSILON = 1e3
_TOLERANCE = 1e-6


def p_value(num_canaries, guesses, correct, *, epsilon, delta):
    """Bound how likely so many correct guesses are under an epsilon."""
    from scipy import stats

    rate = 1 / (1 + np.exp(-epsilon))
    at_least = stats.binom.sf(correct - 1, guesses, rate)
    # Delta costs at most 2 · canaries · delta times the largest of P[correct −
    # i ≤ guessed right < correct] / i, over all i.
    counts = np.arange(1, correct + 1)
    tail_masses = np.cumsum(stats.binom.pmf(correct - counts, guesses, rate))
    max_ratio = np.max(tail_masses / counts, initial=0.0)
    return float(min(at_least + 2 * num_canaries * delta * max_ratio, 1))


def epsilon_lower_bound(num_canaries, guesses, correct, *, delta, confidence):
    """Return the largest epsilon that the guesses rule out; 0 for none."""

    def is_ruled_out(epsilon):
        given = {"epsilon": epsilon, "delta": delta}
        return (
            p_value(num_canaries, guesses, correct, **given) <= 1 - confidence
        )

    # The p-value grows with epsilon: double until it is large, then bisect.
    if not is_ruled_out(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while is_ruled_out(high) and high < _MAX_EPSILON:
        low, high = high, 2 * high
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_ruled_out(middle) else (low, middle)
    return low


#: Fractions of the canaries to guess, fixed beforehand; each has a cost.
_FRACTIONS = (0.25, 0.5, 1.0)


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """What an audit found.

    Attributes:
        lower_bound: epsilon is above it, with the given confidence, if the
            canaries were drawn as they should be; 0 if nothing was found.
        claimed: the epsilon that the ledger of the model says was spent.
        delta: that of the model's privacy.
        confidence: the probability with which the lower bound is right.
        canaries: how many there were.
        by_score: for each score its lower bound, how many guesses led to it,
            and how many of them were right. "loss" is how far a canary's loss
            fell in training; "gradient" is the dot product of its gradient
            with the change of the weights in training.
    """

    lower_bound: float
    claimed: float
    delta: float
    confidence: float
    canaries: int
    by_score: dict[str, tuple[float, int, int]]

    @property
    def ok(self) -> bool:
        """Whether the claim is not refuted; this is no proof of it."""
        return self.lower_bound <= self.claimed

    def __str__(self) -> str:
        verdict = (
            "The claim is not refuted."
            if self.ok
            else "THE CLAIM IS REFUTED: the mechanism is broken."
        )
        lines = [
            f"epsilon is at least {self.lower_bound:.3g} "
            f"({self.confidence:.0%} confidence, {self.canaries} canaries); "
            f"claimed is {self.claimed:.3g} at delta={self.delta:g}. {verdict}"
        ]
        for name, (bound, guesses, correct) in self.by_score.items():
            lines.append(
                f"- by {name}: {correct} of {guesses} guesses right, at least "
                f"{bound:.3g}"
            )
        return "\n".join(lines)


@named_arguments
def audit_privacy(
    make_model: Callable[[], Any],
    private: PrivateTraining,
    x: Any,
    y: Any,
    *,
    canaries: Any,
    epochs: int,
    sample_weight: Any = None,
    confidence: float = 0.95,
    seed: int | None = None,
    training: Callable[[Any, Any], Any] | None = None,
) -> AuditResult:
    """Train once with canaries and derive a lower bound for epsilon.

    Each canary is in the training data with probability ½. After training, the
    canaries that look most like training data are guessed to be in, those that
    look least like it to be out. Too many right guesses refute the claimed
    epsilon (Steinke et al., arXiv 2305.08846). The audit finds gross faults,
    such as missing noise; the bound is far below the true epsilon.

    Args:
        make_model: `make_model()` returns a `PerGradModel`, compiled with
            `private.gradient_mode`, with new weights.
        private: a `PrivateTraining`.
        x, y: all examples, as arrays (see `private.batches`).
        canaries: the rows of x and y that are canaries, such as a few hundred
            examples with random labels; (m,) integers.
        epochs: how many epochs to train for.
        sample_weight: as for `private.batches`, or None.
        confidence: the probability with which the lower bound should hold.
        seed: an integer or None, for the draw of canaries.
        training: `training(model, data)` trains the model, in place of
            `fit(data, epochs=epochs, callbacks=[private.callback])`.

    Returns:
        An `AuditResult`; print it.

    Raises:
        ValueError: an argument is out of range.
        TypeError: `make_model` is a model or cannot be called.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> x = np.random.default_rng(0).normal(size=(60, 8))
    >>> y = np.random.default_rng(1).normal(size=(60, 1))
    >>> private = kpg.PrivateTraining(
    ...     noise_multiplier=2.0,
    ...     delta=1e-3,
    ...     samples=60,
    ...     batch_size=30,
    ...     user_ids="unique",
    ... )
    >>> def make_model():
    ...     inputs = keras.Input((8,))
    ...     model = kpg.PerGradModel(inputs, keras.layers.Dense(1)(inputs))
    ...     model.compile("sgd", "mse", gradient_mode=private.gradient_mode)
    ...     return model
    >>> result = kpg.privacy.audit_privacy(
    ...     make_model, private, x, y, canaries=range(40), epochs=2
    ... )
    >>> result.ok
    True
    """
    if isinstance(make_model, keras.Model) or not callable(make_model):
        raise TypeError(
            "`make_model` must be a function without arguments that returns a "
            "new model, compiled with the gradient_mode of `private`. "
            f"Received: {make_model!r}"
        )
    rows = _canary_rows(canaries, private)
    confidence = probability("confidence", confidence)
    seed = seed_or_none(seed)
    if training is not None:
        function("training", training, "(model, data)")
    generator = np.random.default_rng(seed)
    is_in = generator.random(len(rows)) < 0.5
    data = private.batches(x, y, sample_weight).without(rows[~is_in])
    model = make_model()
    require_new(model, private.mechanism)
    batch = keras.utils.unpack_x_y_sample_weight(
        map_tensors(tf.convert_to_tensor, data.source.take(rows))
    )
    build_symbolically(model, batch)
    initial_weights = [v.numpy() for v in model.trainable_variables]
    losses = _canary_losses(model, batch)
    if training is None:
        model.fit(data, epochs=epochs, callbacks=[private.callback], verbose=0)
    else:
        training(model, data)
    scores = {
        "loss": losses - _canary_losses(model, batch),
        "gradient": _gradient_scores(model, batch, initial_weights),
    }
    by_score = {
        name: _best_bound(
            score,
            is_in,
            delta=private.delta,
            # Each score has its share of the error probability.
            error=(1 - confidence) / len(scores),
        )
        for name, score in scores.items()
    }
    return AuditResult(
        lower_bound=max(bound for bound, *_ in by_score.values()),
        claimed=private.statement(model)["epsilon"],
        delta=private.delta,
        confidence=confidence,
        canaries=len(rows),
        by_score=by_score,
    )


def _canary_rows(canaries, private):
    if not isinstance(private, PrivateTraining) or private.has_users:
        raise ValueError(
            "`private` must be a PrivateTraining whose unit is an example. "
            f"Received: private={private!r}"
        )
    mechanism = private.mechanism
    if not mechanism.selection.supports_canaries:
        raise ValueError(
            "Canaries are in the data or missing, while sampling="
            f"{mechanism.sampling!r} protects the exchange of one example for "
            "another. Audit the same model with sampling='poisson'."
        )
    rows = np.unique(np.asarray(canaries))
    if (
        rows.dtype.kind not in "iu"
        or len(rows) < 10
        or rows[0] < 0
        or rows[-1] >= mechanism.examples
    ):
        raise ValueError(
            "`canaries` expected at least 10 different rows of the "
            f"{mechanism.examples} examples, integers from 0, such as "
            f"range(100). Received: canaries={reprlib.repr(canaries)}"
        )
    return rows


def _canary_losses(model, batch):
    """Return the loss of each canary, (m,); nothing of the model changes."""

    @tf.function(autograph=False)
    def compute_losses(*batch):
        # One canary at a time: a layer cannot let others change its loss.
        def canary_loss(k):
            x, y, weight = map_tensors(lambda t: t[k : k + 1], batch)
            y_pred = model(x, training=False)
            return tf.cast(
                model.compute_loss(x, y, y_pred, weight, training=False),
                tf.float32,
            )

        count = tf.shape(tf.nest.flatten(batch)[0])[0]
        return tf.map_fn(
            canary_loss, tf.range(count), fn_output_signature=tf.float32
        )

    with out_of_scope():
        return np.asarray(run_and_restore(compute_losses, *batch))


def _gradient_scores(model, batch, initial_weights):
    """Return how far training moved against each canary's gradient, (m,)."""
    # Training on a canary moves the weights against its gradient.
    moved = [
        initial - variable.numpy()
        for initial, variable in zip(initial_weights, model.trainable_variables)
    ]
    return np.asarray(
        per_sample_dots(
            model, *batch, direction=moved, training=False, verbose=0
        )
    )


def _best_bound(score, is_in, *, delta, error):
    """Return the best lower bound of several numbers of guesses."""
    order = np.argsort(score, kind="stable")
    # Bonferroni: and so has each number of guesses.
    error /= len(_FRACTIONS)
    bounds = []
    for fraction in _FRACTIONS:
        per_side = max(int(fraction * len(score) / 2), 1)
        correct = (
            is_in[order[-per_side:]].sum() + (~is_in[order[:per_side]]).sum()
        )
        bound = epsilon_lower_bound(
            len(score),
            2 * per_side,
            int(correct),
            delta=delta,
            confidence=1 - error,
        )
        bounds.append((bound, 2 * per_side, int(correct)))
    return max(bounds)
