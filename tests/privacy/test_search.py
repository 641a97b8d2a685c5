"""A search costs what dp-accounting says, and goes on where it was killed."""

import json
import math

import dp_accounting as dp
import keras
import numpy as np
import pytest
from dp_accounting import rdp
from scipy import optimize, stats

import keras_pergrad as kpg
from keras_pergrad.privacy.accounting import compute_epsilon
from keras_pergrad.privacy.mechanism import Mechanism, TrialSearch
from keras_pergrad.privacy.search_trials import draw_trials
from keras_pergrad.privacy.statement import Statement
from tests.models.making import assert_equal, net
from tests.power_cut import PowerCut
from tests.privacy.tiny import N, X, Y, compile_privately, private, words

layers = keras.layers
X_PUBLIC = np.random.default_rng(7).normal(size=(30, 3)).astype("float32")
Y_PUBLIC = (X_PUBLIC.sum(1, keepdims=True) > 0).astype("float32")
SPACE = {
    "rate": [0.1, 0.5, 2.0],
    "clip_norm": lambda generator: 10 ** generator.uniform(-1, 0),
}
#: With this seed there are three trials, and the second is the best.
SEED = 16


def make_model(private, rate):
    parts = layers.Dropout(0.2), layers.Dense(1, activation="sigmoid")
    made = net(*parts, shape=(3,), units=None, cls=kpg.PerGradModel)
    return compile_privately(made, private, keras.optimizers.SGD(rate))


def public_score(model):
    return -model.evaluate(X_PUBLIC, Y_PUBLIC, verbose=0)


def is_right(model):
    return ((model.predict(X, verbose=0) > 0.5) == Y)[:, 0]


BY_ANSWERS = {
    "public_score": None,
    "private_score": is_right,
    "score_noise": 5.0,
}


def search(folder, make=make_model, space=SPACE, **arguments):
    defaults = {
        "public_score": public_score,
        "folder": folder,
        "epochs": 2,
        "expected_trials": 3,
        "noise_multiplier": 2.0,
        "delta": 1e-2,
        "samples": N,
        "batch_size": 12,
        "user_ids": "unique",
        "seed": SEED,
        "verbose": 0,
    }
    given = {**defaults, **arguments}
    x = given.pop("x", X)
    return kpg.privacy.search(make, space, x, y=Y, **given)


SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}


@pytest.mark.parametrize("distribution", SHAPES)
@pytest.mark.parametrize(
    ("sampling", "score_noise"),
    [("poisson", 8.0), ("fixed", None), ("shuffled", 8.0)],
)
def test_epsilon_is_that_of_the_library(distribution, sampling, score_noise):
    relation = dp.NeighboringRelation
    noise, wide = dp.GaussianDpEvent(3.0), dp.GaussianDpEvent(3.0 / 2)
    exchanged = dp.SampledWithoutReplacementDpEvent(1000, 100, wide)
    step, count, neighbours = {
        "poisson": (
            dp.PoissonSampledDpEvent(0.1, noise),
            25,
            relation.ADD_OR_REMOVE_ONE,
        ),
        "fixed": (exchanged, 25, relation.REPLACE_ONE),
        # Whole epochs of ten batches count, each as one look at all.
        "shuffled": (noise, 3, relation.REPLACE_SPECIAL),
    }[sampling]
    trial = [dp.SelfComposedDpEvent(step, count)]
    if score_noise:
        trial.append(dp.GaussianDpEvent(score_noise))
    event = dp.dp_event.RepeatAndSelectDpEvent(
        dp.ComposedDpEvent(trial), 7.5, SHAPES[distribution]
    )
    accountant = rdp.RdpAccountant(neighboring_relation=neighbours)
    expected = accountant.compose(event).get_epsilon(1e-5)
    counted = TrialSearch(7.5, distribution, score_noise)
    given = {"noise_multiplier": 3.0, "search": counted}
    one = Mechanism(sampling, 1000, 100, **given)
    found = compute_epsilon(((one, 25),), 1e-5)
    assert found == pytest.approx(expected, rel=1e-12)
    # Training that follows is added to the whole search.
    later = Mechanism(sampling, 1000, 100, noise_multiplier=3.0)
    accountant.compose(dp.SelfComposedDpEvent(step, count))
    found = compute_epsilon(((one, 25), (later, 25)), 1e-5)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-12)


def _distribution(name, mean):
    if name == "poisson":
        return stats.poisson(mean)
    if name == "geometric":
        return stats.geom(1 / mean)
    rate = optimize.brentq(
        lambda p: stats.logser.mean(p) - mean, 1e-9, 1 - 1e-9, xtol=1e-14
    )
    return stats.logser(rate)


