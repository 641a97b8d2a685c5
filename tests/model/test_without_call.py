"""A GAN without `call`: what its step is asked for works, or is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import normal

layers = keras.layers
X = normal(24, 4)


class Gan(kpg.PerGradModel):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential(
            [keras.Input((2,)), layers.Dense(4, "tanh")]
        )
        self.judge = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        self.judge_optimizer = keras.optimizers.SGD(0.1)

    def train_step(self, data):
        real = data[0] if isinstance(data, tuple) else data
        noise = tf.random.normal((tf.shape(real)[0], 2))

        def judge_loss(x, y, sample_weight):
            real, noise = x
            made = self.judge(self.generator(noise))
            return tf.nn.softplus(made - self.judge(real))[:, 0]

        def generator_loss(noise, y, sample_weight):
            return -self.judge(self.generator(noise))[:, 0]

        gradients, first = self.compute_gradients(
            judge_loss,
            (real, noise),
            variables=self.judge,
            optimizer=self.judge_optimizer,
            name="judge",
        )
        self.judge_optimizer.apply(gradients, self.judge.trainable_variables)
        gradients, second = self.compute_gradients(
            generator_loss, noise, variables=self.generator, name="generator"
        )
        self.optimizer.apply(gradients, self.generator.trainable_variables)
        return {**first, **second}


def _gan(**how):
    keras.utils.set_random_seed(0)
    model = Gan()
    model.compile("sgd", gradient_mode=kpg.Vectorized(**how))
    return model


def _fit(model, *callbacks):
    return model.fit(X, batch_size=8, verbose=0, callbacks=callbacks).history


def test_explain_names_its_parts():
    model = _gan()
    with pytest.raises(ValueError, match=r"explain\(model.generator, x\)"):
        kpg.explain(model, X)
    assert kpg.explain(model.judge, X).verdict == "proved"


@pytest.mark.parametrize(
    "how",
    [{}, {"probe": (X[:8],)}, {"source": "training"}],
    ids=["", "probe", "training"],
)
def test_gradient_variance_names_the_statistics_of_the_step(how):
    watch = kpg.callbacks.GradientVariance(**how)
    with pytest.raises(ValueError, match=r"Vectorized\(statistics=True\)"):
        _fit(_gan(), watch)
    assert _fit(_gan())["judge_loss"]


def test_the_named_statistics_are_there():
    logs = _fit(_gan(statistics=True))
    for name in ("gradient_norm", "gradient_variance", "gradient_noise_scale"):
        assert {f"judge_{name}", f"generator_{name}"} <= {*logs}


def test_the_step_is_placed_and_timed():
    placement = kpg.callbacks.DevicePlacement()
    _fit(_gan(), placement)
    assert placement.report.operations
    report = kpg.diagnose.predict_placement(_gan(), X[:8])
    assert report.prediction
    assert report.operations
    dataset = tf.data.Dataset.from_tensor_slices(X).batch(8).repeat(20)
    model = _gan()
    before = model.get_weights()
    profile = kpg.diagnose.profile_pipeline(dataset, model, batches=10)
    assert profile.model.batches_per_s > 0
    for one, other in zip(model.get_weights(), before):
        np.testing.assert_array_equal(one, other)
