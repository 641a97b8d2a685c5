"""The types of the variables that a train step reads and assigns.

TensorFlow keeps variables of int32, bool and string on the host of a GPU. A
step that XLA compiles for the GPU, as Keras does by default, cannot use them.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.marks import few
from tests.privacy.tiny import private
from tests.trackers.fits import Kept

ON_THE_HOST = tf.int32, tf.bool, tf.string
X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = {"first": X[:, :1], "second": X[:, 1:]}
SETTINGS = {"optimizer": "sgd", "loss": "mse", "jit_compile": False}

clip = kpg.ClippedMean(1.0)
adaptive = kpg.privacy.AdaptiveClippedMean(0.1, expected_batch_size=4)
BY_NAME = ["aligned_mtl", "cagrad", "imtlg", "krum", "geometric_median"]
BY_NAME += ["mgda", "pcgrad", "upgrad"]
MODES = {
    "batch": "batch",
    "per_sample": kpg.PerSample(statistics=True),
    "by sample": kpg.PerSample(updates="sample"),
    "vectorized": kpg.Vectorized(statistics=True),
    "noise": kpg.Vectorized(kpg.ClippedMean(1.0, noise_multiplier=0.1)),
    "microbatches": kpg.Accumulated(microbatch_size=2),
    "steps": kpg.Accumulated(steps=2),
    "kept steps": kpg.Accumulated(steps=2, tail="keep"),
    "steps and microbatches": kpg.Accumulated(steps=2, microbatch_size=2),
    "virtual batches": kpg.Accumulated(steps=2, inner=kpg.Vectorized(clip)),
    "adaptive steps": kpg.Accumulated(steps=2, inner=kpg.Vectorized(adaptive)),
    "steps by task": kpg.Accumulated(steps=2, inner="by_task"),
    "by_task": kpg.ByTask("pcgrad"),
    "automatic": kpg.Vectorized(kpg.privacy.AutomaticClippedMean()),
    "adaptive": kpg.Vectorized(adaptive),
    "scheduled": kpg.Vectorized(
        kpg.ClippedMean(keras.optimizers.schedules.CosineDecay(1.0, 10))
    ),
    **{name: kpg.Vectorized(name) for name in BY_NAME},
}

#: One for each kind of variable that a mode or an aggregation keeps.
QUICK = "per_sample", "noise", "kept steps", "adaptive steps", "steps by task"


@pytest.fixture
def captured(monkeypatch):
    """The types of the variables that functions capture."""
    graph = tf.function(tf.zeros).get_concrete_function([1]).graph
    original, found = type(graph).capture, set()

    def capture(self, tensor, *args, **kwargs):
        data = None
        if tensor.dtype == tf.resource:
            data = getattr(tensor, "_handle_data", None)
        for part in data.shape_and_type if data is not None else ():
            found.add(tf.as_dtype(part.dtype))
        return original(self, tensor, *args, **kwargs)

    monkeypatch.setattr(type(graph), "capture", capture)
    return found


def network(*outputs):
    inputs = keras.Input((3,))
    h = keras.layers.Dropout(0.1)(keras.layers.Dense(2)(inputs))
    outputs = {
        name: keras.layers.Dense(Y[name].shape[1], name=name)(h)
        for name in outputs or Y
    }
    return kpg.PerGradModel(inputs, outputs)


def spec(array):
    return tf.TensorSpec([None, array.shape[1]])


def assert_none_on_the_host(captured):
    assert tf.float32 in captured
    assert not captured.intersection(ON_THE_HOST)


def trace(model, optimizer, mode):
    """Trace what `fit` makes of a mode, and run nothing."""
    settings = {**SETTINGS, "optimizer": optimizer}
    model.compile(**settings, gradient_mode=mode)
    optimizer.build(model.trainable_variables)
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    step.get_concrete_function(*tf.nest.map_structure(spec, (X, Y)))


@pytest.mark.parametrize("mode", few(MODES, QUICK))
def test_modes_and_aggregations(mode, captured):
    trace(network(), keras.optimizers.Adam(use_ema=True), MODES[mode])
    assert_none_on_the_host(captured)


SCALED = "batch", "per_sample", "vectorized", "kept steps", "by_task"


@pytest.mark.parametrize("mode", few(SCALED, ["kept steps"]))
def test_a_loss_scale(mode, captured):
    """Keras keeps the scale, and counts the steps since it changed."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    trace(network(), optimizer, MODES[mode])
    assert_none_on_the_host(captured)


def test_all_aggregations_are_here():
    classes = {type(m.aggregation) for m in map(kpg.modes.get, MODES.values())}
    registered = dict(kpg.aggregations.aggregation.aggregations.items())
    del registered["private_mean"]
    # Other tests register aggregations of their own.
    own = {c for c in registered.values() if c.__module__.startswith("keras_")}
    assert own <= classes


@pytest.mark.parametrize(
    "callback",
    [
        lambda: kpg.callbacks.GradientVariance(every=1),
        lambda: kpg.callbacks.GradientVariance((X, Y["first"]), every=1),
        lambda: kpg.callbacks.GradientVariance(
            source="training", instruments="noise_scale", trackers=Kept()
        ),
        lambda: kpg.callbacks.SampleValues((X, Y["first"]), every=2),
        lambda: kpg.callbacks.SampleValues((X, Y["first"]), order=2),
        lambda: kpg.callbacks.DataStall(verbose=0),
        lambda: kpg.callbacks.DevicePlacement(warn=False),
    ],
    ids=[
        "logged",
        "probe",
        "trackers",
        "values",
        "second order",
        "stall",
        "placement",
    ],
)
def test_callbacks(callback, captured):
    model, y = network("first"), {"first": Y["first"]}
    model.compile(**SETTINGS, gradient_mode="vectorized")
    model.fit(X, y, batch_size=4, verbose=0, callbacks=[callback()])
    assert_none_on_the_host(captured)


@pytest.mark.parametrize(
    "settings",
    [
        {"microbatch_size": 2},
        {"clipping": kpg.privacy.AdaptiveClippedMean(0.1)},
        {
            "noise": "correlated",
            "bands": 2,
            "sampling": "ordered",
            "earlier_noise": "redrawn",
        },
    ],
    ids=["microbatches", "adaptive", "correlated"],
)
def test_private_training(settings, captured):
    training = private(samples=len(X), batch_size=4, epochs=1, **settings)
    model = network("first")
    # An optimizer with variables of its own.
    compiling = {**SETTINGS, "optimizer": kpg.privacy.corrected("adam")}
    model.compile(**compiling, gradient_mode=training.gradient_mode)
    batches = training.batches(X, {"first": Y["first"]})
    model.fit(batches, verbose=0, callbacks=[training.callback])
    assert_none_on_the_host(captured)


def test_a_counter_of_an_older_file(tmp_path):
    model, path = network("first"), str(tmp_path / "waiting.keras")
    mode = kpg.Accumulated(steps=4, tail="keep")
    model.compile(**SETTINGS, gradient_mode=mode)
    model.fit(X, {"first": Y["first"]}, batch_size=4, verbose=0)
    state = model.gradient_state
    state.count = keras.Variable(2, dtype="int32", name="pending_batches")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert loaded.gradient_state.count.dtype == "int64"
    assert int(loaded.gradient_state.count) == 2
