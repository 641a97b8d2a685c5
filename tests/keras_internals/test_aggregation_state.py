"""Noise goes on where it stood, after restarts, too."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.models import making
from tests.power_cut import PowerCut

_rng = np.random.default_rng(2)
X, Y = _rng.normal(size=(12, 3)), _rng.normal(size=(12, 1))


def noisy(seed=1):
    return kpg.ClippedMean(1.0, noise_multiplier=1.0, seed=seed)


MODES = {
    "vectorized": lambda s: kpg.Vectorized(noisy(s)),
    "per_sample": lambda s: kpg.PerSample(noisy(s)),
    "online": lambda s: kpg.PerSample(noisy(s), updates="sample"),
    "accumulated": lambda s: kpg.Accumulated(
        steps=2, microbatch_size=2, inner=kpg.Vectorized(noisy(s))
    ),
}


def model(mode="vectorized", seed=1, **arguments):
    keras.utils.set_random_seed(4)  # As a script does that is started again.
    how = {"jit_compile": False, **arguments}
    result = making.net(shape=(3,), units=1)
    return making.compiled(result, MODES[mode](seed), **how)


def fit(net, **arguments):
    return making.trained(net, X, Y, batch_size=4, **arguments)


def state(net):
    return np.asarray(net.aggregation_state.generator.state)


def assert_equal(a, b):
    np.testing.assert_array_equal(state(a), state(b))
    for ours, right in zip(a.get_weights(), b.get_weights(), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-6)


@pytest.mark.parametrize(
    ("mode", "seed", "steps"),
    [(mode, 1, 1) for mode in MODES]
    + [("vectorized", None, 1), ("accumulated", 1, 2)],
)
def test_backup_and_restore(mode, seed, steps, *, tmp_path):
    arguments = {"mode": mode, "seed": seed, "steps_per_execution": steps}

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    undisturbed = fit(model(**arguments), epochs=2)
    with pytest.raises(RuntimeError, match="power cut"):
        fit(model(**arguments), epochs=2, callbacks=[backup(), PowerCut()])
    resumed = fit(model(**arguments), epochs=2, callbacks=[backup()])
    assert_equal(resumed, undisturbed)


def test_saved_with_the_model(tmp_path):
    net = fit(model())
    net.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal(fit(loaded), fit(net))


def test_files_without_noise(tmp_path):
    net, path = fit(model()), tmp_path / "plain.weights.h5"
    plain = keras.Model(net.inputs, net.outputs)
    plain.compile(keras.optimizers.SGD(0.1), "mse")
    plain.optimizer.build(plain.trainable_variables)
    before = state(net)
    plain.save_weights(path)
    net.load_weights(path)
    np.testing.assert_array_equal(state(net), before)
    net.save_weights(path)
    plain.load_weights(path)


def test_another_seed_is_kept(tmp_path):
    fit(model()).save_weights(tmp_path / "one.weights.h5")
    net = model(seed=2)
    net.load_weights(tmp_path / "one.weights.h5")
    assert list(state(net)) == [2, 0]


@pytest.mark.parametrize("seed", [2**63, 2**64, -(2**63) - 1])
def test_seeds_that_do_not_fit_are_refused(seed):
    with pytest.raises(ValueError, match=rf"`seed` expected .*seed={seed}"):
        noisy(seed)
    with pytest.raises(ValueError, match=r"`seed` expected .*seed % 2\*\*63"):
        noisy(seed)


@pytest.mark.parametrize("seed", [-1, 2**40, 2**63 - 1, -(2**63)])
def test_large_seeds_are_restored(seed, tmp_path):
    net = fit(model(seed=seed))
    net.save_weights(tmp_path / "one.weights.h5")
    again = model(seed=seed)
    again.load_weights(tmp_path / "one.weights.h5")
    assert state(again).tolist() == state(net).tolist() != [seed, 0]


def test_models_of_one_aggregation_have_noise_of_their_own(tmp_path):
    shared = kpg.Vectorized(noisy())
    nets = [model() for _ in range(2)]
    for net in nets:
        net.compile("sgd", "mse", gradient_mode=shared, jit_compile=False)
    first, second = nets
    config = shared.get_config()
    fit(first).save_weights(tmp_path / "one.weights.h5")
    once = state(first).tolist()
    fit(second, epochs=2)
    further = state(second).tolist()
    assert further != once
    assert state(first).tolist() == once
    first.load_weights(tmp_path / "one.weights.h5")
    assert state(second).tolist() == further
    assert shared.get_config() == config


def test_noise_goes_on_when_compiled_again():
    net = fit(model())
    before = state(net).tolist()
    net.compile("sgd", "mse", gradient_mode=MODES["vectorized"](1))
    assert state(net).tolist() == before
    net.compile("sgd", "mse", gradient_mode=MODES["vectorized"](2))
    assert state(net).tolist() == [2, 0]


def test_noise_without_a_model_is_refused():
    with pytest.raises(ValueError, match=r"finish\(gradients, n, state\)"):
        noisy().finish([np.ones(3, "float32")], 2)
