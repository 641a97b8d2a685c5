"""A search for hyper-parameters, with one guarantee for all trials.

Papernot and Steinke, "Hyperparameter tuning with Rényi differential privacy",
arXiv 2110.03620: a random number of trials, independent of each other and of
the same privacy, of which only the best is published.
"""

import dataclasses
import inspect
import json
import os
import pathlib
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import keras
import numpy as np

from keras_pergrad.common.arguments import (
    positive_integer,
    require_known,
    seed_or_none,
)
from keras_pergrad.privacy.accounting import compute_epsilon
from keras_pergrad.privacy.mechanism import TrialSearch
from keras_pergrad.privacy.random_access import make_source
from keras_pergrad.privacy.search_trials import (
    CLIP_NORM,
    SEARCH_FILE,
    Trial,
    Trials,
    draw_trials,
    make_score,
    read_json,
    require_same,
    write_json,
)
from keras_pergrad.privacy.selections import import_dp_accounting
from keras_pergrad.privacy.settings import CORRELATED, Settings
from keras_pergrad.privacy.statement import Statement
from keras_pergrad.privacy.statement_words import describe_noise
from keras_pergrad.privacy.training import PrivateTraining

_PARAMETERS = inspect.signature(PrivateTraining).parameters


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The best trial of a search; print it.

    Attributes:
        model: the trained model. Its ledger counts the whole search.
        private: the `PrivateTraining` that it was trained with.
        point: the hyper-parameters of the trial, name → value.
        score: the score of the trial; if it is private, the one with noise.
        plan: what the search spends, as it was printed before the training.
    """

    model: Any
    private: PrivateTraining
    point: dict[str, Any]
    score: float
    plan: str

    def statement(
        self, weights_file: str | os.PathLike[str] | None = None
    ) -> Statement:
        """Return what is guaranteed for the result, a `Statement`.

        Args:
            weights_file: the path of the file that is published; the
                statement then has its SHA-256.
        """
        return self.private.statement(self.model, weights_file)

    def __str__(self) -> str:
        point = ", ".join(f"{k}={v!r}" for k, v in self.point.items())
        return f"{self.plan}\n  best      {point}: score {self.score:.4g}"


def search(
    make_model: Callable[..., Any],
    space: Mapping[str, Sequence[Any] | Callable[[np.random.Generator], Any]],
    x: Any,
    y: Any = None,
    *,
    folder: str | os.PathLike[str],
    epochs: int,
    expected_trials: float,
    public_score: Callable[[Any], float] | None = None,
    private_score: Callable[[Any], Any] | None = None,
    score_noise: float | None = None,
    distribution: Literal["geometric", "logarithmic", "poisson"] = "geometric",
    sample_weight: Any = None,
    seed: int | None = None,
    verbose: int = 1,
    **training: Any,
) -> SearchResult:
    """Train with hyper-parameters drawn at random and return the best model.

    The number of trials is random and secret, and only the best trial is
    published. Epsilon then grows slowly with the expected number of trials,
    while the epsilons of tuning by hand add up (Papernot and Steinke, arXiv
    2110.03620). The noise of each trial is calibrated so that the search as a
    whole keeps to `target_epsilon`.

    | `distribution` | the number of trials |
    |---|---|
    | `"geometric"` | at least 1, sometimes several times the expected number |
    | `"logarithmic"` | often 1, rarely very many; needs less noise |
    | `"poisson"` | close to the expected number; if large, needs much noise |

    With "poisson" the number may be 0: then there is no result.

    Args:
        make_model: `make_model(private, **point)` returns a new
            `PerGradModel`, compiled with `private.gradient_mode`. Its random
            numbers come from the seeds of `keras.utils.set_random_seed`.
        space: name → a list of values, of which each is as likely as the
            others, or a function that draws a value from a
            `numpy.random.Generator`. Values are numbers, strings, booleans,
            None or lists. `clip_norm` goes to `PrivateTraining`, all others
            to `make_model`. What the privacy of a trial depends on, such as
            `batch_size`, is the same for all.
        x, y, sample_weight: the protected examples, as for
            `PrivateTraining.batches`.
        folder: where trials are recorded. An interrupted search that is
            called again continues with the same trials, draws and noise,
            and has the same result; other arguments or other examples
            are refused. The folder must stay secret.
        epochs: how many epochs each trial trains for.
        expected_trials: the mean of the number of trials, at least 1.
        public_score: `public_score(model)` returns a number from public data
            alone, the higher the better. It costs no privacy. NaN counts as
            the worst.
        private_score: instead of that, `private_score(model)` returns (n,)
            booleans: whether the model is right about each of n protected
            examples, of training or others. The score is their number, with
            Gaussian noise that is accounted for in each trial.
        score_noise: with `private_score`, the standard deviation of that
            noise, in examples.
        distribution: the distribution of the number of trials.
        seed: an integer makes the search repeatable; keep it secret, or omit
            it.
        verbose: 1 prints what the search spends before anything is trained.
        **training: the other arguments of `PrivateTraining`, such as
            `target_epsilon`, `delta`, `samples` and `batch_size`.

    Returns:
        A `SearchResult`.

    Raises:
        ValueError: an argument is out of range, `folder` has another search,
            or dp-accounting cannot account for such trials in a search.
        TypeError: `make_model` does not take the names of `space`.
        RuntimeError: the number of trials is 0.

    Example:

    >>> import keras, numpy as np, tempfile
    >>> import keras_pergrad as kpg
    >>> x = np.random.default_rng(0).normal(size=(80, 4))
    >>> y = x.sum(1, keepdims=True)
    >>> def make_model(private, learning_rate):
    ...     inputs = keras.Input((4,))
    ...     model = kpg.PerGradModel(inputs, keras.layers.Dense(1)(inputs))
    ...     sgd = keras.optimizers.SGD(learning_rate)
    ...     model.compile(sgd, "mse", gradient_mode=private.gradient_mode)
    ...     return model
    >>> def score(model):
    ...     return -model.evaluate(x[60:], y[60:], verbose=0)
    >>> best = kpg.privacy.search(
    ...     make_model,
    ...     {"learning_rate": [0.01, 0.1], "clip_norm": [0.5, 1.0]},
    ...     x[:60],
    ...     y[:60],
    ...     folder=tempfile.mkdtemp(),
    ...     public_score=score,
    ...     expected_trials=2,
    ...     target_epsilon=5.0,
    ...     delta=1e-3,
    ...     samples=60,
    ...     batch_size=20,
    ...     epochs=2,
    ...     user_ids="unique",
    ...     verbose=0,
    ... )
    >>> 4.99 < best.statement()["epsilon"] <= 5.0
    True
    """
    counted = TrialSearch(expected_trials, distribution, score_noise)
    _check_scores(public_score, private_score, score_noise)
    _check_space(make_model, space)
    _check_training(training, space, private_score)
    folder = pathlib.Path(folder)
    stored = read_json(folder / SEARCH_FILE)
    if stored:
        training = {**training, **_chosen_before(stored, training)}
    settings = Settings(
        **training, epochs=positive_integer("epochs", epochs), search=counted
    )
    private = _counted_trial(settings)
    seed = seed_or_none(seed)
    if seed is None:
        seed = stored["seed"] if stored else secrets.randbits(128)
    strategy, noise = private.mechanism.strategy, private.noise_multiplier
    record = {
        "settings": {
            **private.mechanism.to_dict(),
            "search": dataclasses.asdict(counted),
            "epochs": settings.epochs,
            "delta": settings.delta,
            "target_epsilon": settings.target_epsilon,
            "data": make_source(x, y, sample_weight).checksum(),
        },
        "seed": seed,
        "noise": noise if isinstance(noise, float) else None,
        "trials": draw_trials(space, counted, seed),
    }
    plan = _describe(private, space)
    if stored is None:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SEARCH_FILE, record)
    else:
        require_same(stored, json.loads(json.dumps(record)), folder)
    if verbose:
        print(plan)
    if not record["trials"]:
        raise RuntimeError(
            "The search has no result: its random number of trials is 0. The "
            "guarantee includes this case, so nothing was trained, and a "
            "search in this folder ends like this each time. The epsilon of "
            "another search on these examples adds to that of this one. "
            "distribution='geometric' has at least one trial."
        )
    trials = Trials(
        make_model,
        dataclasses.replace(
            settings,
            noise_multiplier=noise,
            bands=strategy and strategy.bands,
        ),
        data=(x, y, sample_weight),
        score=make_score(public_score, private_score, score_noise),
        trials=record["trials"],
        folder=folder,
    )
    # Not from the secret seed, nor from the state that a trial leaves.
    later_seed = random.getrandbits(32)
    try:
        model, private, point, score = trials.best()
    finally:
        keras.utils.set_random_seed(later_seed)
    return SearchResult(model, private, point, score=score, plan=plan)


def _check_scores(public_score, private_score, score_noise):
    if callable(public_score) == callable(private_score):
        raise ValueError(
            "Expected one function: `public_score`, which sees public data "
            "alone, or `private_score`, which says for each of the "
            "protected examples it gets whether the model is right. "
            f"Received: public_score={public_score!r}, "
            f"private_score={private_score!r}"
        )
    if (private_score is None) != (score_noise is None):
        raise ValueError(
            "Expected `score_noise` together with `private_score`: the number "
            "of right answers on protected examples needs noise, a public "
            f"score does not. Received: score_noise={score_noise!r}"
        )


def _check_space(make_model, space):
    fixed = _PARAMETERS.keys() - {CLIP_NORM}
    for name, choice in space.items():
        if name in fixed:
            raise ValueError(
                f"{name!r} cannot be searched for: the guarantee is for trials "
                f"of the same privacy. Give {name}=... to search(), for all "
                "trials. The one argument of PrivateTraining that `space` may "
                f"have is {CLIP_NORM!r}, to which the noise is relative."
            )
        is_list = isinstance(choice, (list, tuple, range, np.ndarray))
        if not callable(choice) and not (is_list and len(choice)):
            raise ValueError(
                "Each entry of `space` must be a list of values or a function "
                f"of a numpy.random.Generator. Received: {name}={choice!r}"
            )
    names = [name for name in space if name != CLIP_NORM]
    try:
        inspect.signature(make_model).bind(None, **dict.fromkeys(names))
    except TypeError as error:
        raise TypeError(
            f"`make_model` must be a function that can be called as "
            f"make_model(private, {', '.join(f'{n}=...' for n in names)}). "
            f"Received: {make_model!r} ({error})"
        ) from None


def _check_training(training, space, private_score):
    require_known("PrivateTraining", _PARAMETERS, training)
    if CLIP_NORM in space and training.get(CLIP_NORM) is not None:
        raise ValueError(
            "Expected `clip_norm` in `space` or for all trials. Received: "
            f"both, clip_norm={training[CLIP_NORM]!r}"
        )
    if training.get("continue_from") is not None:
        raise ValueError(
            "`continue_from` cannot be given to search(): all trials would "
            "add the noise that comes next in that model's ledger. Let "
            "`make_model` start from its weights instead, and add up both "
            "epsilons."
        )
    has_users = not isinstance(training.get("user_ids"), (str, type(None)))
    if private_score is not None and has_users:
        raise ValueError(
            "`private_score` counts examples, and a user may have any number "
            "of them. With `user_ids` expected a `public_score`. Received: "
            f"private_score={private_score!r}"
        )


def _chosen_before(stored, training):
    """Return the noise and the bands that were chosen when a search began."""
    strategy = stored["settings"]["strategy"]
    chosen = {"noise_multiplier": stored["noise"]}
    if strategy and training.get("noise") == CORRELATED:
        chosen["bands"] = len(strategy["coefficients"])
    return {k: v for k, v in chosen.items() if training.get(k) is None}


def _counted_trial(settings):
    """Return the training of a trial, which counts the search."""
    try:
        private = Trial(settings)
        private.epsilon()
    except import_dp_accounting().UnsupportedEventError as error:
        raise ValueError(
            "dp-accounting cannot account for such trials in a search, which "
            "needs Rényi differential privacy. With `user_ids`, expected "
            "samples_per_user=1. Received: samples_per_user="
            f"{settings.samples_per_user}"
        ) from error
    return private


def _describe(private, space):
    """Return the lines that say what a search spends."""
    steps, delta = private.steps, private.delta
    search: Any = private.mechanism.search
    one = dataclasses.replace(private.mechanism, search=None)
    count = round(search.expected_trials)
    score = "on public data"
    if search.score_noise is not None:
        score = (
            "right answers on protected examples, with noise of "
            f"{search.score_noise:g}"
        )
    rows = {
        "points": ", ".join(space) or "none",
        "trials": f"{search.expected_trials:g} expected "
        f"({search.distribution})",
        "score": score,
        "each": f"{steps} steps, noise "
        f"{describe_noise(one.noise_range(steps))} times the clip norm",
        "epsilon": f"{private.epsilon():.4g} for the search",
        "compare": f"{compute_epsilon(((one, steps),), delta):.4g} for one "
        "training run, "
        f"{compute_epsilon(((one, steps * count),), delta):.4g} for {count} "
        "separate ones",
        "delta": f"{delta:g}",
    }
    lines = [f"  {head:<9} {text}" for head, text in rows.items()]
    return "\n".join(["Private search (the best trial is published)", *lines])
