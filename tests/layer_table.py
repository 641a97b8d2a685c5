"""Every class in `keras.layers`: how it is made, and how it is served.

`CASES` says how to make each class, `SKIPPED` why some cannot be made;
`examine` tries one out and gives its row of docs/layers.md.
"""

import dataclasses
import pathlib
import random
import re

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.graphs import draws as draws_module
from tests import oracle
from tests.uses.rules.exact import Noting, randomized

L = keras.layers
N = 3
PAGE = pathlib.Path(__file__).parents[1] / "docs" / "layers.md"


@dataclasses.dataclass(frozen=True)
class In:
    """An input of a layer; integers run up to `high`."""

    shape: tuple
    dtype: str = "float"
    high: int = 4

    def values(self):
        rng = np.random.default_rng(len(self.shape))
        shape = (N, *self.shape)
        if self.dtype == "string":
            return tf.constant(rng.choice(["a", "b", "c"], shape))
        if self.dtype == "int32":
            return tf.constant(rng.integers(0, self.high, shape), tf.int32)
        return tf.constant(rng.normal(size=shape), keras.config.floatx())


@dataclasses.dataclass(frozen=True)
class Case:
    """How a class is made, and what it is called on."""

    make: object
    inputs: tuple


@dataclasses.dataclass(frozen=True)
class Row:
    """A class's row of the table."""

    name: str
    served: str
    note: str = ""


ROW, SEQUENCE = In((4,)), In((5, 4))
IMAGE, VOLUME = In((6, 6, 3)), In((4, 4, 4, 2))
IDS, TEXT = In((4,), "int32"), In((1,), "string")


def _case(make, *inputs):
    return Case(make, inputs)


def _each(inputs, names, *arguments, **named):
    """Cases of classes of these names, made with these arguments."""
    return {
        name: Case(
            lambda name=name: getattr(L, name)(*arguments, **named),
            tuple(inputs),
        )
        for name in names.split()
    }


