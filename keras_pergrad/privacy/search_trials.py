"""The trials of a search: their draws, their record and their training."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_pergrad.common.machine import write_atomically
from keras_pergrad.common.numbers import weights_checksum
from keras_pergrad.keras_internals.models.parts import build_symbolically
from keras_pergrad.privacy.ledger import require_new
from keras_pergrad.privacy.settings import Settings
from keras_pergrad.privacy.training import PrivateTraining
from keras_pergrad.proof.traced_aside import SEED

#: Separates these draws from others made from the same seed.
_SEARCH_DOMAIN = 0x736561
#: What a point may set of `PrivateTraining`: the noise is relative to it.
CLIP_NORM = "clip_norm"


def trial_distribution(name, mean):
    """Return the distribution of the number of trials, of SciPy."""
    from scipy import optimize, stats

    if name == "poisson":
        return stats.poisson(mean)
    if name == "geometric" or mean == 1:
        return stats.geom(1 / mean)
    # P(k) ∝ (1 - gamma)^k / k. With t = -log(gamma) its mean is (e^t - 1) / t.
    t: Any = optimize.brentq(
        lambda t: math.expm1(t) - mean * t,
        min(mean - 1, 1),
        2 * math.log(mean) + 2,
    )
    return stats.logser(-math.expm1(-t))


def draw_trials(space, search, seed):
    """Return the point and the seeds of each trial, for JSON."""

    def make_generator(number):
        return np.random.default_rng([_SEARCH_DOMAIN, seed % 2**128, number])

    distribution = trial_distribution(
        search.distribution, search.expected_trials
    )
    count = int(distribution.rvs(random_state=make_generator(0)))
    trials = []
    for number in range(1, count + 1):
        generator = make_generator(number)
        seeds = generator.integers(2**32, size=3)
        point = {
            name: _draw_value(name, choice, generator)
            for name, choice in space.items()
        }
        # That of noise and batches has more bits.
        seeds = seeds[0], generator.integers(2**63), seeds[2]
        trials.append({"seeds": [int(s) for s in seeds], "point": point})
    return trials


def _draw_value(name, choice, generator):
    if callable(choice):
        value = choice(generator)
    else:
        value = choice[int(generator.integers(len(choice)))]
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        raise ValueError(
            "The values of `space` are recorded, so that it can continue: "
            "expected numbers, strings, booleans, None or lists. Received: "
            f"{name}={value!r}. Give a name, and let make_model look it up."
        ) from None


SEARCH_FILE, _RESULT_FILE = "search.json", "result.json"
_WEIGHTS_FILE = "model.weights.h5"


def write_json(path, content):
    """Write a JSON file, so that it is complete or does not exist."""
    text = json.dumps(content, indent=1, sort_keys=True).encode()
    write_atomically(path, lambda file: file.write(text))


def read_json(path):
    """Return the content of a JSON file; None if there is none."""
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def require_same(stored, record, folder):
    """Refuse to continue a search that began with other arguments."""
    before, now = (
        {**r["settings"], **r["settings"]["search"], "search": None}
        for r in (stored, record)
    )
    others = [k for k in now if before.get(k) != now[k]]
    others += ["seed"] * (stored["seed"] != record["seed"])
    if stored["trials"] != record["trials"] and not others:
        others = ["space"]
    if others:
        raise ValueError(
            f"The folder {str(folder)!r} has a search that began with "
            f"other arguments: {', '.join(others)}. Expected the same ones, "
            "to continue it, or another folder: the epsilons of both searches "
            "then add up."
        )


class Trial(PrivateTraining):
    """The training of a trial, by `Settings` that name the search."""

    def __init__(self, settings):
        self._follow(settings)

    def note_trained(self, model):
        """Let `statement()` accept a model whose weights were loaded."""
        self._models.add(model)


@dataclasses.dataclass(frozen=True)
class Trials:
    """The trials of a search, each in a folder of its own."""

    make_model: Callable[..., Any]
    settings: Settings
    _: dataclasses.KW_ONLY
    data: tuple[Any, Any, Any]
    score: Callable[[Any, int], float]
    trials: list[dict[str, Any]]
    folder: pathlib.Path

    def best(self):
        """Train the trials that have no result yet; return the best of all."""
        results = [
            read_json(self._path(number) / _RESULT_FILE)
            for number in range(len(self.trials))
        ]
        if None in results:
            self._require_new_models(results.index(None))
        scores = [
            (result or self._train(number))["score"]
            for number, result in enumerate(results)
        ]
        # Trials are independent and alike: of equal scores any may be taken.
        best = scores.index(max(scores))
        model, private, _ = self._new(best)
        model.load_weights(self._path(best) / _WEIGHTS_FILE)
        private.note_trained(model)
        return model, private, self.trials[best]["point"], scores[best]

    def _path(self, number):
        return self.folder / f"trial-{number + 1}"

    def _new(self, number):
        """Return the model, training and batches of a trial that begins."""
        model_seed, training_seed, _ = self.trials[number]["seeds"]
        point = dict(self.trials[number]["point"])
        own = {k: point.pop(k) for k in [CLIP_NORM] if k in point}
        settings = dataclasses.replace(self.settings, seed=training_seed, **own)
        private = Trial(settings)
        keras.utils.set_random_seed(model_seed)
        model = self.make_model(private, **point)
        require_new(model, private.mechanism)
        batches = private.batches(*self.data)
        spec = keras.utils.unpack_x_y_sample_weight(batches.spec)
        build_symbolically(model, spec)
        return model, private, batches

    def _require_new_models(self, number):
        """Refuse models that share variables or begin with other weights."""
        one, another = (self._new(number)[0] for _ in range(2))
        shared = {id(v) for v in one.trainable_variables} & {
            id(v) for v in another.trainable_variables
        }
        if shared or weights_checksum(one) != weights_checksum(another):
            found = (
                f"models that share {len(shared)} variables, so that a trial "
                "would continue where another ended"
                if shared
                else "other weights for the same seeds"
            )
            raise ValueError(
                "`make_model` must return a new model each time, with equal "
                "weights after keras.utils.set_random_seed. Received: "
                f"{found}. Create layers inside make_model, and draw numbers "
                "from Keras's, NumPy's and Python's global generators."
            )

    def _train(self, number):
        """Train a trial, or continue it, and record its result."""
        path = self._path(number)
        path.mkdir(exist_ok=True)
        model, private, batches = self._new(number)
        backup = keras.callbacks.BackupAndRestore(str(path / "backup"))
        seeds = self.trials[number]["seeds"]
        model.fit(
            batches,
            epochs=self.settings.epochs,
            callbacks=[private.callback, backup, _EpochSeeds(seeds[0])],
            verbose=0,
        )
        ledger = model.aggregation_state
        planned = (private.mechanism, private.steps)
        if ledger.spent != (planned,) or ledger.outside:
            raise ValueError(
                "A trial did not train as planned, so it cannot be "
                f"counted. Expected {private.steps} steps. Received: "
                f"{ledger.updates}. Let make_model return a model that trains "
                "to the end, and begin in another folder."
            )
        score = self.score(model, seeds[2])
        model.save_weights(path / _WEIGHTS_FILE)
        result = {"score": -math.inf if math.isnan(score) else float(score)}
        write_json(path / _RESULT_FILE, result)
        return result


class _EpochSeeds(keras.callbacks.Callback):
    """Sets the seeds of random layers by the number of the epoch."""

    # `BackupAndRestore` does not keep the seeds of Dropout and the like.

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def on_epoch_begin(self, epoch, logs=None):
        seeds = [v for v in self.model.variables if v.name == SEED]
        for number, seed in enumerate(seeds):
            words = np.random.SeedSequence([self.seed, epoch, number])
            seed.assign(words.generate_state(2))


def make_score(public_score, private_score, noise):
    """Return a score as a function of the model and of a seed for noise."""

    def count(model, seed):
        right = np.asarray(private_score(model))
        if right.dtype != bool or right.ndim != 1:
            raise ValueError(
                "`private_score` must return booleans of shape (n,), one for "
                "each protected example, so that each changes the score by "
                f"at most 1. Received: {right.dtype} of shape {right.shape}"
            )
        return right.sum() + np.random.default_rng(seed).normal(0, noise)

    if public_score is None:
        return count
    return lambda model, seed: public_score(model)
