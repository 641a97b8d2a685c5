"""What `from_model` does with what a model overrides."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg

layers = keras.layers
_rng = np.random.default_rng(0)
X, Y = _rng.normal(size=(8, 4)), _rng.normal(size=(8, 3))


@keras.saving.register_keras_serializable("tests")
class Tripled(keras.Model):
    """A loss and a metric of its own, beside the compiled ones."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(3)
        self.own = keras.metrics.MeanAbsoluteError(name="own")

    def call(self, x):
        return self.dense(x)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        return 3 * super().compute_loss(
            x, y, y_pred, sample_weight, training=training
        )

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.own.update_state(y, y_pred)
        return super().compute_metrics(x, y, y_pred, sample_weight)


def trained(mode=None):
    keras.utils.set_random_seed(1)
    model, how = Tripled(), {}
    if mode is not None:
        model, how = kpg.PerGradModel.from_model(model), {"gradient_mode": mode}
    model.compile("sgd", "mse", metrics=["mse"], **how)
    fit = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    history = model.fit(X, Y, **fit).history
    return model, history, model.evaluate(X, Y, verbose=0, return_dict=True)


@pytest.fixture(scope="module")
def by_keras():
    return trained()


@pytest.mark.parametrize("mode", ["batch", "vectorized"])
def test_its_loss_and_metrics_are_used(mode, by_keras):
    ours, right = trained(mode), by_keras
    for a, b in zip(ours[0].get_weights(), right[0].get_weights()):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(ours[1:], right[1:], strict=True):
        assert a.keys() == b.keys()
        for name in b:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-5)


def test_saved_and_loaded(tmp_path):
    model, _, evaluated = trained("vectorized")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = loaded.evaluate(X, Y, verbose=0, return_dict=True)
    assert again == pytest.approx(evaluated)


@pytest.mark.parametrize(
    "name", ["train_step", "test_step", "predict_step", "make_train_function"]
)
@pytest.mark.parametrize("base", [keras.Model, keras.Sequential])
def test_steps_of_its_own_are_refused(name, base):
    cls = type("Own", (base,), {name: lambda self, *args: None})
    with pytest.raises(ValueError, match=rf"has a {name}\(\) of its own"):
        kpg.PerGradModel.from_model(cls())


def test_a_sequential_with_a_loss_of_its_own():
    class Own(keras.Sequential):
        def compute_loss(self, x, y, y_pred, sample_weight, training):
            return 0.0 * y_pred[0, 0] + 7.0

    net = Own([keras.Input((4,)), layers.Dense(3)])
    model = kpg.PerGradModel.from_model(net)
    model.compile("sgd", "mse")
    assert model.evaluate(X, Y, verbose=0) == 7.0
