"""What `from_model` does with what a model overrides."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.models import making
from tests.models.making import assert_equal, compiled, net
from tests.privacy.tiny import private

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
    model = compiled(Tripled(), mode, rate=0.01, metrics=["mse"])
    fitted = making.trained(model, X, Y, batch_size=4, epochs=2)
    history = fitted.history.history
    return model, history, model.evaluate(X, Y, verbose=0, return_dict=True)


@pytest.fixture(scope="module")
def by_keras():
    return trained()


@pytest.mark.parametrize("mode", ["batch", "vectorized"])
def test_its_loss_and_metrics_are_used(mode, by_keras):
    ours, right = trained(mode), by_keras
    assert_equal(
        ours[0].get_weights(), right[0].get_weights(), rtol=1e-5, atol=1e-6
    )
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


def test_a_sequential_with_a_loss_of_its_own():
    class Own(keras.Sequential):
        def compute_loss(self, x, y, y_pred, sample_weight, training):
            return 0.0 * y_pred[0, 0] + 7.0

    plain = Own([keras.Input((4,)), layers.Dense(3)])
    model = kpg.PerGradModel.from_model(plain)
    model.compile("sgd", "mse")
    assert model.evaluate(X, Y, verbose=0) == 7.0


@keras.saving.register_keras_serializable("tests")
class Graph(keras.Model):
    """A functional model of a class of its own."""

    def __init__(self, **kwargs):
        inputs = keras.Input((4,))
        outputs = layers.Dense(3)(layers.Dense(4)(inputs))
        super().__init__(inputs, outputs, **kwargs)

    def get_config(self):
        return {"name": self.name}

    def doubled(self, x):
        return 2 * self(x)


def test_a_functional_model_of_another_class_stays_built(tmp_path):
    graph = Graph()
    model = kpg.PerGradModel.from_model(graph)
    model.compile("sgd", "mse", gradient_mode="vectorized")
    assert isinstance(model, Graph)
    assert type(kpg.PerGradModel.from_model(model)) is type(model)
    assert [id(v) for v in model.variables] == [id(v) for v in graph.variables]
    assert not graph.compiled
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    model.fit(X, Y, verbose=0, callbacks=[backup])
    published = keras.Model(model.inputs, model.outputs)
    np.testing.assert_array_equal(published([X]), graph(X))
    np.testing.assert_array_equal(model.doubled(X), graph.doubled(X))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    np.testing.assert_array_equal(loaded(X), graph(X))
    assert int(loaded.optimizer.iterations) == 1


@pytest.mark.quick
def test_a_built_model_without_inputs_stays_built(tmp_path):
    plain = Tripled()
    plain(X)
    model = kpg.PerGradModel.from_model(plain)
    assert model.built
    model.compile("sgd", "mse")
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    model.fit(X, Y, verbose=0, callbacks=[backup])
    assert not kpg.PerGradModel.from_model(Tripled()).built


def test_functional_models_stay_as_they_were():
    for cls in (keras.Model, kpg.PerGradModel):
        model = net(layers.Dense(4), shape=(4,), cls=cls)
        model = kpg.PerGradModel.from_model(model)
        assert type(model).__name__ == "FunctionalPerGradModel"


@keras.saving.register_keras_serializable("tests")
class Scaled(keras.Model):
    """Doubles what it is given around its steps, and counts as it compiles."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(3)
        self.inner = [layers.Dense(3)]

    def call(self, x):
        return self.inner[0](self.dense(x))

    def compile(self, optimizer="sgd", loss="mse", factor=2.0):
        super().compile(optimizer, loss)
        self.factor = factor

    def fit(self, x, y=None, **kwargs):
        return super().fit(x * self.factor, y, **kwargs)

    def predict(self, x, **kwargs):
        return super().predict(x * self.factor, **kwargs)

    def evaluate(self, x=None, y=None, **kwargs):
        return super().evaluate(x * self.factor, y, **kwargs)

    def reset_metrics(self):
        super().reset_metrics()
        self.resets = getattr(self, "resets", 0) + 1

    def predict_step(self, data):
        return super().predict_step(data) + 1.0


def scaled():
    keras.utils.set_random_seed(2)
    plain = Scaled()
    plain(X)
    return plain


@pytest.mark.parametrize("mode", ["batch", "vectorized", "accumulated"])
def test_what_is_around_the_steps_is_kept(mode, tmp_path):
    by_keras, model = scaled(), kpg.PerGradModel.from_model(scaled())
    by_keras.compile(factor=3.0)
    model.compile(factor=3.0, gradient_mode=mode)
    how = {"batch_size": 4, "shuffle": False, "verbose": 0}
    losses = [m.fit(X, Y, **how).history["loss"] for m in (by_keras, model)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert model.resets
    for name, given in (("predict", (X,)), ("evaluate", (X, Y))):
        found = [getattr(m, name)(*given, verbose=0) for m in (by_keras, model)]
        np.testing.assert_allclose(*found, rtol=1e-4, err_msg=name)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.factor == 3.0
    assert type(loaded.gradient_mode) is type(model.gradient_mode)
    np.testing.assert_array_equal(
        loaded.predict(X, verbose=0), model.predict(X, verbose=0)
    )


STEPS = "train_step", "test_step", "predict_step", "make_train_function"
AROUND = "fit", "evaluate", "predict", "compile"


@pytest.mark.parametrize(
    ("name", "base"),
    [
        *((name, keras.Model) for name in (*STEPS, *AROUND)),
        *((name, keras.Sequential) for name in STEPS),
        ("train_step", Graph),
    ],
)
def test_methods_of_its_own_are_refused(name, base):
    """Those around the steps before the model is built, steps ever."""
    cls = type("Own", (base,), {name: lambda self, *args: None})
    match = rf"has a {name}\(\) of its own" + " .*on a b" * (name in AROUND)
    with pytest.raises(ValueError, match=match):
        kpg.PerGradModel.from_model(cls())


def test_a_built_sequential_of_another_class():
    class Own(keras.Sequential):
        def fit(self, x, y, **kwargs):
            return super().fit(3 * x, y, **kwargs)

    plain = Own([keras.Input((4,)), layers.Dense(3)])
    model = kpg.PerGradModel.from_model(plain)
    weights = plain.get_weights()
    model.compile("sgd", "mse", gradient_mode="vectorized")
    found = model.fit(X, Y, verbose=0).history["loss"]
    plain.set_weights(weights)
    plain.compile("sgd", "mse")
    np.testing.assert_allclose(
        plain.fit(X, Y, verbose=0).history["loss"], found
    )
    assert model.layers == plain.layers


def test_private_examples_do_not_go_through_a_fit_of_its_own():
    training = private(samples=8, batch_size=4, epochs=1)
    model = kpg.PerGradModel.from_model(scaled())
    model.compile(gradient_mode=training.gradient_mode)
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"Scaled has a fit\(\) of its own"):
        model.fit(training.batches(X, Y), callbacks=[training.callback])
    assert_equal(before, model.get_weights())
