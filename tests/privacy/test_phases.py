"""A phase goes on only if everything that decides its draws is the same."""

import collections
import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import dp_accounting as dp
import keras
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting import pld

import keras_pergrad as kpg
from tests.marks import few
from tests.models.making import assert_equal
from tests.power_cut import PowerCut
from tests.privacy import tiny
from tests.privacy.tiny import NO_DATA, N, noise_of, normal_draws, private, sgd

GOES_ON, NEW, REFUSED = "goes on", "new phase", "refused"


def events_of(training, steps):
    """The events of dp-accounting that so many steps are."""
    m = training.mechanism
    if m.strategy is not None:
        column = m.strategy.times(np.arange(steps) == 0.0)
        noise = dp.GaussianDpEvent(2.0 / float(np.linalg.norm(column)))
        if m.sampling == "ordered":  # in one epoch
            return [noise]
        step = dp.PoissonSampledDpEvent(m.rate * m.strategy.bands, noise)
        return [step] * math.ceil(steps / m.strategy.bands)
    if m.sampling != "poisson":
        epochs = math.ceil(steps / m.steps_per_epoch)
        return [dp.GaussianDpEvent(2.0)] * epochs
    events = []
    for noise, many in collections.Counter(m.noise(0, steps).tolist()).items():
        event = dp.GaussianDpEvent(noise / m.examples_per_user)
        if m.rate < 1:
            event = dp.PoissonSampledDpEvent(m.rate, event)
        events.append(dp.SelfComposedDpEvent(event, many))
    return events


