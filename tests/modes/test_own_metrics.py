"""The logs of a `compute_metrics` of one's own: those of `keras.Model`."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.marks import few
from tests.models.making import compiled, trained
from tests.modes.big_batch import EXECUTION

layers, ops = keras.layers, keras.ops
_rng = np.random.default_rng(0)
X, Y = _rng.normal(size=(10, 3, 4)), _rng.integers(0, 2, (10, 3))
X[::3, 2:] = 0  # masked
WEIGHTS = _rng.uniform(0.5, 2, (10, 3))
ACCUMULATED = {
    "microbatches": {"microbatch_size": 3},
    "steps": {"steps": 2},
    "both": {"steps": 2, "microbatch_size": 3},
    "clipped": {
        "microbatch_size": 3,
        "inner": kpg.Vectorized(kpg.ClippedMean(1e9)),
    },
}
MODES = {
    "batch": "batch",
    "vectorized": "vectorized",
    "per_sample": "per_sample",
    **{name: kpg.Accumulated(**how) for name, how in ACCUMULATED.items()},
}
RUNS = [(mode, how) for mode in MODES for how in EXECUTION]
QUICK = [
    ("vectorized", "graph"),
    *((mode, "graph") for mode in ACCUMULATED),
    ("clipped", "eager"),
    ("microbatches", "xla"),
]


class OwnLogs:
    """Adds entries, replaces one and drops one."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        logs["spread"] = ops.std(y_pred)
        logs["of_metrics"] = logs["accuracy"] * logs.pop("dropped")
        logs["accuracy"] = ops.max(y_pred)
        return logs


class Plain(OwnLogs, keras.Model):
    pass


class Ours(OwnLogs, kpg.PerGradModel):
    pass


def fitted(cls, mode=None, rate=0.1, *, data=None, epochs=2, **how):
    """The logs of each batch and each epoch."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None if data else 3, 4))
    hidden = layers.Dense(5, "tanh")(layers.Masking()(inputs))
    model = cls(inputs, layers.Dense(2, "softmax")(hidden))
    dropped = keras.metrics.SparseCategoricalCrossentropy(name="dropped")
    loss = "sparse_categorical_crossentropy"
    how = {"weighted_metrics": ["accuracy", dropped], **how}
    compiled(model, mode, loss, rate, **how)
    batches = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batches.append(dict(logs))
    )
    # Batches of 4, 4 and 2.
    given = data or (X, Y)
    weights = {} if data else {"sample_weight": WEIGHTS, "batch_size": 4}
    trained(model, *given, epochs=epochs, callbacks=[callback], **weights)
    return [*batches, model.history.history]


@functools.cache
def by_keras(rate):
    return fitted(Plain, rate=rate, jit_compile=False)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("mode", "how"), few(RUNS, QUICK))
def test_logs_are_those_of_keras(mode, how):
    mode = MODES[mode]
    # The weights stay, where Keras would change them after each batch.
    rate = 0.0 if getattr(mode, "steps", 1) > 1 else 0.1
    right = by_keras(rate)
    found = fitted(Ours, mode, rate, **EXECUTION[how])
    assert set(right[0]) == {"loss", "accuracy", "spread", "of_metrics"}
    for ours, logs in zip(found, right, strict=True):
        assert set(logs) <= set(ours)
        assert "dropped" not in ours
        for name, value in logs.items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-6)


@pytest.mark.parametrize(
    ("mode", "batched"),
    [
        (kpg.Accumulated(microbatch_size=3), True),
        (kpg.PerSample(updates="sample"), False),
    ],
    ids=repr,
)
def test_what_cannot_be_joined_is_told(mode, batched):
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    shapes = tf.TensorShape([None, 4]), tf.TensorShape([None])
    data = (rows.padded_batch(5, shapes),) if batched else None
    how = {"data": data, "epochs": 1}
    if batched:
        # A step by itself is traced for a batch's own lengths from Keras 3.16.
        how["steps_per_execution"] = 2
    said = r"Ours\.compute_metrics\(\).*'dropped', 'of_metrics', 'spread'"
    with pytest.warns(UserWarning, match=said):
        found = fitted(Ours, mode, rate=0.0, **how)
    assert set(found[-1]) == {"loss", "accuracy", "dropped"}
    if batched:
        # A batch that stays whole is handed on.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = fitted(Ours, kpg.Accumulated(), **how)
        assert "spread" in found[-1]