@pytest.mark.parametrize("distribution", SHAPES)
@pytest.mark.parametrize("mean", [1.5, 6.0])
def test_the_number_of_trials_and_points_follow_their_formulas(
    distribution, mean
):
    search = TrialSearch(mean, distribution)
    searches = [
        draw_trials({"rate": [1, 2, 3]}, search, seed) for seed in range(800)
    ]
    counts = np.bincount([len(trials) for trials in searches], minlength=9)
    probabilities = _distribution(distribution, mean).pmf(range(8))
    # Classes 0 (or 1) to 7, and all that are larger.
    first = int(distribution != "poisson")
    observed = [*counts[first:8], counts[8:].sum()]
    expected = [*probabilities[first:], 1 - probabilities.sum()]
    assert not counts[:first].any()
    assert stats.chisquare(observed, 800 * np.array(expected)).pvalue > 1e-3
    # Seeds are fixed, so what passes once passes always.
    points = [t["point"]["rate"] for trials in searches for t in trials]
    assert stats.chisquare(np.bincount(points)[1:]).pvalue > 1e-3
    seeds = [s for trials in searches for t in trials for s in t["seeds"]]
    assert len(set(seeds)) > 0.9999 * len(seeds)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    return search(folder), folder


def test_the_best_trial_is_the_result(undisturbed):
    result, folder = undisturbed
    scores = [
        json.loads(path.read_text())["score"]
        for path in sorted(folder.glob("trial-*/result.json"))
    ]
    assert len(set(scores)) == 3
    assert result.score == max(scores)
    assert public_score(result.model) == pytest.approx(result.score, rel=1e-6)
    trials = json.loads((folder / "search.json").read_text())["trials"]
    assert result.point == trials[scores.index(max(scores))]["point"]
    assert result.private.clipping.clip_norm == result.point["clip_norm"]
    assert float(result.model.optimizer.learning_rate) == pytest.approx(
        result.point["rate"]
    )
    assert f"score {result.score:.4g}" in str(result)


def test_its_statement_counts_the_whole_search(undisturbed, tmp_path):
    result, _ = undisturbed
    steps = 2 * math.ceil(N / 12)
    step = dp.PoissonSampledDpEvent(12 / N, dp.GaussianDpEvent(2.0))
    event = dp.dp_event.RepeatAndSelectDpEvent(
        dp.SelfComposedDpEvent(step, steps), 3, 1
    )
    expected = rdp.RdpAccountant().compose(event).get_epsilon(1e-2)
    statement = result.statement()
    assert statement["epsilon"] == pytest.approx(expected, rel=1e-12)
    assert statement["accountant"] == "RDP"
    assert not statement["outside"]
    assert not statement["planned"]
    (phase,) = statement["phases"]
    assert (phase["steps"], phase["search"]["expected_trials"]) == (steps, 3)
    for part in (
        "the best of a random number of such trials (geometric, with a mean "
        "of 3), by a score on public data",
        "the score of the search is computed from public data only",
        "not the number of trials",
        "except the trials of kpg.privacy.search",
    ):
        assert part in words(statement)
    assert str(Statement(json.loads(json.dumps(statement)))) == str(statement)
    # Who saves the model and goes on with it begins from the whole search.
    result.model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    more = private(batch_size=12, continue_from=loaded)
    assert more.epsilon(0) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("where", ["in a trial", "between trials"])
def test_a_search_that_was_killed_ends_as_an_undisturbed_one(
    where, undisturbed, tmp_path, *, monkeypatch
):
    expected, folder = undisturbed
    fits, net_class = [], kpg.PerGradModel
    fit = net_class.fit

    def dying_fit(self, *arguments, callbacks, **others):
        fits.append(self)
        if len(fits) == 2 and where == "in a trial":
            callbacks = [*callbacks, PowerCut()]
        if len(fits) == 2 and where == "between trials":
            raise RuntimeError("power cut")
        return fit(self, *arguments, callbacks=callbacks, **others)

    monkeypatch.setattr(net_class, "fit", dying_fit)
    with pytest.raises(RuntimeError, match="power cut"):
        search(tmp_path)
    assert [p.parent.name for p in tmp_path.glob("trial-*/result.json")] == [
        "trial-1"
    ]
    # The seed of the folder counts, where none is given.
    result = search(tmp_path, seed=None)
    assert len(fits) == 4  # of three trials, the second twice
    for name in ("search.json", *(f"trial-{k}/result.json" for k in (1, 2, 3))):
        assert (tmp_path / name).read_text() == (folder / name).read_text()
    assert result.point == expected.point
    assert_equal(result.model.get_weights(), expected.model.get_weights())
    # Once more: nothing is trained.
    again = search(tmp_path)
    assert len(fits) == 4
    assert again.score == expected.score