CASES = {
    **_each(
        [ROW],
        "ActivityRegularization ELU Flatten Identity LayerNormalization "
        "LeakyReLU Masking PReLU RMSNormalization ReLU Softmax "
        "UnitNormalization BatchNormalization",
    ),
    **_each([ROW], "AlphaDropout Dropout GaussianDropout GaussianNoise", 0.5),
    **_each(
        [ROW, ROW],
        "Add Average Concatenate Maximum Minimum Multiply Subtract",
    ),
    **_each([ROW, ROW], "Dot", 1),
    **_each([ROW], "Activation", "tanh"),
    **_each([ROW], "Dense", 3, "tanh"),
    **_each([SEQUENCE], "EinsumDense", "abc,cd->abd", (5, 3), bias_axes="d"),
    **_each([IDS], "Embedding ReversibleEmbedding", 4, 3),
    **_each([ROW], "GroupNormalization RepeatVector", 2),
    "SpectralNormalization": _case(
        lambda: L.SpectralNormalization(L.Dense(3)), ROW
    ),
    **_each([ROW], "Lambda", lambda x: x * 2),
    **_each([ROW], "Normalization", mean=1.0, variance=2.0),
    **_each([ROW], "Rescaling", 2.0, 1.0),
    **_each([ROW], "Reshape", (2, 2)),
    **_each([SEQUENCE], "Permute", (2, 1)),
    # Sequences
    **_each([SEQUENCE, SEQUENCE], "AdditiveAttention"),
    **_each([SEQUENCE, SEQUENCE], "Attention", use_scale=True),
    **_each([SEQUENCE, SEQUENCE], "MultiHeadAttention", 2, 3),
    **_each([SEQUENCE, SEQUENCE], "GroupQueryAttention", 3, 4, 2),
    **_each([SEQUENCE], "SimpleRNN LSTM GRU", units=3),
    **{
        name: _case(lambda n=name: L.RNN(getattr(L, n)(3)), SEQUENCE)
        for name in ("SimpleRNNCell", "LSTMCell", "GRUCell")
    },
    "RNN": _case(lambda: L.RNN(L.SimpleRNNCell(3)), SEQUENCE),
    "StackedRNNCells": _case(
        lambda: L.RNN(
            L.StackedRNNCells([L.SimpleRNNCell(3), L.SimpleRNNCell(2)])
        ),
        SEQUENCE,
    ),
    "Bidirectional": _case(lambda: L.Bidirectional(L.LSTM(3)), SEQUENCE),
    "TimeDistributed": _case(lambda: L.TimeDistributed(L.Dense(3)), SEQUENCE),
    **_each([In((3, 4, 2))], "ConvLSTM1D", 2, 2),
    **_each([In((3, 4, 4, 2))], "ConvLSTM2D", 2, 2),
    **_each([In((2, 3, 3, 3, 1))], "ConvLSTM3D", 2, 2),
    # Convolutions
    **_each([SEQUENCE], "DepthwiseConv1D", 2),
    **_each([IMAGE], "DepthwiseConv2D", 2),
    # Features
    **_each([IDS], "CategoryEncoding", 4, output_mode="count"),
    **_each([ROW], "Discretization", [0.0, 1.0], output_mode="one_hot"),
    **_each([IDS], "Hashing", 4),
    **_each([In((1,), "int32"), In((1,), "int32")], "HashedCrossing", 4),
    **_each([IDS], "IntegerLookup", vocabulary=[1, 2]),
    **_each([TEXT], "StringLookup", vocabulary=["a", "b"]),
    **_each(
        [TEXT],
        "TextVectorization",
        vocabulary=["a", "b"],
        output_sequence_length=2,
    ),
    **_each(
        [In((32,))], "MelSpectrogram", 8, 4, num_mel_bins=3, sampling_rate=200
    ),
    **_each([In((32, 1))], "STFTSpectrogram", "magnitude", 8, trainable=True),
    # Images
    **_each(
        [IMAGE],
        "AugMix AutoContrast CutMix Equalization MixUp RandAugment "
        "RandomElasticTransform RandomErasing RandomFlip RandomGaussianBlur "
        "RandomGrayscale RandomInvert RandomPerspective",
    ),
    **_each([IMAGE], "CenterCrop RandomCrop Resizing", 4, 4),
    **_each(
        [IMAGE],
        "ContrastLimitedAdaptiveHistogramEqualization",
        tile_grid_size=(2, 2),
    ),
    "Pipeline": _case(lambda: L.Pipeline([L.RandomFlip()]), IMAGE),
    **_each([IMAGE], "RandomColorJitter", (0, 255), 0.5, 0.5, 0.5, 0.5),
    **_each([IMAGE], "RandomPosterization", 4),
    **_each([IMAGE], "RandomTranslation RandomShear", 0.3, 0.3),
    **_each([IMAGE], "RandomZoom", 0.3),
    **_each([IMAGE], "Solarization", 0.5),
    **_each(
        [IMAGE],
        "RandomBrightness RandomColorDegeneration RandomContrast RandomHue "
        "RandomRotation RandomSaturation RandomSharpness",
        factor=0.5,
    ),
}
#: Of one, two and three dimensions: names, and arguments.
RANKED = (
    ("Conv{0}D Conv{0}DTranspose SeparableConv{0}D", (2, 2)),
    ("AveragePooling{0}D MaxPooling{0}D", (2,)),
    ("AdaptiveAveragePooling{0}D AdaptiveMaxPooling{0}D", (2,)),
    ("GlobalAveragePooling{0}D GlobalMaxPooling{0}D", ()),
    ("UpSampling{0}D ZeroPadding{0}D", ()),
    ("Cropping{0}D", (1,)),
    ("SpatialDropout{0}D", (0.5,)),
)
for _rank, _input in ((1, SEQUENCE), (2, IMAGE), (3, VOLUME)):
    for _names, _arguments in RANKED:
        CASES.update(_each([_input], _names.format(_rank), *_arguments))

# TensorFlow or Keras has these in single precision only.
SINGLE = {
    "AdaptiveAveragePooling3D",
    "AdaptiveMaxPooling3D",
    "AugMix",
    "AveragePooling3D",
    "MaxPooling3D",
    "MelSpectrogram",
    "RandAugment",
    "RandomColorJitter",
    "RandomCrop",
    "RandomHue",
    "RandomRotation",
}

# Training changes its weights with every call: the oracle, which calls it
# sample by sample, takes it as it is after one call for training.
STATEFUL = {"SpectralNormalization"}

SKIPPED = {
    "FlaxLayer": "needs Flax",
    "InputLayer": "is the input of a model",
    "InputSpec": "is no layer",
    "JaxLayer": "needs JAX",
    "Layer": "is the base class",
    "MaxNumBoundingBoxes": "takes bounding boxes, not tensors",
    "TFSMLayer": "needs a file",
    "TorchModuleWrapper": "needs PyTorch",
    "Wrapper": "is the base class of wrappers",
}


