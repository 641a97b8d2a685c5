"""Where weights by other samples would break a promise, and what is kept."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.callbacks import GradientVariance
from tests.models.making import assert_equal, compiled, net, trained

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
by_upgrad = kpg.Vectorized("upgrad")


def _model(mode, **arguments):
    hidden = keras.layers.Dense(4, activation="tanh")
    return compiled(net(hidden, shape=(3,)), mode, rate=0.01, **arguments)


def test_a_name_is_an_object_and_is_saved(tmp_path):
    for name in NAMES:
        mode = kpg.Vectorized(name)
        assert mode.aggregation.needs == "gramian"
        again = type(mode.aggregation).from_config(
            mode.aggregation.get_config()
        )
        assert repr(again) == repr(mode.aggregation)
    given = kpg.aggregations.UPGrad(preference=[1.0] * 8, reg_eps=0.01)
    model = _model(kpg.Vectorized(given))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.gradient_mode.aggregation.preference == [1.0] * 8
    assert loaded.gradient_mode.aggregation.reg_eps == 0.01


@pytest.mark.parametrize(
    "make",
    [
        lambda: kpg.PerSample("upgrad"),
        lambda: kpg.PerSample(kpg.aggregations.Krum(), updates="sample"),
        lambda: kpg.Accumulated(steps=2, inner=kpg.Vectorized("upgrad")),
        lambda: kpg.Accumulated(
            microbatch_size=2, inner=kpg.Vectorized("mgda")
        ),
    ],
)
def test_parts_of_an_update_are_refused(make):
    with pytest.raises(ValueError, match="all samples of an update at once"):
        make()


def test_replicas_are_refused_before_a_weight_changes():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = _model(by_upgrad)
    before = model.get_weights()
    with pytest.raises(ValueError, match="stay on their replica"):
        trained(model, X, Y)
    assert_equal(model.get_weights(), before)


@pytest.mark.parametrize("how", ["eager", "graph", "xla"])
def test_too_few_samples_for_krum_change_nothing(how):
    """Under XLA without a message."""
    settings = {"run_eagerly": how == "eager", "jit_compile": how == "xla"}
    mode = kpg.Vectorized(kpg.aggregations.Krum(6))
    model = _model(mode, **settings)
    before = model.get_weights()
    if how == "xla":
        trained(model, X, Y)
    else:
        with pytest.raises(Exception, match="at least 9 gradients"):
            trained(model, X, Y)
    assert_equal(model.get_weights(), before)


of = kpg.aggregations


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


def test_preferences_for_another_number_of_rows():
    with pytest.raises(ValueError, match="has 2 numbers, and there are 3"):
        kpg.aggregations.UPGrad(preference=[1, 1]).gramian_weights(tf.eye(3))


def test_norms_are_not_enough():
    with pytest.raises(ValueError, match="inner products of all of them"):
        kpg.aggregations.UPGrad().weights(tf.ones(3))


@pytest.mark.parametrize("name", ["upgrad", "mgda", "pcgrad"])
def test_check_gradients_knows_the_weights(name):
    model = _model(kpg.Vectorized(name))
    report = kpg.check_gradients(
        model, X, Y, gradient_modes=kpg.Vectorized(name)
    )
    assert report.ok, str(report)


def test_explain_and_gradients_of_samples_do_not_need_the_mode():
    model = _model(by_upgrad)
    assert "upgrad" in str(kpg.explain(model)).lower() or kpg.explain(model)
    assert kpg.per_sample_norms(model, X, Y).shape == (8,)


def test_a_callback_may_watch():
    model, plain = _model(by_upgrad), _model(by_upgrad)
    plain.set_weights(model.get_weights())
    watch = GradientVariance((X, Y), every=1)
    trained(model, X, Y, callbacks=[watch])
    assert len(watch.measurements) >= 1
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
