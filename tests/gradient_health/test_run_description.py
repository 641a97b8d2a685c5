"""What a run's record says of how the model was trained."""

import functools
import json

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.callbacks import GradientVariance
from keras_pergrad.runs import read_run
from keras_pergrad.runs.description import compiled_loss
from keras_pergrad.runs.grouping import Grouping
from tests.models.making import net, trained

layers = keras.layers
X = np.linspace(-1, 1, 40, dtype="float32").reshape(20, 2)
Y = X[:, :1]


def recorded(log_dir, precision=None, data=(X, Y), *, size=None, **options):
    """The `RunInfo` of one `fit`."""
    model = net(layers.Dense(1, dtype=precision), shape=(2,), units=None)
    model.compile("sgd", **{"loss": "mse", "jit_compile": False, **options})
    watch = GradientVariance((X[:4], Y[:4]), repeats=1, log_dir=log_dir)
    trained(model, *data, seed=1, batch_size=size, callbacks=[watch])
    return read_run(watch.run_directory).info


# What `confounders` says of it, and what makes it.
DIFFERENCES = {
    "precision": {"precision": "mixed_bfloat16"},
    "jit_compile": {"jit_compile": True},
    "run_eagerly": {"run_eagerly": True},
    "batch_size": {"size": 25},
    "loss": {"loss": "mae"},
}


def test_one_difference_is_named(tmp_path):
    plain = recorded(tmp_path)
    assert plain["loss"] == [{"loss": "mean_squared_error"}]
    assert plain["precision"] == "float32"
    assert plain["jit_compile"] is plain["run_eagerly"] is False
    assert plain["op_determinism"] is False
    # The default of Keras for arrays.
    assert (plain["batch_size"], plain["steps_per_epoch"]) == (32, 1)
    for name, options in DIFFERENCES.items():
        other = recorded(tmp_path, **options)
        assert other["architecture"] == plain["architecture"]
        related = Grouping([plain, plain, other])
        assert related.repeats[0, 1]
        assert not related.repeats[2].any()
        assert related.always_differ([0], [2]) == [name]


def test_the_batch_size_of_a_dataset_is_known_by_its_steps(tmp_path):
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    one, other = (recorded(tmp_path, data=[data.batch(n)]) for n in (5, 10))
    assert one["batch_size"] is other["batch_size"] is None
    assert (one["steps_per_epoch"], other["steps_per_epoch"]) == (4, 2)
    assert Grouping([one, other]).always_differ([0], [1]) == ["steps_per_epoch"]


def squared(y, y_pred, power=2):
    return keras.ops.mean((y - y_pred) ** power, -1)


class Own(keras.losses.Loss):
    def __init__(self, power=2, **options):
        super().__init__(**options)
        self.power = power

    def call(self, y, y_pred):
        return squared(y, y_pred, self.power)

    def get_config(self):
        return {**super().get_config(), "power": self.power}


def losses(loss, loss_weights=None):
    inputs = keras.Input((2,))
    outputs, targets = layers.Dense(1)(inputs), Y
    if isinstance(loss, dict):
        outputs = {name: layers.Dense(1)(inputs) for name in loss}
        targets = dict.fromkeys(loss, Y)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", loss, loss_weights=loss_weights)
    model._symbolic_build(data_batch=(X, targets, None))
    found = compiled_loss(model)
    assert json.loads(json.dumps(found)) == found
    return found


LOSSES = [
    ("mse", {"loss": "mean_squared_error"}),
    (keras.losses.MeanSquaredError(), {"loss": "mean_squared_error"}),
    (
        keras.losses.MeanSquaredError(reduction="sum"),
        {"loss": "mean_squared_error", "reduction": "sum"},
    ),
    (keras.losses.Huber(1.0), {"loss": "huber"}),
    (keras.losses.Huber(2.0), {"loss": "huber", "delta": 2.0}),
    (squared, {"loss": "squared"}),
    (Own(), {"loss": "Own"}),
    (Own(4, name="mine"), {"loss": "Own", "power": 4}),
    (
        functools.partial(squared, power=4),
        {"loss": {"partial": ["squared", [], {"power": 4}]}},
    ),
]


def test_losses_by_name_and_config_and_several_with_their_weights():
    for loss, expected in LOSSES:
        assert losses(loss) == [expected]
    assert losses({"a": "mse", "b": "mae"}, {"a": 0.5, "b": 1.0}) == [
        {"loss": "mean_squared_error", "output": ["a"], "weight": 0.5},
        {"loss": "mean_absolute_error", "output": ["b"]},
    ]
