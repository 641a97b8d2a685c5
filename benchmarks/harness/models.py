"""The benchmark models, as far as they do not depend on a framework.

The first six follow Subramani et al., arXiv 2010.09063. Weights are listed
in the order and layout of Keras; every framework starts from the same ones.
"""

import dataclasses
import itertools
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Spec:
    """Inputs, outputs and weights of a model.

    Attributes:
        inputs: shape of one sample.
        outputs: the number of logits; one logit means binary cross-entropy
            (a softmax over two classes whose first logit is zero).
        weights: (kind, shape) pairs; kind is "kernel", "zeros" or "ones".
        vocabulary: the number of ids where inputs are ids, else None.
    """

    inputs: tuple
    outputs: int
    weights: tuple
    vocabulary: int | None = None

    @property
    def classes(self):
        return max(self.outputs, 2)

    @property
    def parameters(self):
        return sum(math.prod(shape) for _, shape in self.weights)


def _dense(*sizes):
    pairs = []
    for i, o in itertools.pairwise(sizes):
        pairs += [("kernel", (i, o)), ("zeros", (o,))]
    return pairs


def _conv(size, *channels):
    pairs = []
    for i, o in itertools.pairwise(channels):
        pairs += [("kernel", (size, size, i, o)), ("zeros", (o,))]
    return pairs


def _block(width, heads, hidden):
    """Attention and a feed-forward part, each followed by a normalisation."""
    split = (heads, width // heads)
    norm = [("ones", (width,)), ("zeros", (width,))]
    projections = [("kernel", (width, *split)), ("zeros", split)] * 3
    output = [("kernel", (*split, width)), ("zeros", (width,))]
    return [
        *projections,
        *output,
        *norm,
        *_dense(width, hidden, width),
        *norm,
    ]


def _table(rows, width):
    return [("kernel", (rows, width))]


def _spec(inputs, outputs, weights, *, vocabulary=None):
    return Spec(inputs, outputs, tuple(weights), vocabulary=vocabulary)


_LSTM = [
    ("kernel", (100, 400)),
    ("kernel", (100, 400)),
    ("zeros", (400,)),
]
_CIFAR10 = (3, 32, 32, 64, 64, 128, 128, 256, 10)

#: The models of the table.
STANDARD = {
    "logreg": _spec((104,), 1, _dense(104, 1)),
    "ffnn": _spec((784,), 10, _dense(784, 50, 10)),
    "mnist": _spec(
        (28, 28, 1),
        10,
        [*_conv(8, 1, 16), *_conv(4, 16, 32), *_dense(512, 32, 10)],
    ),
    "cifar10": _spec((32, 32, 3), 10, _conv(3, *_CIFAR10)),
    "embed": _spec(
        (256,), 2, _table(10_004, 16) + _dense(16, 2), vocabulary=10_004
    ),
    "lstm": _spec(
        (64,),
        2,
        [*_table(10_004, 100), *_LSTM, *_dense(100, 2)],
        vocabulary=10_004,
    ),
    "transformer": _spec(
        (64,),
        2,
        [
            *_table(5_000, 128),
            *_block(128, 4, 512) * 2,
            *_dense(128, 2),
        ],
        vocabulary=5_000,
    ),
}

#: Models that would be expensive if per-sample gradients were written out.
LARGE = {
    "dense4096": _spec((4096,), 4096, _dense(4096, 4096)),
    "embed_million": _spec(
        (256,), 2, _table(1_000_000, 16) + _dense(16, 2), vocabulary=1_000_000
    ),
}

#: A net without kinks: figures of two frameworks are equal to rounding.
SMOOTH = {
    "digits": _spec((8, 8, 1), 10, [*_conv(3, 1, 8, 16), *_dense(64, 10)]),
}

SPECS = {**STANDARD, **LARGE, **SMOOTH}


def make_weights(name, seed=0):
    """The weights every framework starts from: a list of float32 arrays."""
    rng = np.random.default_rng(seed)
    arrays = []
    for kind, shape in SPECS[name].weights:
        if kind == "kernel":
            limit = math.sqrt(6 / (math.prod(shape[:-1]) + shape[-1]))
            array = rng.uniform(-limit, limit, shape)
        else:
            array = np.full(shape, float(kind == "ones"))
        arrays.append(array.astype("float32"))
    return arrays


def make_batch(name, n, seed=1):
    """A batch of n samples: (x, y), float32 or int32 and int32."""
    spec = SPECS[name]
    rng = np.random.default_rng(seed)
    if spec.vocabulary:
        x = rng.integers(0, spec.vocabulary, (n, *spec.inputs), "int32")
    else:
        x = rng.normal(size=(n, *spec.inputs)).astype("float32")
    return x, rng.integers(0, spec.classes, n).astype("int32")
