"""Recommenders, as in keras-rs and in keras.io's examples."""

import keras
import numpy as np

from tests.further.kinds import (
    N,
    integers,
    kind,
    layers,
    normal,
    ops,
    perturbed,
)

ITEMS, WIDTH = 12, 4
_LOGITS = {"from_logits": True}


def _clicks(model, x):
    """Compiled for a label of 0 or 1 a sample."""
    loss = keras.losses.BinaryCrossentropy(**_LOGITS)
    perturbed(model).compile("sgd", loss)
    return model, x, np.arange(N)[:, None] % 2.0


def _fields(count):
    """Inputs of one id each, their embeddings, and values."""
    inputs = [keras.Input((), dtype="int32") for _ in range(count)]
    embedded = [layers.Embedding(ITEMS, WIDTH)(one) for one in inputs]
    return inputs, embedded, [integers(ITEMS, seed=k) for k in range(count)]


@kind("dlrm", "dense and sparse features, dot products of pairs")
def dlrm():
    inputs, embedded, ids = _fields(3)
    numbers = keras.Input((5,))
    bottom = layers.Dense(WIDTH, "relu")(numbers)
    rows = ops.stack([bottom, *embedded], 1)
    pairs = ops.matmul(rows, ops.transpose(rows, (0, 2, 1)))
    lower = np.tril_indices(4, -1)
    places = np.ravel_multi_index(lower, (4, 4))
    pairs = ops.take(ops.reshape(pairs, (-1, 16)), places, axis=1)
    top = layers.Dense(6, "relu")(ops.concatenate([bottom, pairs], 1))
    model = keras.Model([numbers, *inputs], layers.Dense(1)(top))
    return _clicks(model, [normal(5), *ids])


class _Cross(layers.Layer):
    def build(self, shape):
        self.dense = layers.Dense(shape[0][-1])
        self.dense.build(shape[0])

    def call(self, pair):
        first, x = pair
        return first * self.dense(x) + x


@kind("dcn", "cross layers")
def dcn():
    inputs, embedded, ids = _fields(3)
    first = x = ops.concatenate(embedded, 1)
    for _ in range(2):
        x = _Cross()([first, x])
    return _clicks(keras.Model(inputs, layers.Dense(1)(x)), ids)


@kind("deepfm", "factorisation machine and a deep part")
def deepfm():
    inputs, embedded, ids = _fields(3)
    rows = ops.stack(embedded, 1)
    square = ops.square(ops.sum(rows, 1)) - ops.sum(ops.square(rows), 1)
    wide = ops.add(*[layers.Embedding(ITEMS, 1)(i) for i in inputs[:2]])
    deep = layers.Dense(5, "relu")(layers.Flatten()(rows))
    logits = wide + layers.Dense(1)(deep)
    logits += 0.5 * ops.sum(square, 1, keepdims=True)
    return _clicks(keras.Model(inputs, logits), ids)


@kind("autoint", "attention between fields")
def autoint():
    inputs, embedded, ids = _fields(3)
    rows = ops.stack(embedded, 1)
    rows = layers.ReLU()(rows + layers.MultiHeadAttention(2, 3)(rows, rows))
    return _clicks(
        keras.Model(inputs, layers.Dense(1)(layers.Flatten()(rows))), ids
    )


@kind("neural_matrix_factorisation", "products and a deep part")
def ncf():
    inputs, (user, item), ids = _fields(2)
    deep = layers.Dense(4, "relu")(ops.concatenate([user, item], 1))
    both = ops.concatenate([user * item, deep], 1)
    return _clicks(keras.Model(inputs, layers.Dense(1)(both)), ids)


@kind("two_tower_negatives", "retrieval; negatives of each sample")
def two_tower():
    user, items = (
        keras.Input((), dtype="int32"),
        keras.Input((5,), dtype="int32"),
    )
    query = layers.Dense(3)(layers.Embedding(ITEMS, WIDTH)(user))
    candidates = layers.Dense(3)(layers.Embedding(ITEMS, WIDTH)(items))
    logits = ops.einsum("nd,nkd->nk", query, candidates) / 0.5
    model = perturbed(keras.Model([user, items], logits))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(**_LOGITS))
    x = [integers(ITEMS), integers(ITEMS, 5, seed=1)]
    return model, x, np.zeros((N, 1), "int32")


