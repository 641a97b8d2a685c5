"""The statement says what holds, on what assumptions, and what does not."""

import hashlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import norm

import keras_pergrad as kpg
from keras_pergrad.privacy import statement as statements
from keras_pergrad.privacy.statement import Statement
from keras_pergrad.privacy.trade_off import bound_curve
from tests.privacy import tiny
from tests.privacy.tiny import N, X, Y, fit, fitted, model, private, words

USERS = {"user_ids": np.arange(N) // 4, "samples_per_user": 2}


@keras.saving.register_keras_serializable("tests")
class Halved(kpg.ClippedMean):
    def weights(self, norms):
        return super().weights(norms) / 2


def by_user(most=2):
    return private(**{**USERS, "samples_per_user": most})


def test_a_plan():
    training = private(target_epsilon=3.0, epochs=2)
    statement = training.statement()
    assert statement["planned"]
    assert statement["epsilon"] == training.epsilon() < 3
    text = str(statement)
    for part in (
        f"({training.epsilon():.4g}, 0.01)-differentially private",
        "The weights would be",
        "one example added or removed",
        "with probability 0.25",
        "nobody who sees the result knows",
        "each sample weight depends only on its own",
        "each example keeps its index",
        "no other training on these examples has changed",
        "the `seed` that was given",
        "comes from a different person, as user_ids='unique' states",
        "floating point",
        "hyper-parameters",
        "evaluated on these examples",
        "preprocessing that saw",
        "clipped_fraction",
        "plain keras.Model",
    ):
        assert part in words(text)
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_plan_without_steps_has_no_statement():
    with pytest.raises(ValueError, match="number of steps is not known"):
        private().statement()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sampling": "shuffled"}, "no amplification by sampling"),
        ({"sampling": "shuffled"}, "each epoch goes through"),
        ({"sampling": "fixed"}, "one example replaced by another"),
        ({"sampling": "fixed"}, "each batch is 10"),
        (
            {"user_ids": None},
            "different person: a person with several has less",
        ),
        ({"seed": None}, "the key of noise and batches, 128 bits from"),
        (tiny.VIEWS, "`augment` makes each view from one example only"),
        (
            {"clipping": Halved(1.0), "vouched": ["Halved"]},
            "Halved keeps the gradient of each sample within its clip_norm; "
            "the user vouches for this",
        ),
        (USERS, "one user added or removed"),
        (USERS, "`user_ids` are correct; at most 2 examples of each user"),
    ],
)
def test_kinds(arguments, said):
    assert said in words(private(steps=1, **arguments).statement())


@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_what_one_gaussian_mechanism_gives_away(noise):
    """An epoch of shuffled batches is one: its curve has closed formulas."""
    training = private(
        noise_multiplier=noise, sampling="shuffled", epochs=1, delta=1e-5
    )
    statement, mu = training.statement(), 1 / noise
    assert mu <= statement["mu"] <= 1.01 * mu
    for wrong, found in statement["true_positive_rates"]:
        exact = norm.cdf(norm.ppf(wrong) + mu)
        assert exact <= found <= 1.02 * exact
    for delta, epsilon in statement["epsilons"]:
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        exact = norm.cdf(a) - np.exp(epsilon) * norm.cdf(b)
        assert 0.95 * delta <= exact <= delta
    text = words(statement)
    assert "wrongly accuses 1 in 100 examples that were not used" in text
    assert f"mu is {statement['mu']:.4g}" in text


@pytest.mark.parametrize(
    "sampling", ["poisson", "fixed", "shuffled", "ordered"]
)
def test_an_attacker_finds_no_more_than_each_pair_allows(sampling):
    """The curve of the page is not below what is stated, nor above a pair."""
    statement = private(steps=30, delta=1e-4, sampling=sampling).statement()
    wrong, stated = np.transpose(statement["true_positive_rates"])
    assert np.all(wrong < stated)
    assert np.all(np.diff(stated) <= 0)
    found = bound_curve(statement, wrong)
    assert np.all(stated <= found + 1e-12)
    own = statement["delta"], statement["epsilon"]
    for delta, epsilon in (own, *statement["epsilons"]):
        assert np.all(found <= np.exp(epsilon) * wrong + delta + 1e-12)
    wrong = np.linspace(0, 1, 101)
    found = bound_curve(statement, wrong)
    assert np.all(np.diff(found) >= 0)
    assert np.all((wrong <= found) & (found <= 1 + 1e-9))
    assert (statement["mu"] is None) == (statement["accountant"] == "RDP")
    saved = json.loads(json.dumps(statement))
    assert Statement(saved) == statement
    assert str(Statement(saved)) == str(statement)


