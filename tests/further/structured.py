"""Nets for tables, sets and graphs, as in keras.io's examples."""

import keras
import numpy as np
import tensorflow as tf

from tests.further.kinds import (
    CLASSES,
    classified,
    crossentropy,
    integers,
    kind,
    labels,
    layers,
    normal,
    ops,
    perturbed,
)

NODES = 5
ADJACENCY = np.array(
    [
        [0, 1, 0, 0, 1],
        [1, 0, 1, 0, 0],
        [0, 1, 0, 1, 0],
        [0, 0, 1, 0, 1],
        [1, 0, 0, 1, 0],
    ]
)
SOURCES, TARGETS = np.nonzero(ADJACENCY)


class GraphConvolution(layers.Layer):
    """Sends rows along the edges of a graph that is the same for all."""

    def build(self, shape):
        self.dense = layers.Dense(6)
        self.dense.build(shape)

    def call(self, x):
        sent = ops.take(self.dense(x), SOURCES, axis=1)
        sent = ops.transpose(sent, (1, 0, 2))
        found = ops.segment_sum(sent, TARGETS, NODES)
        return ops.relu(ops.transpose(found, (1, 0, 2)))


@kind("graph_convolution", "messages along fixed edges")
def graph_convolution():
    inputs = keras.Input((NODES, 3))
    x = GraphConvolution()(GraphConvolution()(inputs))
    return classified(inputs, x, normal(NODES, 3))


class GraphAttention(layers.Layer):
    """Attention along fixed edges, by maxima and sums over each node."""

    def build(self, shape):
        self.dense, self.score = layers.Dense(4), layers.Dense(1)
        self.dense.build(shape)
        self.score.build((*shape[:-1], 8))

    def call(self, x):
        x = ops.transpose(self.dense(x), (1, 0, 2))
        pair = [tf.gather(x, SOURCES), tf.gather(x, TARGETS)]
        score = ops.leaky_relu(self.score(ops.concatenate(pair, -1)))
        top = tf.math.unsorted_segment_max(score, TARGETS, NODES)
        score = ops.exp(score - tf.gather(top, TARGETS))
        total = tf.math.unsorted_segment_sum(score, TARGETS, NODES)
        share = score / tf.gather(total, TARGETS)
        found = tf.math.unsorted_segment_sum(share * pair[0], TARGETS, NODES)
        return ops.transpose(found, (1, 0, 2))

    def compute_output_shape(self, shape):
        return (*shape[:-1], 4)


@kind("graph_attention", "attention along fixed edges")
def graph_attention():
    inputs = keras.Input((NODES, 3))
    return classified(inputs, GraphAttention()(inputs), normal(NODES, 3))


@kind("molecules", "a graph of its own for each sample, as matrices")
def molecules():
    nodes, edges = keras.Input((NODES, 3)), keras.Input((NODES, NODES))
    x = layers.Dense(4)(nodes)
    for _ in range(2):
        degree = ops.sum(edges, -1, keepdims=True) + 1
        x = layers.Dense(4, "relu")((ops.matmul(edges, x) + x) / degree)
    adjacency = integers(2, NODES, NODES).astype("float64")
    return classified([nodes, edges], x, [normal(NODES, 3), adjacency])


class EdgeMessages(layers.Layer):
    """Messages along edges that each sample lists itself."""

    def build(self, shapes):
        self.dense = layers.Dense(4, "tanh")
        self.dense.build((*shapes[0][:-1], 2 * shapes[0][-1]))

    def call(self, pair):
        x, edges = pair
        source = ops.take_along_axis(x, edges[:, :, :1], 1)
        target = ops.take_along_axis(x, edges[:, :, 1:], 1)
        sent = self.dense(ops.concatenate([source, target], -1))
        to = ops.one_hot(edges[:, :, 1], NODES, dtype=sent.dtype)
        return ops.einsum("nek,ned->nkd", to, sent)


@kind("listed_edges", "a graph of its own for each sample, as edges")
def listed_edges():
    nodes, edges = keras.Input((NODES, 3)), keras.Input((7, 2), dtype="int32")
    x = EdgeMessages()([nodes, edges])
    return classified(
        [nodes, edges], x, [normal(NODES, 3), integers(NODES, 7, 2)]
    )


@kind("deep_sets", "sums over sets with gaps")
def deep_sets():
    inputs, there = keras.Input((6, 3)), keras.Input((6, 1))
    x = layers.Dense(5, "relu")(layers.Dense(5, "tanh")(inputs)) * there
    x = ops.sum(x, 1) / ops.maximum(ops.sum(there, 1), 1.0)
    mask = integers(2, 6, 1).astype("float64")
    return classified([inputs, there], x, [normal(6, 3), mask])


@kind("set_transformer", "induced points, pooling by attention")
def set_transformer():
    inputs = keras.Input((6, 3))
    x = layers.Dense(4)(inputs)
    seeds = layers.Dense(4)(ops.eye(2, dtype=x.dtype))[None]
    seeds = seeds + ops.zeros_like(x[:, :1, :1])
    induced = layers.MultiHeadAttention(2, 2)(seeds, x)
    x += layers.MultiHeadAttention(2, 2)(x, induced)
    return classified(inputs, x, normal(6, 3))


