"""Small models with a batch, for the instruments of gradient health."""

import keras
import numpy as np

import keras_pergrad as kpg
from tests.models.making import compiled, integers, net, normal

layers = keras.layers
N = 5


class NotedWeights(keras.callbacks.Callback):
    """Notes the weights after each update, the first ones in front."""

    def on_train_begin(self, logs=None):
        self.noted = [self.model.get_weights()]

    def on_train_batch_end(self, batch, logs=None):
        self.noted.append(self.model.get_weights())


class OwnLoss(keras.Model):
    """Computes its own loss, from what it predicts alone."""

    def compute_loss(self, x=None, y=None, y_pred=None, *rest, **more):
        return keras.ops.mean(y_pred**2)


class OwnStep(kpg.PerGradModel):
    """Has a step of its own, whose updates nobody knows."""

    def train_step(self, data):
        return super().train_step(data)


def _numbers(*shape, seed=0):
    return normal(N, *shape, seed=seed)


def _classes(count, *shape):
    return integers(count, N, *shape, seed=1)


def _compiled(model, loss, **options):
    return compiled(model, loss=loss, **{"jit_compile": False, **options})


def mlp(**options):
    """Two units of the first layer are dead."""
    hidden = layers.Dense(6, activation="relu")
    model = net(hidden, shape=(4,))
    hidden.bias.assign([0, 0, 0, -100, 0, -100])
    return _compiled(model, "mse", **options), _numbers(4), _numbers(3, seed=2)


def bare():
    """One variable, which is the whole."""
    model = net(layers.Dense(3, use_bias=False), shape=(4,), units=None)
    return _compiled(model, "mse"), _numbers(4), _numbers(3, seed=2)


def weighted():
    """Differences of two places: no bias of these units gets a gradient."""
    model = net(
        layers.Dense(6, activation="linear"),
        layers.Lambda(lambda t: t[:, 0] - t[:, 1]),
        layers.Dense(4, activation="relu"),
        shape=(2, 4),
    )
    weights = np.array([0.0, 2.0, 1.0, 0.5, 3.0])
    return _compiled(model, "mse"), _numbers(2, 4), _numbers(3, seed=2), weights


def cnn():
    model = net(
        layers.Conv2D(3, 3, activation="relu"),
        layers.Conv2D(4, 2, strides=2, use_bias=False, activation="tanh"),
        layers.Flatten(),
        layers.Dense(3, activation="softmax"),
        shape=(6, 6, 2),
        units=None,
    )
    model = _compiled(model, "sparse_categorical_crossentropy")
    return model, _numbers(6, 6, 2), _classes(3)


def lstm():
    """Each position has a loss, the padded ones are masked."""
    embedding = layers.Embedding(7, 3, mask_zero=True)
    recurrent = layers.LSTM(4, return_sequences=True)
    model = net(embedding, recurrent, shape=(4,), dtype="int32", units=2)
    x = _classes(6, 4) + 1
    x[1, 2:] = x[3, 1:] = 0
    return _compiled(model, "mse"), x, _numbers(4, 2, seed=3)


def transformer():
    inputs = keras.Input((4,), dtype="int32")
    x = layers.Embedding(7, 4)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 2)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(4, activation="gelu")(x))
    outputs = layers.Dense(3)(layers.GlobalAveragePooling1D()(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = _compiled(keras.Model(inputs, outputs), loss)
    return model, _classes(7, 4), _classes(3)


def shared():
    layer = layers.Dense(4, activation="tanh")
    model = net(layer, layer, shape=(4,), units=2)
    return _compiled(model, "mae"), _numbers(4), _numbers(2, seed=2)


def several():
    """Two outputs, a frozen layer, a regulariser."""
    inputs = keras.Input((4,))
    x = layers.Dense(5, activation="tanh", trainable=False)(inputs)
    one = layers.Dense(2, kernel_regularizer="l2")(x)
    outputs = [one, layers.Dense(1)(x)]
    model = _compiled(
        keras.Model(inputs, outputs), ["mse", "mae"], loss_weights=[2.0, 0.5]
    )
    return model, _numbers(4), [_numbers(2, seed=2), _numbers(1, seed=3)]


CASES = {
    case.__name__: case
    for case in (mlp, bare, weighted, cnn, lstm, transformer, shared, several)
}
