"""A `train_step` of one's own: outputs for metrics, added losses, errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.marks import few
from tests.models.making import assert_equal, compiled, trained, unchanged
from tests.modes.big_batch import EXECUTION

layers = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 4))
LABELS = RNG.integers(0, 3, 10)
WEIGHTS = RNG.uniform(0.5, 2, 10)
#: Those that give outputs.
MODES = {
    "batch": "batch",
    "per_sample": kpg.PerSample(),
    "vectorized": kpg.Vectorized(),
    "vectorized_clipped": kpg.Vectorized(kpg.ClippedMean(1e9)),
}


class Recipe(kpg.PerGradModel):
    """The step that the guide shows."""

    outputs_wanted = True

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)

        def loss_fn(x, y, sample_weight):
            y_pred = self(x, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(y, y_pred)
            if sample_weight is not None:
                losses *= sample_weight
            return (losses, y_pred) if self.outputs_wanted else losses

        given = loss_fn, x, y, sample_weight
        if self.outputs_wanted:
            gradients, logs, y_pred = self.compute_gradients(
                *given, return_outputs=True
            )
        else:
            gradients, logs = self.compute_gradients(*given)
            y_pred = self(x, training=True)
        self.optimizer.apply(gradients, self.trainable_variables)
        metrics = self.compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, **metrics}


class Added(layers.Layer):
    """Adds a mean and a sum over the batch."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        x *= self.scale
        self.add_loss(0.1 * keras.ops.mean(x**2))
        self.add_loss(0.01 * keras.ops.sum(x**4))
        return x


def _model(cls):
    keras.utils.set_random_seed(4)
    inputs = keras.Input((4,))
    hidden = Added()(layers.Dense(6, "tanh", kernel_regularizer="l2")(inputs))
    return cls(inputs, layers.Dense(3, "softmax", name="head")(hidden))


def _fit(model, weights=None, **how):
    how = {"metrics": ["accuracy"], "loss": None, **how}
    how["weighted_metrics"] = ["sparse_categorical_crossentropy"]
    compiled(model, rate=0.2, **how)
    # Batches of 4, 4 and 2.
    given = {"batch_size": 4, "epochs": 2, "sample_weight": weights}
    trained(model, X, LABELS, **given)
    return model.get_weights(), model.history.history


def _keras(weights=None):
    loss = "sparse_categorical_crossentropy"
    return _fit(_model(keras.Model), weights, loss=loss)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("how", [*EXECUTION, "weights"])
@pytest.mark.parametrize("mode", few(MODES, ["vectorized", "batch"]))
def test_the_recipe_is_what_keras_does(mode, how):
    """Weights, losses with what layers add, and compiled metrics."""
    weights = WEIGHTS if how == "weights" else None
    right, logs = _keras(weights)
    options = {**EXECUTION.get(how, {}), "gradient_mode": MODES[mode]}
    ours, history = _fit(_model(Recipe), weights, **options)
    assert_equal(ours, right, rtol=1e-9, atol=1e-10)
    assert set(logs) <= set(history)
    for name, values in logs.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-6)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("size", [None, 3])