def _gated(x, width=5):
    y = layers.Dense(width, "elu")(x)
    y = layers.Dense(width)(y)
    y = layers.Dense(width)(y) * layers.Dense(width, "sigmoid")(y)
    if x.shape[-1] != width:
        x = layers.Dense(width)(x)
    return layers.LayerNormalization()(x + y)


@kind("variable_selection", "gated residual nets, softmax over features")
def variable_selection():
    inputs = [keras.Input((1,)) for _ in range(4)]
    rows = [_gated(layers.Dense(5)(one)) for one in inputs]
    shares = layers.Dense(4, "softmax")(_gated(layers.Concatenate()(rows)))
    x = ops.sum(ops.stack(rows, 1) * shares[..., None], 1)
    return classified(inputs, x, [normal(1, seed=k) for k in range(4)])


@kind("tab_transformer", "attention between categories")
def tab_transformer():
    ids, numbers = keras.Input((4,), dtype="int32"), keras.Input((3,))
    x = layers.Embedding(9, 6)(ids) + layers.Embedding(4, 6)(ops.arange(4))
    y = layers.MultiHeadAttention(2, 3)(x, x)
    x = layers.LayerNormalization()(x + y)
    numbers_in = layers.LayerNormalization()(numbers)
    x = layers.Concatenate()([layers.Flatten()(x), numbers_in])
    return classified([ids, numbers], x, [integers(9, 4), normal(3)])


class Trees(layers.Layer):
    """Soft decision trees: the odds of each leaf."""

    def build(self, shape):
        self.leaves = self.add_weight((2, 8, CLASSES), name="leaves")
        self.dense = layers.Dense(2 * 8, "sigmoid")
        self.dense.build(shape)

    def call(self, x):
        right = ops.reshape(self.dense(x), (-1, 2, 8))
        odds = ops.ones_like(right[..., :1])
        for depth in range(3):
            begin = 2**depth
            part = right[..., begin : 2 * begin]
            both = ops.stack([1 - part, part], -1) * odds[..., None]
            odds = ops.reshape(both, (-1, 2, 2 * begin))
        return ops.einsum("ntl,tlc->nc", odds, ops.softmax(self.leaves)) / 2


@kind("decision_forest", "soft trees; drawn features are fixed")
def forest():
    inputs = keras.Input((6,))
    model = perturbed(keras.Model(inputs, Trees()(inputs[:, 1:5])))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    return model, normal(6), labels()


class Experts(layers.Layer):
    """The best experts of each token, with the noise-free gate."""

    def build(self, shape):
        self.gate = layers.Dense(3)
        self.gate.build(shape)
        self.w = self.add_weight((3, shape[-1], 4), name="w")

    def call(self, x):
        scores = self.gate(x)
        value, index = ops.top_k(scores, 2)
        hot = ops.one_hot(index, 3, dtype=x.dtype)
        share = ops.sum(hot * ops.softmax(value)[..., None], -2)
        found = ops.gelu(ops.einsum("ntd,edk->ntek", x, self.w))
        return ops.einsum("ntek,nte->ntk", found, share)


@kind("mixture_of_experts", "the two best experts of each token")
def experts():
    inputs = keras.Input((4, 3))
    return classified(inputs, Experts()(inputs), normal(4, 3))


class LookedUp(layers.Layer):
    """The kernel of an expert is looked up for each sample."""

    def build(self, shape):
        self.w = self.add_weight((3, shape[0][-1], 4), name="w")

    def call(self, pair):
        x, expert = pair
        kernels = ops.take(self.w, expert, axis=0)
        return ops.einsum("nd,ndk->nk", x, kernels)


@kind("kernels_by_ids", "a kernel of its own for each kind of sample")
def kernels_by_ids():
    x, ids = keras.Input((3,)), keras.Input((), dtype="int32")
    return classified([x, ids], LookedUp()([x, ids]), [normal(3), integers(3)])


@kind("hypernetwork", "weights made for each sample")
def hypernetwork():
    inputs, context = keras.Input((4, 3)), keras.Input((2,))
    kernel = layers.Reshape((3, 5))(layers.Dense(15, "tanh")(context))
    x = ops.tanh(ops.matmul(inputs, kernel))
    return classified([inputs, context], x, [normal(4, 3), normal(2)])


class Triplet(keras.losses.Loss):
    """An anchor nearer to its like than to another, in one sample."""

    def call(self, y_true, y_pred):
        anchor, like, other = (y_pred[:, k] for k in range(3))
        near = ops.sum((anchor - like) ** 2, -1)
        far = ops.sum((anchor - other) ** 2, -1)
        return ops.relu(near - far + 2.0) + 0 * y_true[:, 0]


