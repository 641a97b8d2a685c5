"""The benchmark models in Keras, 2 or 3."""

import keras

from benchmarks.harness.models import SPECS, make_weights

layers = keras.layers


def build_model(name, model_class=keras.Model, *args):
    """A model with the common weights that returns logits."""
    spec = SPECS[name]
    kind = "int32" if spec.vocabulary else "float32"
    inputs = keras.Input(spec.inputs, dtype=kind)
    outputs = _BODIES[name.split("_")[0]](inputs, spec)
    model = model_class(*args, inputs, outputs)
    model.set_weights(make_weights(name))
    return model


def make_loss(name, **kwargs):
    """Softmax cross-entropy; of two classes for a single logit."""
    if SPECS[name].outputs == 1:
        return keras.losses.BinaryCrossentropy(from_logits=True, **kwargs)
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, **kwargs
    )


def targets(name, y):
    """Class numbers as the loss wants them."""
    return y[:, None].astype("float32") if SPECS[name].outputs == 1 else y


def _dense(x, spec):
    return layers.Dense(spec.outputs)(x)


def _ffnn(x, spec):
    return layers.Dense(spec.outputs)(layers.Dense(50, activation="relu")(x))


def _mnist(x, spec):
    x = layers.Conv2D(16, 8, strides=2, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(2, 1)(x)
    x = layers.Conv2D(32, 4, strides=2, activation="relu")(x)
    x = layers.MaxPooling2D(2, 1)(x)
    x = layers.Dense(32, activation="relu")(layers.Flatten()(x))
    return layers.Dense(spec.outputs)(x)


def _cifar10(x, spec):
    for width in (32, 64, 128):
        for _ in range(2):
            x = _conv(width, "relu")(x)
        x = layers.AveragePooling2D(2)(x)
    x = _conv(spec.outputs, None)(_conv(256, "relu")(x))
    return layers.GlobalAveragePooling2D()(x)


def _conv(width, activation):
    return layers.Conv2D(width, 3, padding="same", activation=activation)


def _digits(x, spec):
    x = layers.AveragePooling2D(2)(_conv(8, "tanh")(x))
    x = layers.AveragePooling2D(2)(_conv(16, "tanh")(x))
    return layers.Dense(spec.outputs)(layers.Flatten()(x))


def _embed(x, spec):
    x = layers.Embedding(spec.vocabulary, 16)(x)
    return layers.Dense(spec.outputs)(layers.GlobalAveragePooling1D()(x))


def _lstm(x, spec):
    x = layers.Embedding(spec.vocabulary, 100)(x)
    x = layers.LSTM(100, return_sequences=True)(x)
    return layers.Dense(spec.outputs)(layers.GlobalAveragePooling1D()(x))


def _transformer(x, spec):
    x = layers.Embedding(spec.vocabulary, 128)(x)
    for _ in range(2):
        attention = layers.MultiHeadAttention(num_heads=4, key_dim=32)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, attention]))
        hidden = layers.Dense(512, activation="relu")(x)
        hidden = layers.Dense(128)(hidden)
        x = layers.LayerNormalization()(layers.Add()([x, hidden]))
    return layers.Dense(spec.outputs)(layers.GlobalAveragePooling1D()(x))


_BODIES = {
    "logreg": _dense,
    "ffnn": _ffnn,
    "mnist": _mnist,
    "cifar10": _cifar10,
    "digits": _digits,
    "embed": _embed,
    "lstm": _lstm,
    "transformer": _transformer,
    "dense4096": _dense,
}