def test_microbatches_have_no_outputs_and_say_what_to_do(size, eager):
    mode = kpg.Accumulated(steps=1, microbatch_size=size)
    model = _model(Recipe)
    options = {"gradient_mode": mode, "run_eagerly": eager}
    match = r"microbatch_size.*self\.compute_met"
    with unchanged(model), pytest.raises(ValueError, match=match):
        _fit(model, **options)
    model = _model(Recipe)
    model.outputs_wanted = False
    ours, history = _fit(model, **options)
    right, logs = _keras()
    assert_equal(ours, right, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(history["loss"], logs["loss"], rtol=1e-6)


@pytest.mark.parametrize("how", EXECUTION)
@pytest.mark.parametrize("mode", few(MODES, ["vectorized", "batch"]))
def test_outputs_keep_their_structure_and_order(mode, how):
    class Structured(kpg.PerGradModel):
        def train_step(self, data):
            x, y = data

            def loss_fn(x, y, sample_weight):
                y_pred = self(x, training=True)
                found = {"pair": [y_pred, keras.ops.argmax(y_pred, -1)], "x": x}
                return keras.ops.sum(y_pred**2, -1), found

            gradients, logs, outputs = self.compute_gradients(
                loss_fn, x, y, return_outputs=True, name="squares"
            )
            self.optimizer.apply(gradients, self.trainable_variables)
            assert outputs["pair"][1].dtype.is_integer
            right = self(x, training=True)
            off = tf.abs(outputs["pair"][0] - right)
            off += tf.abs(outputs["x"] - x)[:, :3]
            return {**logs, "off": keras.ops.max(off)}

    settings = {"loss": None, "rate": 0.0, **EXECUTION[how]}
    model = compiled(_model(Structured), MODES[mode], **settings)
    history = model.fit(X, LABELS, verbose=0).history
    assert {"squares_loss", "off"} <= set(history)
    assert max(history["off"]) < 1e-6


class Given(kpg.PerGradModel):
    """Its step asks for the gradients of `function` of a batch."""

    return_outputs = False

    def train_step(self, data):
        def loss_fn(x, y, sample_weight):
            return self.function(x)

        how = {"return_outputs": self.return_outputs}
        return self.compute_gradients(loss_fn, *data, **how)[1]


def _given(function, mode, return_outputs=False, **how):
    """A model whose step has a function of the model and its inputs."""
    model = _model(Given)
    model.function = lambda x: function(model, x)
    model.return_outputs = return_outputs
    return compiled(model, mode, None, **how)


class Unusual(Exception):
    """It cannot be made from a message."""

    def __init__(self, number, text):
        super().__init__(number, text)
        self.number = number


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    "mode", [*MODES.values(), kpg.Accumulated(microbatch_size=2)], ids=repr
)
def test_what_loss_fn_raises_arrives_as_it_is(mode, eager):
    raised = None

    def raising(model, x):
        model(x)
        raise raised

    model = _given(raising, mode, run_eagerly=eager)
    for raised in (
        Unusual(7, "the user's own"),
        ValueError("own words"),
        KeyError("own words"),
    ):
        with pytest.raises(type(raised)) as caught:
            model.fit(X, LABELS, verbose=0)
        assert caught.value is raised


def test_an_error_in_a_layer_tells_of_this_layer_alone():
    class Broken(layers.Layer):
        def call(self, x):
            if x.shape[0] is None or x.shape[0] > 1:
                raise TypeError("broken")
            return x

    broken = Broken()
    model = _given(
        lambda model, x: keras.ops.sum(broken(model(x)), -1), "vectorized"
    )
    with pytest.raises(TypeError, match=r"calling Broken\.call") as caught:
        model.fit(X, LABELS, verbose=0)
    assert "LossModel" not in str(caught.value)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda y: y[:, 0], r"a pair \(losses, outputs\).*Received: a "),
        (lambda y: (y[:, 0], y, y), r"Received: a tuple of 3"),
        (lambda y: (y[:, 0], tf.reduce_mean(y)), r"one row for each sample"),
        (
            lambda y: (y[:, 0], [y, y[:2]]),
            r"shapes \[\(10, 3\), \(2, 3\)\]",
        ),
        (lambda y: (y, y), r"losses of shape \(10, 3\)"),
    ],
)
def test_results_of_another_form_are_refused(result, said):
    how = {"return_outputs": True, "run_eagerly": True}
    model = _given(lambda model, x: result(model(x)), "vectorized", **how)
    with pytest.raises(ValueError, match=said) as caught:
        model.fit(X, LABELS, batch_size=10, verbose=0)
    assert "LossModel" not in str(caught.value)


def test_data_without_a_loss_function_are_refused():
    class Forgets(kpg.PerGradModel):
        def train_step(self, data):
            return self.compute_gradients(*data)[1]

    model = compiled(_model(Forgets), "vectorized", None)
    with pytest.raises(TypeError, match=r"compute_gradients\(loss_fn, x, y\)"):
        model.fit(X, LABELS, verbose=0)