def names():
    """The classes of this version of Keras under their own names."""
    found = {
        name: thing
        for name, thing in vars(L).items()
        if isinstance(thing, type) and not name.startswith("_")
    }
    return sorted(
        name
        for name, cls in found.items()
        if cls.__name__ == name or cls.__name__ not in found
    )


class Around(keras.Model):
    """A layer between weights before and after it."""

    def __init__(self, layer, inputs):
        super().__init__()
        self.before = [
            L.Dense(i.shape[-1], name="before") if i.dtype == "float" else None
            for i in inputs
        ]
        self.layer = layer
        self.after = L.Dense(2, name="after")

    def build(self, shape):
        self.built = True

    def call(self, inputs, training=None):
        found = [
            tensor if dense is None else dense(tensor)
            for dense, tensor in zip(self.before, tf.nest.flatten(inputs))
        ]
        outputs = _call(self.layer, found, training)
        flat = [
            tf.reshape(tf.cast(t, self.compute_dtype), [tf.shape(t)[0], -1])
            for t in tf.nest.flatten(outputs)
        ]
        return self.after(tf.concat(flat, -1))


def _call(layer, tensors, training):
    kwargs = {"training": training} if layer._call_has_training_arg else {}
    if len(tensors) == 1:
        return layer(tensors[0], **kwargs)
    if isinstance(layer, (L.MultiHeadAttention, L.GroupQueryAttention)):
        return layer(*tensors, **kwargs)
    return layer(tensors, **kwargs)


def model_of(case):
    """The model around a layer, built, and a batch for it."""
    x = [i.values() for i in case.inputs]
    x = x[0] if len(x) == 1 else x
    layer = case.make()
    model = Around(layer, case.inputs)
    model(x, training=True)
    model.compile(loss="mse")
    return randomized(model), layer, x


def examine(name):
    """Tries a class out; raises where a gradient is wrong.

    Returns:
        Its `Row`.
    """
    if name in SKIPPED:
        return Row(name, "not tried", SKIPPED[name])
    dtype = "float32" if name in SINGLE else "float64"
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    keras.utils.set_random_seed(3)
    model, layer, x = model_of(CASES[name])
    y = np.random.default_rng(0).normal(size=(N, 2))
    y = y.astype(keras.config.floatx())
    state = [(v, v.numpy()) for v in model.variables]
    _restore(state)
    try:
        draws, uses, found = _record(model, x, y, training=True)
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        if "per-sample gradient" not in str(error):
            raise
        return Row(name, "refused", _plain(error))
    _restore(state)
    expected = oracle.batch_gradient(model, x, y, training=True)
    sums = [None if g is None else np.sum(g, 0) for g in found]
    oracle.assert_agree(sums, expected)
    _assert_apart(model, x, state)
    if CASES[name].inputs == (IMAGE,) and not layer.trainable_variables:
        assert_images_apart(CASES[name].make)
    _restore(state)
    if not draws:
        # With draws the oracle would draw anew for each sample; that samples
        # stay apart, which was asserted, makes the rows of `found` theirs.
        training = name not in STATEFUL
        _restore(state)
        if not training:
            model(x, training=True)
        expected = oracle.per_sample_gradients(model, x, y, None, training)
        oracle.assert_agree(
            [None if g is None else N * g for g in found], expected
        )
    own = {v.path for v in layer.trainable_variables}
    return _row(name, [use for path, use in uses if path in own])


def _plain(error):
    """The text of an error without what Keras puts around it.

    And without the line of code that made the op, which is one of the test.
    """
    inner = re.search(r"\x1b\[1m(.*?)\x1b\[0m", str(error), re.DOTALL)
    text, _, _ = (inner.group(1) if inner else str(error)).partition(
        " The op is made in "
    )
    return " ".join(text.split())


def _restore(state, seed=3):
    """The same numbers at the start, and the same draws."""
    # AugMix uses Python's own numbers; RandAugment of Keras 3.8 shuffles a
    # list of its class in place with them.
    random.seed(seed)
    if hasattr(L, "RandAugment"):
        L.RandAugment._AUGMENT_LAYERS.sort()
    for variable, value in state:
        variable.assign(value)


