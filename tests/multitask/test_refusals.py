"""Where weights by other samples would break a promise, and what is kept."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.callbacks import GradientVariance
from tests.models.making import (
    assert_equal,
    compiled,
    net,
    trained,
    unchanged,
)

NAMES = (
    "upgrad",
    "mgda",
    "cagrad",
    "pcgrad",
    "imtlg",
    "aligned_mtl",
    "krum",
    "geometric_median",
)
X, Y = np.random.default_rng(0).normal(size=(2, 8, 3)).astype("float32")
of = kpg.aggregations
by_upgrad = kpg.Vectorized("upgrad")


def _model(mode, **arguments):
    hidden = keras.layers.Dense(4, activation="tanh")
    return compiled(net(hidden, shape=(3,)), mode, rate=0.01, **arguments)


def test_a_name_is_an_object_and_is_saved(tmp_path):
    for name in NAMES:
        mode = kpg.Vectorized(name)
        assert mode.aggregation.needs == "gramian"
        given = mode.aggregation
        again = type(given).from_config(given.get_config())
        assert repr(again) == repr(given)
    given = of.UPGrad(preference=[1.0] * 8, reg_eps=0.01)
    model = _model(kpg.Vectorized(given))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.gradient_mode.aggregation.preference == [1.0] * 8
    assert loaded.gradient_mode.aggregation.reg_eps == 0.01


@pytest.mark.parametrize(
    "make",
    [
        lambda: kpg.PerSample("upgrad"),
        lambda: kpg.PerSample(of.Krum(), updates="sample"),
        lambda: kpg.Accumulated(steps=2, inner=by_upgrad),
        lambda: kpg.Accumulated(microbatch_size=2, inner=by_upgrad),
    ],
)
def test_parts_of_an_update_are_refused(make):
    with pytest.raises(ValueError, match="all samples of an update at once"):
        make()


@pytest.mark.quick
def test_replicas_are_refused_before_a_weight_changes():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = _model(by_upgrad)
    said = "stay on their replica"
    with unchanged(model), pytest.raises(ValueError, match=said):
        trained(model, X, Y)


@pytest.mark.parametrize(
    "how", [{"run_eagerly": True}, {}, {"jit_compile": True}], ids=str
)
def test_too_few_samples_for_krum_change_nothing(how):
    """Under XLA without a message."""
    model = _model(kpg.Vectorized(of.Krum(6)), **{"jit_compile": False, **how})
    refused = pytest.raises(Exception, match="at least 9 gradients")
    if "jit_compile" in how:
        refused = contextlib.nullcontext()
    with unchanged(model), refused:
        trained(model, X, Y)


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (of.UPGrad, {"reg_eps": 0}),
        (of.UPGrad, {"norm_eps": -1}),
        (of.UPGrad, {"preference": [0.0, 0.0]}),
        (of.UPGrad, {"preference": [-1.0, 2.0]}),
        (of.UPGrad, {"preference": 1.0}),
        (of.CAGrad, {"c": -1}),
        (of.MGDA, {"epsilon": 0}),
        (of.MGDA, {"max_iterations": 0}),
        (of.AlignedMTL, {"scale_mode": "max"}),
        (of.Krum, {"n_byzantine": -1}),
        (of.Krum, {"n_byzantine": 1, "n_selected": 0}),
        (of.GeometricMedian, {"smoothing": 0.0}),
        (of.PCGrad, {"seed": None}),
        (of.PCGrad, {"seed": 1.5}),
    ],
)
def test_numbers_that_mean_nothing_are_refused(cls, arguments):
    with pytest.raises(ValueError, match="Received"):
        cls(**arguments)


def test_what_weights_are_asked_of():
    with pytest.raises(ValueError, match="has 2 numbers, and there are 3"):
        of.UPGrad(preference=[1, 1]).gramian_weights(tf.eye(3))
    with pytest.raises(ValueError, match="inner products of all of them"):
        of.UPGrad().weights(tf.ones(3))


@pytest.mark.parametrize("name", ["upgrad", "mgda", "pcgrad"])
def test_check_gradients_knows_the_weights(name):
    mode = kpg.Vectorized(name)
    report = kpg.check_gradients(_model(mode), X, Y, gradient_modes=mode)
    assert report.ok, str(report)


def test_what_watches_does_not_need_the_mode():
    model, plain = _model(by_upgrad), _model(by_upgrad)
    plain.set_weights(model.get_weights())
    assert kpg.explain(model)
    assert kpg.per_sample_norms(model, X, Y).shape == (8,)
    watch = GradientVariance((X, Y), every=1)
    trained(model, X, Y, callbacks=[watch])
    assert len(watch.readings) >= 1
    assert model.history.history["loss"][0] > 0
    assert_equal(model, trained(plain, X, Y))


def test_a_train_step_of_ones_own():
    class Own(kpg.PerGradModel):
        def train_step(self, data):
            x, y = data

            def loss_fn(x, y, sample_weight):
                return keras.losses.mean_squared_error(y, self(x))

            gradients, logs = self.compute_gradients(loss_fn, x, y)
            self.optimizer.apply(gradients, self.trainable_variables)
            return logs

    own, usual = (
        compiled(net(shape=(3,), cls=cls), by_upgrad, rate=0.01)
        for cls in (Own, kpg.PerGradModel)
    )
    usual.set_weights(own.get_weights())
    trained(own, X, Y)
    assert_equal(own, trained(usual, X, Y), rtol=1e-5, atol=1e-6)