def epsilon_of(phases):
    """Epsilon of (`PrivateTraining`, steps) by dp-accounting, up to 1e-4."""
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if any(t.mechanism.sampling != "poisson" for t, _ in phases):
        relation = dp.NeighboringRelation.REPLACE_SPECIAL
    events = [event for phase in phases for event in events_of(*phase)]
    accountant = pld.PLDAccountant(relation)
    accountant.compose(dp.ComposedDpEvent(events))
    return pytest.approx(accountant.get_epsilon(1e-2), abs=1e-4)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table on the page of private training.

    Attributes:
        happens: what it says.
        after, before: arguments of `PrivateTraining`, in the second `fit` and
            beside the defaults in both.
        data: those of the second `fit`.
        change: a function of the model before the second `fit`.
        compiled: arguments of `model`, then.
        match: part of the message where it is refused.
    """

    happens: str
    after: dict[str, Any] = dataclasses.field(default_factory=dict)
    before: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: Any = NO_DATA
    change: Callable[[Any], Any] | None = None
    compiled: dict[str, Any] = dataclasses.field(default_factory=dict)
    match: str = ""


def shifted(scale):
    return lambda x: x + scale * keras.random.normal(keras.ops.shape(x))


def freeze(net):
    net.layers[-1].bias.trainable = False


def on_two_replicas(net):
    ledger = net.aggregation_state
    ledger.phase = dataclasses.replace(ledger.phase, replicas=2)


ids = np.repeat(np.arange(N // 4), 4)
#: All that are used are in each batch.
USERS = {"user_ids": ids, "samples_per_user": 1, "batch_size": N // 4}
TWICE = {"samples_per_user": 2, "batch_size": N // 2}
VIEWS = {"augmentations": 2, "augment": shifted(0.1)}
BANDED = {"noise": "correlated", "bands": 2, "steps": 8}
SHUFFLED = {"sampling": "shuffled"}
falling = keras.optimizers.schedules.PiecewiseConstantDecay([2], [2.0, 1.0])
ROWS = {
    "nothing": Row(GOES_ON),
    "steps": Row(GOES_ON, {"steps": 30}),
    "budget and delta": Row(GOES_ON, {"target_epsilon": 90.0}),
    "learning rate": Row(GOES_ON, compiled={"rate": 0.5}),
    "seed": Row(NEW, {"seed": 4}),
    "no seed": Row(GOES_ON, before={"seed": None}),
    "data": Row(NEW, data=(NO_DATA[0] + 1, *NO_DATA[1:])),
    "order of the data": Row(NEW, data=(NO_DATA[0], tiny.Y[::-1], NO_DATA[2])),
    "samples": Row(NEW, {"samples": 30}, data=[part[:30] for part in NO_DATA]),
    "rows": Row(REFUSED, data=[d[:30] for d in NO_DATA], match="samples=40"),
    "batch size": Row(NEW, {"batch_size": 10}),
    "sampling": Row(NEW, SHUFFLED),
    "order": Row(NEW, {"sampling": "ordered"}, SHUFFLED),
    "relation": Row(REFUSED, {"sampling": "fixed"}, match="holds for both"),
    "replicas": Row(NEW, change=on_two_replicas),
    "noise multiplier": Row(NEW, {"noise_multiplier": 3.0}),
    "schedule": Row(GOES_ON, before={"noise_multiplier": falling}),
    "clip norm": Row(NEW, {"clip_norm": 0.5}),
    "clipping": Row(NEW, {"clipping": kpg.privacy.AutomaticClippedMean()}),
    "trainable": Row(NEW, change=freeze),
    "users": Row(NEW, {"user_ids": np.roll(ids, 1)}, USERS),
    "most of a user": Row(NEW, TWICE, USERS),
    "views": Row(NEW, {"augmentations": 3}, VIEWS),
    "augment": Row(NEW, {"augment": shifted(0.2)}, VIEWS),
    "bands": Row(NEW, {"bands": 1}, BANDED),
    "noise": Row(NEW, {"noise": "independent", "bands": None}, BANDED),
    "correlated": Row(GOES_ON, before=BANDED),
    "earlier noise": Row(
        NEW, {"earlier_noise": "redrawn"}, {**BANDED, "sampling": "ordered"}
    ),
}
QUICK = {"nothing", "seed", "schedule", "replicas", "clip norm"}


@pytest.mark.parametrize("name", few([*ROWS], [*ROWS], killers=QUICK))
def test_what_happens_when_it_changes(name, tmp_path):
    row = ROWS[name]
    first = private(**{"batch_size": 20, **row.before})
    second = private(**{"batch_size": 20, **row.before, **row.after})
    net = sgd(first)
    found = noise_of(net, first)
    steps, key = len(found), net.aggregation_state.key
    net.save_weights(tmp_path / "net.weights.h5")
    again = sgd(second, **row.compiled)
    again.load_weights(tmp_path / "net.weights.h5")
    if row.change is not None:
        row.change(again)
        tiny.compile_privately(again, second, again.optimizer)
    if row.happens == REFUSED:
        with tiny.refused(again, row.match):
            noise_of(again, second, row.data)
        return
    later, ledger = noise_of(again, second, row.data), again.aggregation_state
    count, goes_on = len(later), row.happens == GOES_ON
    phases = [(first, steps), (second, count)]
    if goes_on:
        phases = [(first, steps + count)]
    expected = tuple((t.mechanism, many) for t, many in phases)
    assert ledger.spent == expected
    assert second.statement(again)["epsilon"] == epsilon_of(phases)
    assert not second.statement(again)["outside"]
    if first.seed is not None:
        key = None
    # The noise is that of its phase and step.
    found = np.concatenate([found, later]) if goes_on else later
    scales = second.mechanism.noise(0, len(found)) * second.clipping.clip_norm
    found = tiny.made_of(second.mechanism.strategy, found / scales[:, None])
    seed = first.seed if goes_on else second.seed
    drawn = normal_draws(len(found), int(not goes_on), seed, key=key)
    trained = sum(math.prod(v.shape) for v in again.trainable_variables)
    np.testing.assert_allclose(
        found[:, :trained], drawn[:, :trained], atol=1e-4
    )


@pytest.mark.quick
def test_no_noise_comes_twice():
    """Not where a seed comes back, nor in the noise of a count."""
    one = {"clipping": kpg.privacy.AdaptiveClippedMean(1.0, clip_rate=0.0)}
    trainings = [private(seed=1, **one), private(seed=2, noise_multiplier=3.0)]
    net, found = sgd(trainings[0]), []
    for number, place in enumerate((0, 1, 0)):
        training = trainings[place]
        tiny.compile_privately(net, training, keras.optimizers.SGD(1.0))
        noise = noise_of(net, training)
        noise /= getattr(training.clipping, "gradient_noise", 3.0)
        drawn = normal_draws(4, number, training.seed)
        np.testing.assert_allclose(noise, drawn, atol=1e-4)
        found.append(drawn)
    assert len(np.unique(found)) == np.size(found)
    assert [steps for _, steps in net.aggregation_state.spent] == [4, 4, 4]


growing = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.5, 5.0])


@keras.saving.register_keras_serializable("tests")
class Forgets(keras.optimizers.schedules.LearningRateSchedule):
    """Keeps in its config less than what it does."""

    def __init__(self, start=2.0):
        self.start = start

    def __call__(self, step):
        return self.start + 0.0 * tf.cast(step, "float32")

    def get_config(self):
        return {}


@pytest.mark.parametrize(
    ("noise", "seeds"),
    [
        pytest.param(growing, (3, 3), marks=pytest.mark.quick),
        (growing, (3, None)),
        (Forgets(0.1), (3, 3)),
        (Forgets(0.1), (3, None)),
    ],
)
def test_what_a_schedule_adds_is_what_is_accounted_for(noise, seeds):
    """Also after `continue_from`, where it begins again with the phase."""
    first = private(noise_multiplier=noise, seed=seeds[0])
    net = sgd(first)
    found = [noise_of(net, first)]
    second = private(noise_multiplier=noise, seed=seeds[1], continue_from=net)
    other = sgd(second)
    other.set_weights(net.get_weights())
    found.append(noise_of(other, second))
    ledger = other.aggregation_state
    assert ledger.spent == ((first.mechanism, 4), (second.mechanism, 4))
    keys = [t.seed is None and ledger.key for t in (first, second)]
    for number, (noises, key) in enumerate(zip(found, keys)):
        drawn = normal_draws(4, number, 3, key=key or None)
        accounted = first.mechanism.noise(0, 4)[:, None]
        np.testing.assert_allclose(noises, accounted * drawn, atol=1e-3)
    phases = [(first, 4), (second, 4)]
    assert second.statement(other)["epsilon"] == epsilon_of(phases)


from_model = kpg.PerGradModel.from_model


def loaded(net):
    net.save("net.keras")
    return keras.saving.load_model("net.keras")


def calling(layer):
    inputs = keras.Input((3,))
    return kpg.PerGradModel(inputs, layer(inputs))


#: How a model comes to have weights that were trained privately, and whether
#: what was spent goes with them.
ELSEWHERE = {
    "from_model": (from_model, True),
    "loaded": (lambda net: from_model(loaded(net)), True),
    "saved again": (lambda net: loaded(compiled_again(from_model(net))), True),
    "ends": (lambda net: kpg.PerGradModel(net.inputs, net.outputs), False),
    "nested": (calling, False),
    "loaded and nested": (lambda net: calling(loaded(net)), False),
    "in a Sequential": (lambda n: from_model(keras.Sequential([n])), False),
    "part": (lambda net: calling(net.layers[-1]), False),
}


def compiled_again(net):
    return tiny.compile_privately(net, private())


@pytest.mark.parametrize(
    "name", few([*ELSEWHERE], [*ELSEWHERE], killers=("nested", "loaded"))
)
def test_weights_that_were_trained_elsewhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    training = private()
    net = sgd(training)
    tiny.fit(net, training)
    make, goes_along = ELSEWHERE[name]
    other = compiled_again(make(net))
    assert_equal(other.get_weights(), net.get_weights())
    for count in (0, 4):
        if count:
            found = noise_of(other, training)
        statement = training.statement(other)
        assert statement["outside"] is not goes_along
        phases = [(training, 4)] * goes_along + [(training, count)]
        expected = epsilon_of(phases) if goes_along or count else 0
        assert statement["epsilon"] == expected
    if goes_along:  # No noise that the first model has had, or goes on with.
        assert training.statement(net)["outside"] or name != "from_model"
        drawn = 2.0 * normal_draws(4, 1)
        np.testing.assert_allclose(found, drawn, atol=1e-3)


def test_a_model_that_was_never_trained(training):
    for net in (sgd(training), compiled_again(from_model(sgd(training)))):
        text = tiny.words(training.statement(net))
        assert "was not trained privately: no update was made" in text
        assert "-differentially private: for" not in text


def test_without_a_seed_no_other_seed_makes_noise():
    training = private(seed=None)
    nets = [sgd(training) for _ in range(2)]  # which set Keras's seed
    keys = [net.aggregation_state.key for net in nets]
    assert len({*sum(keys, ())}) == 4
    assert min(map(min, keys)).bit_length() > 40
    found = np.concatenate([noise_of(net, training) for net in nets])
    assert len(np.unique(found)) == found.size
    said = "128 bits from the operating system, which"
    assert said in tiny.words(training.statement(nets[0]))


ADAPTIVE = {"clipping": kpg.privacy.AdaptiveClippedMean(0.1)}
REDRAWN = {"sampling": "ordered", "earlier_noise": "redrawn"}
#: Arguments of the training; without a seed, each process draws a key of its
#: own and takes that of the file.
KILLED = {
    "users": {**USERS, "batch_size": 5},
    "views": VIEWS,
    "adaptive": ADAPTIVE,
    "a seed": {**ADAPTIVE, "seed": 3},
    "kept noise": {**BANDED, "bands": 3},
    "redrawn noise": {**BANDED, **REDRAWN, "bands": 3},
}


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_run_ends_as_an_undisturbed_one(name, tmp_path):
    training = private(**{"seed": None, **KILLED[name]})
    nets = [sgd(training, 0.5) for _ in range(3)]
    backups = [
        keras.callbacks.BackupAndRestore(tmp_path / "backup") for _ in range(2)
    ]
    killed, resumed, whole = (net.aggregation_state for net in nets)
    with pytest.raises(RuntimeError, match="power cut"):
        tiny.fit(nets[0], training, 3, [backups[0], PowerCut()])
    found = tiny.fit(nets[1], training, 3, [backups[1]])["epsilon"]
    whole.phase = dataclasses.replace(whole.phase, key=killed.key)
    whole._set_steps(0)
    assert found == tiny.fit(nets[2], training, 3)["epsilon"][1:]
    assert_equal(nets[1], nets[2])
    assert resumed.spent == whole.spent
    for one in resumed.kept:
        assert_equal([getattr(resumed, one)], [getattr(whole, one)])


@pytest.mark.parametrize("seed", [3, None])
def test_a_ledger_of_an_earlier_version_is_read(seed):
    """What it has begun is closed: its noise is of a stream without phases."""
    training = private(seed=seed)
    net = sgd(training)
    noise_of(net, training)
    store = {}
    net.aggregation_state.save_own_variables(store)
    record = net.aggregation_state.record()
    phase = record.pop("phase")
    del record["has_seed"]
    record |= {k: phase[k] for k in ("mechanism", "key")} | {"noise": [7, 12]}
    text = json.dumps(record).encode()
    store |= {"ledger": np.frombuffer(text, "uint8"), "noise_state": [7, 12]}
    again = sgd(training)
    again.set_weights(net.get_weights())
    again.aggregation_state.load_own_variables(store)
    found = noise_of(again, training)
    ledger = again.aggregation_state
    assert ledger.spent == ((training.mechanism, 4), (training.mechanism, 4))
    drawn = 2.0 * normal_draws(4, 1, key=ledger.key)
    np.testing.assert_allclose(found, drawn, atol=1e-3)
    statement = training.statement(again)
    assert not statement["outside"]
    assert "an earlier version drew" in tiny.words(statement)