def _record(model, x, y, *, training):
    """The draws, the uses with their variables' paths, all gradients."""
    drawn, uses = [], []

    @tf.function(autograph=False)
    def step(x, y):
        tape = Noting(model, (x, y, None), training)
        with tape, draws_module.recording(drawn.append):
            loss = model._compile_loss(y, tape.forward(x))
        factors = tape.sample_gradients(loss)
        uses.extend((tape.variables[k].path, use) for k, use in tape.noted)
        return [None if f is None else f.materialize() for f in factors]

    return drawn, uses, step(x, tf.convert_to_tensor(y))


def _assert_apart(model, x, state):
    """Asserts that no sample's output depends on another sample."""
    other = tf.nest.map_structure(lambda t: tf.concat([t[1:2], t[1:]], 0), x)
    outputs = []
    for batch in (x, other):
        _restore(state)
        outputs.append(np.asarray(model(batch, training=True))[1:])
    limits = oracle.tolerance(keras.config.floatx())
    np.testing.assert_allclose(*outputs, **limits)


def assert_images_apart(make, seeds=5):
    """The same for what augments images, with numbers as images have them.

    Some do different things by chance, so that one seed shows little.
    """
    images = np.random.default_rng(0).integers(0, 256, (N, 8, 8, 3))
    images = images.astype(keras.config.floatx())
    darker = np.concatenate([images[:1] * 0.3, images[1:]])
    for seed in range(seeds):
        outputs = []
        for batch in (images, darker):
            keras.utils.set_random_seed(seed)
            layer = make()
            _restore([], seed)
            outputs.append(np.asarray(_call(layer, [batch], True))[1:])
        limits = oracle.tolerance(keras.config.floatx())
        np.testing.assert_allclose(*outputs, **limits)


NOTES = dict.fromkeys(
    ("GRUCell", "LSTMCell", "SimpleRNNCell"), "in an RNN layer"
)


def _row(name, uses):
    note = NOTES.get(name, "")
    if not uses:
        return Row(name, "no weights", note)
    ops = sorted({use.type for use in uses if not hasattr(use, "rule")})
    reasons = {use.reason for use in uses if getattr(use, "reason", None)}
    if reasons:
        return Row(name, "one by one", "; ".join(sorted(reasons)))
    if not ops:
        return Row(name, "rule", note)
    return Row(name, "ops", ", ".join(ops))


HEAD = """# How each layer of Keras is supported

`python docs/make_layer_table.py` writes this page. A test builds every class
and compares the page with the result. Aliases (`Convolution2D`, `AvgPool1D`,
...) are supported like the class that they stand for.
"""
#: What a row says of how a layer is served, the heading and what it means.
SECTIONS = {
    "ops": (
        "Rules of ops",
        "Fast, by the rules of the ops that use their weights:",
    ),
    "rule": (
        "A rule of the layer",
        "Fast; their weights are used in a loop, or by cuDNN (LSTM and GRU):",
    ),
    "one by one": (
        "One sample after the other",
        "Exact but slow: an op is differentiated for each sample. With noise "
        "it is refused.",
    ),
    "no weights": (
        "Without weights",
        "There are no weights to differentiate, and no samples mix:",
    ),
    "refused": (
        "Refused",
        "Per-sample gradients are undefined: training stops with this message.",
    ),
    "not tried": (
        "Not tried",
        "These are not layers to train, or need more than a test can give:",
    ),
}


def page(rows):
    """The text of docs/layers.md."""
    text = HEAD
    for served, (heading, meaning) in SECTIONS.items():
        chosen = [row for row in rows if row.served == served]
        if served == "no weights":
            lines = [", ".join(row.name for row in chosen) + "."]
        else:
            lines = [f"- {r.name}: {r.note}".rstrip(": ") for r in chosen]
        lines = "\n".join(lines)
        text += f"\n## {heading}\n\n{meaning}\n\n{lines}\n"
    return text


def read(text):
    """The rows of docs/layers.md by the name of the class."""
    rows = []
    for served, (heading, meaning) in SECTIONS.items():
        section = text.partition(f"\n## {heading}\n\n{meaning}\n\n")[2]
        section = section.partition("\n## ")[0].strip()
        if served == "no weights":
            names = section.rstrip(".").split(", ")
            rows += [Row(name, served) for name in names]
            continue
        for line in section.splitlines():
            name, _, note = line.removeprefix("- ").partition(": ")
            rows.append(Row(name, served, note))
    return {row.name: row for row in rows}
