"""The models whose memory is predicted and measured, and their batches."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """A step whose memory is predicted.

    Attributes:
        model: a name of `MODELS`, or of `tests/real_models.py`.
        batch: samples of a step.
        mode: "clipped", or in microbatches, an eighth of the batch each:
            "accumulated" or "accumulated, clipped".
        optimizer: as Keras names it.
        held_out: whether it was not looked at while the prediction was made.
    """

    model: str
    batch: int
    mode: str = "clipped"
    optimizer: str = "sgd"
    held_out: bool = False

    @property
    def name(self):
        parts = self.model, self.mode, self.optimizer
        return ", ".join(p for p in parts if p not in ("clipped", "sgd"))


def _sequential(shape, *layers, dtype=None):
    import keras

    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers])


def mlp():
    from keras.layers import Dense

    hidden = [Dense(1024, activation="relu") for _ in range(4)]
    return _sequential((784,), *hidden, Dense(10))


def large_dense():
    from keras.layers import Dense

    hidden = [Dense(4096, activation="relu") for _ in range(2)]
    return _sequential((4096,), *hidden, Dense(10))


def cnn():
    from keras.layers import Conv2D, Dense, Flatten, MaxPooling2D

    def conv(units):
        return Conv2D(units, 3, padding="same", activation="relu")

    maps = [conv(32), conv(32), MaxPooling2D()]
    maps += [conv(64), conv(64), MaxPooling2D(), Flatten()]
    head = Dense(128, activation="relu"), Dense(10)
    return _sequential((32, 32, 3), *maps, *head)


def lstm():
    from keras.layers import LSTM, Dense

    cells = LSTM(128, return_sequences=True), LSTM(128)
    return _sequential((100, 32), *cells, Dense(10))


def embedding():
    from keras.layers import Dense, Embedding, GlobalAveragePooling1D

    layers = Embedding(50_000, 64), GlobalAveragePooling1D(), Dense(10)
    return _sequential((256,), *layers, dtype="int32")


def transformer():
    import keras
    from keras.layers import (
        Dense,
        Embedding,
        GlobalAveragePooling1D,
        LayerNormalization,
        MultiHeadAttention,
    )

    inputs = keras.Input((128,), dtype="int32")
    h = Embedding(10_000, 128)(inputs)
    for _ in range(2):
        h = LayerNormalization()(h + MultiHeadAttention(4, 32)(h, h))
        inner = Dense(512, activation="gelu")(h)
        h = LayerNormalization()(h + Dense(128)(inner))
    return keras.Model(inputs, Dense(10)(GlobalAveragePooling1D()(h)))


def conv_lstm():
    from keras.layers import ConvLSTM2D, Dense, GlobalAveragePooling2D

    layers = ConvLSTM2D(16, 3, padding="same"), GlobalAveragePooling2D()
    return _sequential((8, 32, 32, 3), *layers, Dense(10))


def _frozen_norms(application, **settings):
    import keras

    model = application(
        weights=None,
        input_shape=(64, 64, 3),
        classes=10,
        classifier_activation=None,
        **settings,
    )
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    return model


def resnet50():
    import keras

    return _frozen_norms(keras.applications.ResNet50)


def mobilenet_v3():
    import keras

    small = keras.applications.MobileNetV3Small
    return _frozen_norms(small, include_preprocessing=False)


def densenet121():
    import keras

    return _frozen_norms(keras.applications.DenseNet121)


MODELS = {
    make.__name__: make
    for make in (
        mlp,
        large_dense,
        cnn,
        lstm,
        embedding,
        transformer,
        conv_lstm,
        resnet50,
        mobilenet_v3,
        densenet121,
    )
}
CASES = (
    Case("mlp", 4096),
    Case("large_dense", 4096),
    Case("cnn", 512),
    Case("lstm", 512),
    Case("embedding", 2048),
    Case("transformer", 128),
    Case("conv_lstm", 128),
    Case("bert", 64),
    Case("resnet50", 64),
    Case("mobilenet_v3", 256),
    Case("mlp", 4096, optimizer="adam"),
    Case("transformer", 128, optimizer="adam"),
    Case("cnn", 512, "accumulated"),
    Case("transformer", 128, "accumulated, clipped"),
    Case("mlp", 4096, "accumulated, clipped"),
    Case("gpt2", 64, held_out=True),
    Case("vit", 64, held_out=True),
    Case("t5", 32, held_out=True),
    Case("densenet121", 32, held_out=True),
    Case("bert", 64, optimizer="adam", held_out=True),
    Case("lstm", 512, "accumulated", held_out=True),
    Case("bert", 64, "accumulated, clipped", held_out=True),
)


def make(case):
    """The model of a case, not compiled."""
    if case.model in MODELS:
        return MODELS[case.model]()
    from tests import real_models

    return real_models.MODELS[case.model]("bench")[0]


_HIGHEST_ID = {"padding_mask": 2, "segment_ids": 2}
_WORDS = {"embedding": 50_000, "transformer": 10_000}
_POSITIONS = 128


def batch(model, case, n):
    """Random inputs and class numbers of n samples."""
    import keras
    import numpy as np

    rng = np.random.default_rng(0)

    def values(tensor):
        sizes = [_POSITIONS if d is None else d for d in tensor.shape[1:]]
        if "int" not in tensor.dtype:
            return rng.standard_normal((n, *sizes), dtype="float32")
        words = _WORDS.get(case.model, 30_522)
        most = _HIGHEST_ID.get(tensor.name.split("/")[-1], words)
        least = int(tensor.name.endswith("padding_mask"))
        return rng.integers(least, most, (n, *sizes), dtype="int32")

    inputs = model.input if not isinstance(model, keras.Sequential) else None
    if isinstance(inputs, dict):
        x = {key: values(tensor) for key, tensor in inputs.items()}
    else:
        x = values(model.inputs[0])
    return x, rng.integers(0, 3, n)