def test_the_budget_is_of_the_whole_search(tmp_path, capsys):
    """Also with a score that costs some; the noise is enough and no more."""
    result = search(
        tmp_path,
        noise_multiplier=None,
        target_epsilon=6.0,
        expected_trials=1.5,
        verbose=1,
        **BY_ANSWERS,
    )
    statement = result.statement()
    assert 5.99 < statement["epsilon"] <= 6
    (phase,) = statement["phases"]
    assert phase["search"]["score_noise"] == 5
    said = "standard deviation 5 on the number of right answers"
    assert said in words(statement)
    printed = capsys.readouterr().out
    assert "1.5 expected (geometric)" in printed
    assert f"{statement['epsilon']:.4g} for the search" in printed
    assert "for 2 separate ones" in printed
    # Noise on the count, drawn from the trial's own seed.
    trials = json.loads((tmp_path / "search.json").read_text())["trials"]
    number = [trial["point"] for trial in trials].index(result.point)
    noise = np.random.default_rng(trials[number]["seeds"][2])
    expected = is_right(result.model).sum() + noise.normal(0, 5)
    assert result.score == pytest.approx(expected)


def test_a_search_may_have_no_trial(tmp_path):
    arguments = {"distribution": "poisson", "expected_trials": 1.0}
    drawn = TrialSearch(**arguments)
    seed = next(s for s in range(99) if not draw_trials(SPACE, drawn, s))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="number of trials is 0"):
            search(tmp_path, **arguments, seed=seed)


USERS = {"user_ids": range(N), "samples_per_user": 1}
TWO_OF_EACH = {**USERS, "samples_per_user": 2}
REFUSED = {
    "`expected_trials` expected": {"expected_trials": 0.5},
    "`distribution` expected one of": {"distribution": "binomial"},
    "Expected one function": {"public_score": None},
    "Received: public_score=": {"private_score": is_right, "score_noise": 1.0},
    "together with `private_score`": {"score_noise": 1.0},
    "`score_noise` expected a positive": {**BY_ANSWERS, "score_noise": 0.0},
    "'batch_size' cannot be searched for": {"space": {"batch_size": [1]}},
    "must be a list of values or a function": {"space": {"rate": []}},
    "are recorded, so that": {"space": {"rate": [keras.optimizers.SGD()]}},
    "in `space` or for all trials": {"clip_norm": 1.0},
    "`continue_from` cannot be given": {"continue_from": object()},
    "With `user_ids` expected a `public_score`": {**BY_ANSWERS, **USERS},
    "account for such trials.*samples_per_user=1. Rec": TWO_OF_EACH,
    "not enough for the search": {"target_epsilon": 2.0},
    "Received: both, epochs": {"steps": 3},
    "`epochs` expected a positive": {"epochs": 0},
}


@pytest.mark.parametrize("message", REFUSED)
def test_arguments_are_refused_before_anything_is_written(message, tmp_path):
    folder = tmp_path / "search"
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        search(folder, **REFUSED[message])
    assert not folder.exists()


def test_functions_that_make_or_score_no_model_are_refused(tmp_path):
    shared = layers.Dense(1, activation="sigmoid")
    generator = np.random.default_rng(0)

    def make_shared(private, rate):
        made = net(shared, shape=(3,), units=None, cls=kpg.PerGradModel)
        return compile_privately(made, private)

    def make_unlike(private, rate):
        made = make_model(private, rate)
        made.set_weights([generator.normal(size=(3, 1)), np.zeros(1)])
        return made

    def scores(model):
        return model.predict(X, verbose=0)

    with pytest.raises(TypeError, match=r"make_model\(private, rate=\.\.\.\)"):
        search(tmp_path / "none", make=lambda private: None)
    by_scores = {**BY_ANSWERS, "private_score": scores}
    for message, arguments in {
        "must return a new model, compiled": {"make": lambda private, rate: 0},
        "models that share 2 variables": {"make": make_shared},
        "other weights for the same seeds": {"make": make_unlike},
        "must return booleans of shape": by_scores,
    }.items():
        with pytest.raises(ValueError, match=message):
            search(tmp_path / message, **arguments)


def test_another_search_does_not_go_on_in_a_folder(undisturbed):
    _, folder = undisturbed
    for name, arguments in {
        "seed": {"seed": SEED + 1},
        "batch_size": {"batch_size": 10},
        "epochs": {"epochs": 3},
        "space": {"space": {**SPACE, "rate": [0.1, 0.5, 2.5]}},
        "distribution": {"distribution": "logarithmic"},
        "data": {"x": X + 1},
    }.items():
        with pytest.raises(ValueError, match=f"other arguments: {name}[,.]"):
            search(folder, **arguments)


def test_the_bands_are_chosen_for_the_budget(tmp_path):
    def untrained(private, rate):
        raise InterruptedError(private.mechanism.strategy)

    arguments = {
        "noise": "correlated",
        "target_epsilon": 20.0,
        "noise_multiplier": None,
    }
    with pytest.raises(InterruptedError, match="banded"):
        search(tmp_path, untrained, **arguments)