class _Catalogue(layers.Layer):
    """Scores of all items by the table that embeds them."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, x):
        return ops.matmul(x, ops.transpose(self.table.embeddings))


@kind("sasrec", "next item by causal attention, one table")
def sasrec():
    ids = keras.Input((6,), dtype="int32")
    table = layers.Embedding(ITEMS, WIDTH)
    places = layers.Embedding(6, WIDTH)(ops.arange(6))
    x = table(ids) + places
    for _ in range(2):
        normed = layers.LayerNormalization()(x)
        x += layers.MultiHeadAttention(1, WIDTH)(
            normed, normed, use_causal_mask=True
        )
        x += layers.Dense(WIDTH)(layers.Dense(6, "relu")(x))
    model = perturbed(keras.Model(ids, _Catalogue(table)(x)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(**_LOGITS))
    return model, integers(ITEMS, 6), integers(ITEMS, 6, seed=1)


@kind("gru4rec", "next item by a recurrent net")
def gru4rec():
    ids = keras.Input((6,), dtype="int32")
    x = layers.GRU(5)(layers.Embedding(ITEMS, WIDTH)(ids))
    model = perturbed(keras.Model(ids, layers.Dense(ITEMS)(x)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(**_LOGITS))
    return model, integers(ITEMS, 6), integers(ITEMS, seed=1)


@kind("deep_interest", "attention of a candidate to a history with gaps")
def deep_interest():
    past, item = (
        keras.Input((6,), dtype="int32"),
        keras.Input((), dtype="int32"),
    )
    table = layers.Embedding(ITEMS, WIDTH)
    history, candidate = table(past), table(item)[:, None]
    candidate = ops.repeat(candidate, 6, 1)
    pair = ops.concatenate(
        [history, candidate, history * candidate, history - candidate], -1
    )
    scores = layers.Dense(1)(layers.Dense(4, "sigmoid")(pair))
    scores = ops.where(ops.equal(past, 0)[..., None], -1e9, scores)
    found = ops.sum(ops.softmax(scores, 1) * history, 1)
    logits = layers.Dense(1)(ops.concatenate([found, table(item)], -1))
    ids = integers(ITEMS, 6)
    ids[:, -1], ids[:, 0] = 0, 1
    return _clicks(keras.Model([past, item], logits), [ids, integers(ITEMS)])


@kind("wide_and_deep", "crossed, hashed, looked up strings", known=True)
def wide_and_deep():
    city, colour = (
        keras.Input((), dtype="string"),
        keras.Input((), dtype="string"),
    )
    numbers = keras.Input((3,))
    look = layers.StringLookup(
        vocabulary=["rome", "oslo"], output_mode="one_hot"
    )
    hashed = layers.Hashing(7)(colour)
    crossed = layers.HashedCrossing(9, output_mode="one_hot")((city, colour))
    deep = layers.Embedding(7, WIDTH)(hashed)
    deep = layers.Dense(5, "relu")(ops.concatenate([deep, numbers], 1))
    wide = ops.concatenate(
        [ops.cast(t, deep.dtype) for t in (look(city), crossed)], 1
    )
    logits = layers.Dense(1)(ops.concatenate([wide, deep], 1))
    x = [
        np.array(["oslo", "rome", "bern"]),
        np.array(["red", "blue", "red"]),
        normal(3),
    ]
    return _clicks(keras.Model([city, colour, numbers], logits), x)


@kind("multi_task_experts", "gates of tasks over shared experts")
def mmoe():
    inputs, embedded, ids = _fields(3)
    x = ops.concatenate(embedded, 1)
    experts = ops.stack([layers.Dense(4, "relu")(x) for _ in range(3)], 1)
    outputs = []
    for _ in range(2):
        gate = layers.Dense(3, "softmax")(x)
        mixed = ops.einsum("ne,ned->nd", gate, experts)
        outputs.append(layers.Dense(1)(mixed))
    model = perturbed(keras.Model(inputs, outputs))
    binary = keras.losses.BinaryCrossentropy(**_LOGITS)
    model.compile("sgd", [binary, "mse"], loss_weights=[1.0, 0.3])
    return model, ids, [np.arange(N)[:, None] % 2.0, normal(1)]


class _Pairwise(keras.losses.Loss):
    """Each relevant item above each other item of the same sample."""

    def call(self, y_true, y_pred):
        above = y_true[:, :, None] > y_true[:, None]
        gap = y_pred[:, :, None] - y_pred[:, None]
        return ops.sum(ops.softplus(-gap) * ops.cast(above, gap.dtype), (1, 2))


def _ranked(loss, y):
    """Scores of a list of items a sample."""
    inputs = keras.Input((5, 3))
    scores = layers.Dense(1)(layers.Dense(6, "tanh")(inputs))[..., 0]
    model = perturbed(keras.Model(inputs, scores))
    model.compile("sgd", loss)
    return model, normal(5, 3), y


@kind("pairwise_ranking", "a list of items a sample")
def ranking():
    return _ranked(_Pairwise(), integers(3, 5).astype("float32"))


@kind("listwise_ranking", "a list of items a sample")
def listwise():
    y = abs(normal(5))
    loss = keras.losses.CategoricalCrossentropy(**_LOGITS)
    return _ranked(loss, y / y.sum(1, keepdims=True))
