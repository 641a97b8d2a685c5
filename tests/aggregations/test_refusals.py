"""Where weights by other samples would break a promise, and what is kept."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.callbacks import GradientVariance

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


def _model(mode):
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    model = kpg.PerGradModel(inputs, keras.layers.Dense(3)(hidden))
    model.compile("sgd", "mse", gradient_mode=mode)
    return model


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


def test_private_training_is_refused():
    with pytest.raises(ValueError, match="must be a ClippedMean"):
        kpg.PrivateTraining(
            samples=100,
            batch_size=10,
            epochs=1,
            clipping=kpg.aggregations.UPGrad(),
            noise_multiplier=1.0,
            delta=1e-5,
        )


def test_replicas_are_refused_before_a_weight_changes():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = _model(kpg.Vectorized("upgrad"))
    before = model.get_weights()
    with pytest.raises(ValueError, match="stay on their replica"):
        model.fit(X, Y, verbose=0)
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "arguments",
    [{"run_eagerly": True}, {"jit_compile": False}],
)
def test_too_few_samples_for_krum(arguments):
    model = _model(kpg.Vectorized(kpg.aggregations.Krum(6)))
    mode = kpg.Vectorized(kpg.aggregations.Krum(6))
    model.compile("sgd", "mse", gradient_mode=mode, **arguments)
    before = model.get_weights()
    with pytest.raises(Exception, match="at least 9 gradients"):
        model.fit(X, Y, verbose=0)
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)


def test_too_few_samples_for_krum_under_xla_change_nothing():
    model = _model("batch")
    mode = kpg.Vectorized(kpg.aggregations.Krum(6))
    model.compile("sgd", "mse", gradient_mode=mode, jit_compile=True)
    before = model.get_weights()
    model.fit(X, Y, verbose=0)
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)


def test_numbers_that_mean_nothing_are_refused():
    for make in (
        lambda: kpg.aggregations.UPGrad(reg_eps=0),
        lambda: kpg.aggregations.UPGrad(norm_eps=-1),
        lambda: kpg.aggregations.UPGrad(preference=[0.0, 0.0]),
        lambda: kpg.aggregations.UPGrad(preference=[-1.0, 2.0]),
        lambda: kpg.aggregations.UPGrad(preference=1.0),
        lambda: kpg.aggregations.CAGrad(-1),
        lambda: kpg.aggregations.MGDA(epsilon=0),
        lambda: kpg.aggregations.MGDA(max_iterations=0),
        lambda: kpg.aggregations.AlignedMTL(scale_mode="max"),
        lambda: kpg.aggregations.Krum(-1),
        lambda: kpg.aggregations.Krum(1, 0),
        lambda: kpg.aggregations.GeometricMedian(0.0),
        lambda: kpg.aggregations.PCGrad(seed=None),
        lambda: kpg.aggregations.PCGrad(seed=1.5),
    ):
        with pytest.raises(ValueError, match="Received"):
            make()


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
    model = _model(kpg.Vectorized("upgrad"))
    assert "upgrad" in str(kpg.explain(model)).lower() or kpg.explain(model)
    assert kpg.per_sample_norms(model, X, Y).shape == (8,)


def test_a_callback_may_watch():
    model = _model(kpg.Vectorized("upgrad"))
    plain = _model(kpg.Vectorized("upgrad"))
    plain.set_weights(model.get_weights())
    watch = GradientVariance((X, Y), every=1)
    history = model.fit(X, Y, verbose=0, callbacks=[watch], shuffle=False)
    plain.fit(X, Y, verbose=0, shuffle=False)
    assert len(watch.measurements) >= 1
    assert history.history["loss"][0] > 0
    for a, b in zip(model.get_weights(), plain.get_weights()):
        np.testing.assert_array_equal(a, b)


def test_a_train_step_of_ones_own():
    class Own(kpg.PerGradModel):
        def train_step(self, data):
            x, y = data

            def loss_fn(x, y, sample_weight):
                return keras.losses.mean_squared_error(y, self(x))

            gradients, logs = self.compute_gradients(loss_fn, x, y)
            self.optimizer.apply(gradients, self.trainable_variables)
            return logs

    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(3)(inputs)
    own = Own(inputs, outputs)
    usual = kpg.PerGradModel(inputs, outputs)
    start = own.get_weights()
    found = []
    for model in (own, usual):
        model.set_weights(start)
        model.compile("sgd", "mse", gradient_mode=kpg.Vectorized("upgrad"))
        model.fit(X, Y, verbose=0)
        found.append(model.get_weights())
    for a, b in zip(*found):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)
