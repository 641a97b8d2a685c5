"""Predicted and measured peak memory of the clipped step, of ten models.

Each figure is of a process of its own. Measured is the rise of the process's
highest resident size over what it has before its first step, with model and
data there, after five steps (Linux); predicted is `explain(...).memory.rise`.

    python -m benchmarks.memory_prediction
    python -m benchmarks.memory_prediction lstm bert

prints a table and, for all models, writes memory_prediction.json.
"""

import json
import pathlib
import sys

from benchmarks.process import figures_of

HERE = pathlib.Path(__file__).parent
STEPS = 5


def _sequential(shape, *layers, dtype=None):
    import keras

    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers])


def mlp():
    from keras.layers import Dense

    hidden = [Dense(1024, activation="relu") for _ in range(4)]
    return _sequential((784,), *hidden, Dense(10)), 4096


def large_dense():
    from keras.layers import Dense

    hidden = [Dense(4096, activation="relu") for _ in range(2)]
    return _sequential((4096,), *hidden, Dense(10)), 4096


def cnn():
    from keras.layers import Conv2D, Dense, Flatten, MaxPooling2D

    def conv(units):
        return Conv2D(units, 3, padding="same", activation="relu")

    maps = [conv(32), conv(32), MaxPooling2D()]
    maps += [conv(64), conv(64), MaxPooling2D(), Flatten()]
    head = Dense(128, activation="relu"), Dense(10)
    return _sequential((32, 32, 3), *maps, *head), 512


def lstm():
    from keras.layers import LSTM, Dense

    cells = LSTM(128, return_sequences=True), LSTM(128)
    return _sequential((100, 32), *cells, Dense(10)), 512


def embedding():
    from keras.layers import Dense, Embedding, GlobalAveragePooling1D

    layers = Embedding(50_000, 64), GlobalAveragePooling1D(), Dense(10)
    return _sequential((256,), *layers, dtype="int32"), 2048


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
    return keras.Model(inputs, Dense(10)(GlobalAveragePooling1D()(h))), 128


def conv_lstm():
    from keras.layers import ConvLSTM2D, Dense, GlobalAveragePooling2D

    layers = ConvLSTM2D(16, 3, padding="same"), GlobalAveragePooling2D()
    return _sequential((8, 32, 32, 3), *layers, Dense(10)), 128


def bert():
    from tests.real_models import MODELS

    return MODELS["bert"]("bench")[0], 64


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

    return _frozen_norms(keras.applications.ResNet50), 64


def mobilenet_v3():
    import keras

    small = keras.applications.MobileNetV3Small
    return _frozen_norms(small, include_preprocessing=False), 256


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
        bert,
        resnet50,
        mobilenet_v3,
    )
}
_HIGHEST_ID = {"padding_mask": 2, "segment_ids": 2, "token_ids": 30_522}
_POSITIONS = 128


def _batch(model, n, name):
    """Random inputs and class numbers."""
    import keras
    import numpy as np

    rng = np.random.default_rng(0)

    def values(tensor):
        sizes = [_POSITIONS if d is None else d for d in tensor.shape[1:]]
        if "int" not in tensor.dtype:
            return rng.standard_normal((n, *sizes), dtype="float32")
        words = {"embedding": 50_000, "transformer": 10_000}.get(name, 30_522)
        most = _HIGHEST_ID.get(tensor.name.split("/")[-1], words)
        least = int(tensor.name.endswith("padding_mask"))
        return rng.integers(least, most, (n, *sizes), dtype="int32")

    inputs = model.input if not isinstance(model, keras.Sequential) else None
    if isinstance(inputs, dict):
        x = {key: values(tensor) for key, tensor in inputs.items()}
    else:
        x = values(model.inputs[0])
    return x, rng.integers(0, 3, n)


def _memory(field):
    status = pathlib.Path("/proc/self/status").read_text()
    (line,) = [s for s in status.splitlines() if s.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


def run(what, name):
    """Predicts or measures in this process; prints the figures as JSON."""
    import keras

    import keras_pergrad as kpg

    keras.utils.set_random_seed(0)
    net, n = MODELS[name]()
    x, y = _batch(net, n, name)
    model = kpg.PerGradModel.from_model(net)
    model.compile(
        keras.optimizers.SGD(1e-6),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        gradient_mode=kpg.Vectorized(kpg.ClippedMean(1.0)),
        jit_compile=False,
    )
    if what == "predict":
        found = kpg.explain(model, n, x=x).memory
        parts = {"predicted": found.rise, "graph": found.graph}
    else:
        before = _memory("VmRSS")
        for _ in range(STEPS):
            model.train_on_batch(x, y)
        peak = _memory("VmHWM")
        parts = {"measured": peak - before, "process": before}
    print(json.dumps({"model": name, "batch": n, **parts}))


def _ask(what, name):
    """The figures of a process of its own."""
    return figures_of("-m", "benchmarks.memory_prediction", what, name)


def table(results):
    """The figures as a Markdown table, MB."""
    lines = [
        "| model | batch | predicted, MB | measured, MB | off by |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for r in results:
        off = r["predicted"] / r["measured"] - 1
        lines.append(
            f"| {r['model']} | {r['batch']:,} | {r['predicted'] / 1e6:,.0f} | "
            f"{r['measured'] / 1e6:,.0f} | {off:+.0%} |"
        )
    return "\n".join(lines)


def main(names):
    results = []
    for name in names or MODELS:
        results.append({**_ask("measure", name), **_ask("predict", name)})
        print(results[-1], flush=True)
    print(table(results))
    if not names:
        text = json.dumps(results, indent=1) + "\n"
        (HERE / "memory_prediction.json").write_text(text)


if __name__ == "__main__":
    if sys.argv[1:2] in (["predict"], ["measure"]):
        run(*sys.argv[1:])
    else:
        main(sys.argv[1:])
