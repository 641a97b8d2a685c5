"""Ops that stand in functions, in a step that is trained and predicted."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.callbacks import DevicePlacement
from keras_pergrad.placement.prediction import predict_placement

COUNTS = {"ops_on_accelerator", "ops_on_cpu", "device_copies"}


def sines(x):
    for _ in range(4):
        x = tf.sin(x)
    return x


def trained(body, deep=False):
    """What is reported of a model with a layer of sines, and its logs."""

    class Sines(keras.layers.Layer):
        def call(self, x):
            return body(x)

    keras.backend.clear_session()
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3), Sines()]
    )
    model.compile("sgd", "mse", jit_compile=False)
    data = np.ones((8, 4), "float32"), np.ones((8, 3), "float32")
    placement = DevicePlacement(deep=deep, warn=False)
    history = model.fit(*data, verbose=0, callbacks=[placement])
    return placement.report, set(history.history), model, data


@pytest.mark.parametrize(
    ("options", "way", "what_shows"),
    [
        (
            {"experimental_attributes": {"_noinline": True}},
            "not inlined",
            "no _noinline",
        ),
        ({"jit_compile": True}, "compiled by XLA", "jit_compile=False"),
    ],
)
def test_what_a_call_hides_is_not_counted(options, way, what_shows):
    hidden = tf.function(sines, **options)
    report, logs, model, data = trained(hidden, deep=True)
    assert logs.isdisjoint(COUNTS)
    predicted = predict_placement(model, *data)
    for found in (report, predicted):
        assert len(found.opaque) == 2  # forward and backward
        assert not found.known
        assert found.ops_on_cpu is found.device_copies is None
        assert set(found.executions("cpu").values()) <= {None}
        text = " ".join(str(found).split())
        assert way in text
        assert what_shows in text.partition("What shows them:")[2]
        assert "ops of one step" not in text
    assert report.deep is None
    assert "deep=True: not measured" in str(report)
