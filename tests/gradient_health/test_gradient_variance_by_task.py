"""`GradientVariance(by_task=True)` against a tape for each loss."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.gradient_health.tasks import TaskMeter
from tests.models.making import assert_equal, normal

layers = keras.layers


def _model(loss=("mse", "mae")):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((6,))
    trunk = layers.Dense(5, "tanh", kernel_regularizer="l2", name="one")(inputs)
    trunk = layers.Dropout(0.3, seed=1)(trunk)
    trunk = layers.BatchNormalization(name="norm")(trunk)
    heads = [layers.Dense(2, name=n)(trunk) for n in "ab"]
    model = keras.Model(inputs, heads)
    model.compile("sgd", list(loss), loss_weights=[1.0, 2.0])
    return model


def _data():
    x = normal(8, 6)
    return x, [x[:, :2], -x[:, :2]]


def _cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.quick
def test_cosines_are_those_of_a_tape_for_each_loss():
    x, y = _data()
    model = _model()
    model.layers[2].rate = 0.0
    state = model.get_weights()
    rows = []
    shared = [v for v in model.trainable_variables if v.path[0] not in "ab"]
    losses = keras.losses.MeanSquaredError(), keras.losses.MeanAbsoluteError()
    for k, (loss, weight) in enumerate(zip(losses, (1, 2))):
        with tf.GradientTape() as tape:
            value = weight * loss(y[k], model(x, training=True)[k])
        gradients = tape.gradient(value, shared)
        rows.append([np.ravel(g) for g in gradients])
    model.set_weights(state)
    batch = tf.constant(x), [tf.constant(t) for t in y], None
    found = TaskMeter(model, batch).measure(3)
    expected = _cosine(*map(np.concatenate, rows))
    assert found.cosines()["a", "b"] == pytest.approx(expected, rel=1e-4)
    # Of the first layer: its kernel and its bias.
    expected = _cosine(*(np.concatenate(r[:2]) for r in rows))
    layers_found = found.by_layer()
    assert set(layers_found) == {"one", "norm"}
    assert layers_found["one"]["a", "b"] == pytest.approx(expected, rel=1e-4)


def test_training_stays_the_same_and_the_logs_have_the_figures():
    x, y = _data()
    watch = kpg.callbacks.GradientVariance(
        probe=(x, y), every="epoch", by_task=True, repeats=1
    )
    alone = _model()
    alone.fit(x, y, 4, 3, 0)
    model = _model()
    history = model.fit(x, y, 4, 3, 0, callbacks=[watch]).history
    assert_equal(model.get_weights(), alone.get_weights())
    assert len(watch.conflicts) == 3
    cosines = [c.cosines()["a", "b"] for c in watch.conflicts]
    assert history["gradient_task_cosine_a_b"] == cosines
    assert history["gradient_task_conflicts"] == [float(c < 0) for c in cosines]
    text = watch.conflict_table().splitlines()
    assert text[0].split()[:2] == ["layer", "tasks"]
    assert text[1].startswith("all shared weights  a and b")
    assert len(text) == 4


def test_one_loss_is_refused():
    x, y = _data()
    watch = kpg.callbacks.GradientVariance(probe=(x, y), by_task=True)
    with pytest.raises(ValueError, match="at least two compiled losses"):
        _model(("mse", None)).fit(x, y, verbose=0, callbacks=[watch])
