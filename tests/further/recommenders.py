"""Recommenders, as in keras-rs and in keras.io's examples."""

import functools

import keras
import numpy as np

from tests.further import tasks
from tests.further.kinds import attended, kind, layers, normed, ops

ITEMS, WIDTH = 12, 4
ID, LIST = tasks.integers(ITEMS), tasks.integers(ITEMS, 6)


def clicks(*inputs, **settings):
    """Decorate a builder of features for a label of 0 or 1 a sample."""

    def register(build):
        @kind(*inputs, y=tasks.CLICKS, **settings)
        @functools.wraps(build)
        def clicked(*tensors):
            return layers.Dense(1)(build(*tensors)), tasks.BINARY()

        return clicked

    return register


def _embedded(ids):
    return [layers.Embedding(ITEMS, WIDTH)(one) for one in ids]


@clicks((5,), ID, ID, ID)
def dlrm(numbers, *ids):
    """Dense and sparse features, dot products of pairs."""
    bottom = layers.Dense(WIDTH, "relu")(numbers)
    rows = ops.stack([bottom, *_embedded(ids)], 1)
    pairs = ops.matmul(rows, ops.transpose(rows, (0, 2, 1)))
    places = np.ravel_multi_index(np.tril_indices(4, -1), (4, 4))
    pairs = ops.take(ops.reshape(pairs, (-1, 16)), places, axis=1)
    return layers.Dense(6, "relu")(ops.concatenate([bottom, pairs], 1))


@clicks(ID, ID, ID)
def dcn(*ids):
    """Cross layers."""
    first = x = ops.concatenate(_embedded(ids), 1)
    for _ in range(2):
        x = first * layers.Dense(3 * WIDTH)(x) + x
    return x


@kind(ID, ID, ID, y=tasks.CLICKS)
def deepfm(*ids):
    """Factorisation machine and a deep part."""
    rows = ops.stack(_embedded(ids), 1)
    square = ops.square(ops.sum(rows, 1)) - ops.sum(ops.square(rows), 1)
    wide = ops.add(*[layers.Embedding(ITEMS, 1)(one) for one in ids[:2]])
    deep = layers.Dense(5, "relu")(layers.Flatten()(rows))
    logits = wide + layers.Dense(1)(deep)
    return logits + 0.5 * ops.sum(square, 1, keepdims=True), tasks.BINARY()


@clicks(ID, ID, ID)
def autoint(*ids):
    """Attention between fields."""
    rows = ops.stack(_embedded(ids), 1)
    return layers.Flatten()(layers.ReLU()(rows + attended(rows)))


@clicks(ID, ID)
def neural_matrix_factorisation(*ids):
    """Products and a deep part."""
    user, item = _embedded(ids)
    deep = layers.Dense(4, "relu")(ops.concatenate([user, item], 1))
    return ops.concatenate([user * item, deep], 1)


@kind(
    ID, tasks.integers(ITEMS, 5), y=tasks.given(np.zeros((tasks.N, 1)), "int32")
)
def two_tower_negatives(*ids):
    """Retrieval; negatives of each sample."""
    query, candidates = (layers.Dense(3)(rows) for rows in _embedded(ids))
    return ops.einsum(
        "nd,nkd->nk", query, candidates
    ) / 0.5, tasks.CROSSENTROPY()


class Catalogue(layers.Layer):
    """Scores of all items by the table that embeds them."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, x):
        return ops.matmul(x, ops.transpose(self.table.embeddings))


@kind(LIST, y=LIST)
def sasrec(ids):
    """Next item by causal attention, one table."""
    table = layers.Embedding(ITEMS, WIDTH)
    x = table(ids) + layers.Embedding(6, WIDTH)(ops.arange(6))
    for _ in range(2):
        x += attended(normed(x), None, 1, size=WIDTH, use_causal_mask=True)
        x += layers.Dense(WIDTH)(layers.Dense(6, "relu")(x))
    return Catalogue(table)(x), tasks.CROSSENTROPY()


@kind(LIST, y=ID)
def gru4rec(ids):
    """Next item by a recurrent net."""
    x = layers.GRU(5)(layers.Embedding(ITEMS, WIDTH)(ids))
    return layers.Dense(ITEMS)(x), tasks.CROSSENTROPY()


@clicks(
    tasks.given(
        [[1, 3, 5, 0, 7, 0], [1, 0, 2, 11, 4, 0], [1, 8, 8, 6, 9, 0]], "int32"
    ),
    ID,
)
def deep_interest(past, item):
    """Attention of a candidate to a history with gaps."""
    table = layers.Embedding(ITEMS, WIDTH)
    history = table(past)
    candidate = ops.repeat(table(item)[:, None], 6, 1)
    pair = ops.concatenate(
        [history, candidate, history * candidate, history - candidate], -1
    )
    scores = layers.Dense(1)(layers.Dense(4, "sigmoid")(pair))
    scores = ops.where(ops.equal(past, 0)[..., None], -1e9, scores)
    found = ops.sum(ops.softmax(scores, 1) * history, 1)
    return ops.concatenate([found, table(item)], -1)


def _strings(*values):
    return tasks.given(values, "string")


@clicks(
    _strings("oslo", "rome", "bern"),
    _strings("red", "blue", "red"),
    (3,),
    known=True,
)
def wide_and_deep(city, colour, numbers):
    """Crossed, hashed and looked-up strings."""
    look = layers.StringLookup(
        vocabulary=["rome", "oslo"], output_mode="one_hot"
    )
    crossed = layers.HashedCrossing(9, output_mode="one_hot")((city, colour))
    deep = layers.Embedding(7, WIDTH)(layers.Hashing(7)(colour))
    deep = layers.Dense(5, "relu")(ops.concatenate([deep, numbers], 1))
    wide = [ops.cast(t, deep.dtype) for t in (look(city), crossed)]
    return ops.concatenate([*wide, deep], 1)


@kind(ID, ID, ID, y=[tasks.CLICKS, (1,)])
def multi_task_experts(*ids):
    """Gates of tasks over shared experts."""
    x = ops.concatenate(_embedded(ids), 1)
    experts = ops.stack([layers.Dense(4, "relu")(x) for _ in range(3)], 1)
    outputs = []
    for _ in range(2):
        gate = layers.Dense(3, "softmax")(x)
        mixed = ops.einsum("ne,ned->nd", gate, experts)
        outputs.append(layers.Dense(1)(mixed))
    return outputs, [tasks.BINARY(), "mse"], [1.0, 0.3]


def _pairwise(y_true, y_pred):
    """Each relevant item above each other item of the same sample."""
    above = y_true[:, :, None] > y_true[:, None]
    gap = y_pred[:, :, None] - y_pred[:, None]
    return ops.sum(ops.softplus(-gap) * ops.cast(above, gap.dtype), (1, 2))


def _scores(items):
    return layers.Dense(1)(layers.Dense(6, "tanh")(items))[..., 0]


@kind((5, 3), y=tasks.integers(3, 5, dtype=None))
def pairwise_ranking(items):
    """A list of items per sample."""
    return _scores(items), _pairwise


@kind((5, 3), y=tasks.shares(5))
def listwise_ranking(items):
    """A list of items per sample."""
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    return _scores(items), loss