def test_it_is_a_dict_of_the_date_versions_and_what_is_published(tmp_path):
    path = tmp_path / "published.weights.h5"
    path.write_bytes(b"weights")
    statement = private(steps=4).statement(weights_file=path)
    sha256 = hashlib.sha256(b"weights").hexdigest()
    assert statement["weights_sha256"] == sha256
    versions = " ".join(statement["versions"])
    assert versions == "keras_pergrad tensorflow keras dp-accounting"
    (phase,) = statement["phases"]
    assert (phase["samples"], phase["samples_per_user"]) == (N, 1)
    assert phase["noise_multiplier"] == [2.0, 2.0]
    assert statement["accountant"] == "PLD"
    assert dict(statement)["unit"] == "example"
    for part in (
        sha256,
        f"Made on {statement['date']} (UTC)",
        f"keras_pergrad {kpg.__version__}",
        f"tensorflow {tf.__version__}",
        f"keras {keras.__version__}",
        "class weights computed from their labels",
    ):
        assert part in words(statement)
    assert "SHA-256" not in str(private(steps=4).statement())


def test_statements_of_earlier_versions_are_printed():
    statement = dict(private(steps=4).statement())
    for unsaid, missing in {
        "attacker": ("mu", "epsilons", "true_positive_rates"),
        "Made on": ("date", "versions", "weights_sha256"),
    }.items():
        kept = {k: v for k, v in statement.items() if k not in missing}
        assert unsaid in str(Statement(statement))
        assert unsaid not in str(Statement(kept))


Adaptive = kpg.privacy.AdaptiveClippedMean
decay = keras.optimizers.schedules.ExponentialDecay(1.0, 10, 0.5)
CLIPPINGS = {
    "gradients clipped to norm 1": kpg.ClippedMean(1.0),
    "each layer to its equal part": kpg.ClippedMean(0.5, per="layer"),
    "scaled to norm 2 (automatic": kpg.privacy.AutomaticClippedMean(2.0),
    "0.1 at first, which then follows the 0.5": Adaptive(0.1),
    "of a schedule (ExponentialDecay)": kpg.ClippedMean(decay),
}


@pytest.mark.parametrize("said", CLIPPINGS)
def test_clipping_is_said_in_words_and_kept_as_json(said):
    clipping = CLIPPINGS[said]
    noise = 30.0 if isinstance(clipping, Adaptive) else 2.0
    training = private(steps=4, clipping=clipping, noise_multiplier=noise)
    statement = training.statement()
    for text in (str(statement), str(training)):
        assert said in words(text)
        assert "{" not in text
    kept = json.loads(statement["phases"][0]["clipping"])
    assert list(kept) == [type(clipping).__name__]


def test_what_is_planned_can_be_printed():
    training = private(target_epsilon=3.0, epochs=2)
    epsilon = f"{training.epsilon():.4g}"
    lines = dict(
        line.split(maxsplit=1) for line in str(training).splitlines()[1:]
    )
    expected = {
        "steps": "8 (2 epochs)",
        "batches": "10 of 40 examples, poisson",
        "clipping": "gradients clipped to norm 1",
        "noise": "2 times that norm",
        "unit": "an example, each from a different person",
        "epsilon": f"{epsilon} after these steps, budget 3",
        "delta": "0.01",
    }
    assert {**lines, **expected} == lines
    assert "which training stops before" not in str(training)
    assert "clip_norm=1.0, steps=8" in repr(training)
    small = private(target_epsilon=0.9 * training.epsilon(), epochs=2)
    assert "after these steps, which training stops before" in str(small)
    text = str(private(user_ids=None))
    for said in (
        "not planned",
        "see epsilon(steps)",
        "and a person may have several",
    ):
        assert said in text
    assert "a user, with at most 2 examples" in str(by_user())