@kind("siamese_triplet", "three images a sample")
def triplet():
    inputs = keras.Input((3, 6, 6, 1))
    encoder = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(3, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(4),
            layers.UnitNormalization(),
        ]
    )
    x = ops.stack([encoder(inputs[:, k]) for k in range(3)], 1)
    model = perturbed(keras.Model(inputs, x))
    model.compile("sgd", Triplet())
    return model, normal(3, 6, 6, 1), np.zeros((3, 1))


@kind("siamese_pairs", "two images a sample, contrastive")
def pairs():
    inputs = keras.Input((2, 5))
    x = layers.TimeDistributed(layers.Dense(4, "tanh"))(inputs)
    far = ops.norm(x[:, 0] - x[:, 1] + 1e-6, axis=-1, keepdims=True)
    model = perturbed(keras.Model(inputs, far))

    def contrastive(y, d):
        return ops.mean(y * d**2 + (1 - y) * ops.relu(1 - d) ** 2, -1)

    model.compile("sgd", contrastive)
    return model, normal(2, 5), np.array([[1.0], [0.0], [1.0]])


class Mixture(keras.losses.Loss):
    """The likelihood of a mixture of normal distributions."""

    def call(self, y_true, y_pred):
        shares, means, logs = ops.split(y_pred, 3, -1)
        z = (y_true - means) * ops.exp(-logs)
        parts = ops.log_softmax(shares) - 0.5 * z**2 - logs
        return -ops.logsumexp(parts, -1)


@kind("mixture_density", "a mixture of normal distributions")
def mixture():
    inputs = keras.Input((2,))
    x = layers.Dense(9)(layers.Dense(6, "tanh")(inputs))
    model = perturbed(keras.Model(inputs, x))
    model.compile("sgd", Mixture())
    return model, normal(2), normal(1)


@kind("quantiles", "several quantiles, by the pinball loss")
def quantiles():
    inputs = keras.Input((4,))
    steps = layers.Dense(3, "softplus")(layers.Dense(5, "relu")(inputs))
    model = perturbed(keras.Model(inputs, ops.cumsum(steps, -1)))

    def pinball(y, p):
        gap = y - p
        rates = np.array([0.1, 0.5, 0.9])
        return ops.mean(ops.maximum(rates * gap, (rates - 1) * gap), -1)

    model.compile("sgd", pinball)
    return model, normal(4), normal(1)


class Kan(layers.Layer):
    """A curve of its own for each connection (Kolmogorov–Arnold)."""

    def build(self, shape):
        self.centres = np.linspace(-2, 2, 5)
        self.w = self.add_weight((shape[-1], 5, 4), name="w")

    def call(self, x):
        bumps = ops.exp(-((x[..., None] - self.centres) ** 2))
        return ops.einsum("nik,ikj->nj", bumps, self.w)


@kind("kolmogorov_arnold", "curves as connections")
def kan():
    inputs = keras.Input((3,))
    return classified(inputs, Kan()(Kan()(inputs)), normal(3))


class KernelRegression(layers.Layer):
    """A Gaussian process through the points of each sample."""

    def build(self, shapes):
        self.scale = self.add_weight((), initializer="ones", name="scale")

    def _kernel(self, a, b):
        far = ops.sum((a[:, :, None] - b[:, None]) ** 2, -1)
        return ops.exp(-far * self.scale)

    def call(self, given):
        x, y, new = given
        k = self._kernel(x, x) + 0.1 * ops.eye(x.shape[1], dtype=x.dtype)
        root = ops.cholesky(k)
        z = ops.solve_triangular(root, y, lower=True)
        half = ops.solve_triangular(root, self._kernel(x, new), lower=True)
        return ops.matmul(ops.transpose(half, (0, 2, 1)), z)


@kind("gaussian_process", "a process through each sample's points")
def process():
    x, y, new = keras.Input((5, 2)), keras.Input((5, 1)), keras.Input((3, 2))
    encode = layers.Dense(3, "tanh")
    found = KernelRegression()([encode(x), y, encode(new)])
    model = perturbed(keras.Model([x, y, new], found))
    model.compile("sgd", "mse")
    return model, [normal(5, 2), normal(5, 1), normal(3, 2)], normal(3, 1)


@kind("ordinal_bins", "discretised numbers, hashed and crossed")
def bins():
    inputs = keras.Input((2,))
    found = layers.Discretization(bin_boundaries=[-0.5, 0.0, 0.7])(inputs)
    x = layers.Flatten()(layers.Embedding(4, 3)(found))
    x = layers.Concatenate()(
        [x, layers.Normalization(mean=0.1, variance=2)(inputs)]
    )
    return classified(inputs, layers.Dense(4, "relu")(x), normal(2))


@kind("twice_the_outputs", "losses of two outputs; weights shared")
def shared():
    inputs = keras.Input((4,))
    hidden = layers.Dense(4, "tanh")
    a = hidden(hidden(inputs))
    model = keras.Model(inputs, [layers.Dense(CLASSES)(a), layers.Dense(2)(a)])
    perturbed(model).compile(
        "sgd", [crossentropy(), "cosine_similarity"], loss_weights=[1.0, 0.5]
    )
    return model, normal(4), [labels(), normal(2)]
