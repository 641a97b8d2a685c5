"""Ops that stand in functions, in a step that is trained and predicted."""

import keras
import pytest
import tensorflow as tf

from keras_pergrad.callbacks import DevicePlacement
from keras_pergrad.placement.prediction import predict_placement
from tests.models.making import compiled, net, normal, trained

COUNTS = {"ops_on_accelerator", "ops_on_cpu", "device_copies"}


def sines(x):
    for _ in range(4):
        x = tf.sin(x)
    return x


class Sines(keras.layers.Layer):
    """Sines in a function that is called."""

    def __init__(self, options):
        super().__init__()
        self.body = tf.function(sines, **options)

    def call(self, x):
        return self.body(x)


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
    parts = keras.layers.Dense(3), Sines(options)
    model = compiled(net(*parts, shape=(4,), units=None), jit_compile=False)
    data = normal(8, 4), normal(8, 3)
    placement = DevicePlacement(deep=True, warn=False)
    trained(model, *data, callbacks=[placement])
    assert set(model.history.history).isdisjoint(COUNTS)
    report, predicted = placement.report, predict_placement(model, *data)
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