def of_phases(*trainings):
    phases = [(training.mechanism, 1) for training in trainings]
    return Statement.of(phases, 1e-2, None)


def test_phases_that_sample_alike_have_one_assumption():
    text = str(of_phases(private(), private(noise_multiplier=3.0)))
    assert text.count("Phase:") == 2
    assert text.count("in a batch with probability") == 1


def test_whom_it_is_for_is_what_the_model_was_trained_for():
    """Not what the object says that is asked for the statement."""
    with pytest.warns(UserWarning, match="guarantee is for one example"):
        net = fitted(private(user_ids=None))
    for other in (private(), by_user(1)):
        found = other.statement(net)
        assert found["unit"] == "example"
        assert "a person with several has less" in words(found)
    net = fitted(by_user())
    assert private().statement(net)["unit"] == "user"
    # A phase that is for examples alone is no guarantee for users.
    tiny.compile_privately(net, private())
    fit(net, private())
    assert private().statement(net)["unit"] == "example"
    # Users of one example are users.
    assert of_phases(by_user(1))["unit"] == "user"
    assert of_phases(by_user(), by_user())["unit"] == "user"
    for other in (by_user(1), private()):
        assert of_phases(by_user(), other)["unit"] == "example"


def test_figures_in_the_logs_are_without_noise():
    """As the statement says: the loss of the examples is the exact one."""
    training = private(batch_size=N, noise_multiplier=100.0)
    net = model(training)
    expected = net.evaluate(X, Y, verbose=0)
    assert fit(net, training)["loss"] == pytest.approx([expected], rel=1e-5)
    text = words(training.statement(net))
    assert all(part in text for part in statements._NOT_COVERED)


class Untyped(keras.layers.Layer):
    """Does what no type rule knows, to each sample by itself."""

    def call(self, x):
        found = tf.numpy_function(np.sin, [x], tf.float32, stateful=False)
        return tf.stop_gradient(tf.ensure_shape(found, [None, 3]))


def test_what_is_proved():
    training = private(steps=4)
    net = model(training)
    promise = "clipped gradient depends on that example alone: "
    for plan in (training.statement(), training.statement(net)):
        assert f"{promise}this will be proved for all ops" in words(plan)
    fit(net, training)
    found = training.statement(net)
    (count,) = net.aggregation_state.proof.ops
    assert count > 5
    assert f"{promise}proved for all {count} ops of the step." in words(found)
    assert found["vouched"] == []
    # What an earlier version has written tells nothing of it.
    record = net.aggregation_state.record()
    del record["proof"]
    other = model(training)
    other.aggregation_state.add_record(record)
    assert "was not recorded" in words(training.statement(other))


def test_what_is_vouched_for(training, tmp_path):
    own = {"parts": [Untyped(name="own")]}
    net = model(training, **own)
    with tiny.refused(net, r"vouch for it: .*\['own'\]"):
        fit(net, training)
    net = model(training, **own, vouched=["own"])
    text = words(training.statement(net))
    assert "except what you vouch for: ['own']" in text
    fit(net, training)
    net.save(tmp_path / "net.keras")
    known = {"Untyped": Untyped}
    loaded = keras.saving.load_model(tmp_path / "net.keras", known)
    assert loaded.vouched == ("own",)
    # It stays, whatever is vouched for later.
    tiny.compile_privately(net, training)
    for one in (net, loaded):
        found = training.statement(one)
        assert found["vouched"] == ["own"]
        text = words(found)
        assert "except 1 (PyFunc" in text
        assert "compile(vouched=['own'])" in text
        assert "vouches for processes each example separately: own" in text
    after = private(continue_from=net, steps=4)
    assert after.statement()["vouched"] == ["own"]
