"""Nets for tables, sets and graphs, as in keras.io's examples."""

import keras
import numpy as np
import tensorflow as tf

from tests.further import tasks
from tests.further.kinds import Own, attended, kind, layers, mlp, normed, ops

NODES = 5
#: The edges of a ring.
SOURCES = np.repeat(np.arange(NODES), 2)
TARGETS = (SOURCES + np.tile([1, -1], NODES)) % NODES


def _sent(x):
    """Sends rows along the edges of a graph that is the same for all."""
    sent = ops.transpose(ops.take(x, SOURCES, axis=1), (1, 0, 2))
    found = ops.segment_sum(sent, TARGETS, NODES)
    return ops.relu(ops.transpose(found, (1, 0, 2)))


@kind((NODES, 3))
def graph_convolution(x):
    """Messages along fixed edges."""
    for _ in range(2):
        x = Own(_sent)(layers.Dense(6)(x))
    return x


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


@kind((NODES, 3))
def graph_attention(inputs):
    """Attention along fixed edges."""
    return GraphAttention()(inputs)


@kind((NODES, 3), tasks.integers(2, NODES, NODES, dtype=None))
def molecules(nodes, edges):
    """One graph per sample, as matrices."""
    x = layers.Dense(4)(nodes)
    degree = ops.sum(edges, -1, keepdims=True) + 1
    for _ in range(2):
        x = layers.Dense(4, "relu")((ops.matmul(edges, x) + x) / degree)
    return x


@kind((NODES, 3), tasks.integers(NODES, 7, 2))
def listed_edges(x, edges):
    """One graph per sample, as edges."""
    source = ops.take_along_axis(x, edges[:, :, :1], 1)
    target = ops.take_along_axis(x, edges[:, :, 1:], 1)
    sent = layers.Dense(4, "tanh")(ops.concatenate([source, target], -1))
    to = ops.one_hot(edges[:, :, 1], NODES, dtype=sent.dtype)
    return ops.einsum("nek,ned->nkd", to, sent)


@kind((6, 3), tasks.integers(2, 6, 1, dtype=None))
def deep_sets(inputs, there):
    """Sums over sets with gaps."""
    x = layers.Dense(5, "relu")(layers.Dense(5, "tanh")(inputs)) * there
    return ops.sum(x, 1) / ops.maximum(ops.sum(there, 1), 1.0)


@kind((6, 3))
def set_transformer(inputs):
    """Induced points, pooling by attention."""
    x = layers.Dense(4)(inputs)
    seeds = layers.Dense(4)(ops.eye(2, dtype=x.dtype))[None]
    seeds = seeds + ops.zeros_like(x[:, :1, :1])
    induced = attended(seeds, x, 2, size=2)
    return x + attended(x, induced, 2, size=2)


def _gated(x, width=5):
    y = layers.Dense(width)(layers.Dense(width, "elu")(x))
    y = layers.Dense(width)(y) * layers.Dense(width, "sigmoid")(y)
    if x.shape[-1] != width:
        x = layers.Dense(width)(x)
    return normed(x + y)


@kind(*[(1,)] * 4)
def variable_selection(*inputs):
    """Gated residual nets, softmax over features."""
    rows = [_gated(layers.Dense(5)(one)) for one in inputs]
    weights = layers.Dense(4, "softmax")(_gated(layers.Concatenate()(rows)))
    return ops.sum(ops.stack(rows, 1) * weights[..., None], 1)


@kind(tasks.integers(9, 4), (3,))
def tab_transformer(ids, numbers):
    """Attention between categories."""
    x = layers.Embedding(9, 6)(ids) + layers.Embedding(4, 6)(ops.arange(4))
    x = layers.Flatten()(normed(x + attended(x)))
    return layers.Concatenate()([x, normed(numbers)])


def _leaves(right, leaves):
    """Soft decision trees: the odds of each leaf."""
    odds = ops.ones_like(right[..., :1])
    for depth in range(3):
        begin = 2**depth
        part = right[..., begin : 2 * begin]
        both = ops.stack([1 - part, part], -1) * odds[..., None]
        odds = ops.reshape(both, (-1, 2, 2 * begin))
    return ops.einsum("ntl,tlc->nc", odds, ops.softmax(leaves)) / 2


@kind((6,), y=tasks.LABELS)
def decision_forest(inputs):
    """Soft trees; fixed random features."""
    right = layers.Dense(2 * 8, "sigmoid")(inputs[:, 1:5])
    odds = Own(_leaves, (2, 8, tasks.CLASSES))(layers.Reshape((2, 8))(right))
    return odds, "sparse_categorical_crossentropy"


def _chosen_experts(x, scores, w):
    """The best experts of each token, with the noise-free gate."""
    value, index = ops.top_k(scores, 2)
    hot = ops.one_hot(index, 3, dtype=x.dtype)
    share = ops.sum(hot * ops.softmax(value)[..., None], -2)
    found = ops.gelu(ops.einsum("ntd,edk->ntek", x, w))
    return ops.einsum("ntek,nte->ntk", found, share)


@kind((4, 3))
def mixture_of_experts(x):
    """The two best experts of each token."""
    return Own(_chosen_experts, (3, 3, 4))([x, layers.Dense(3)(x)])


def _looked_up(x, expert, w):
    return ops.einsum("nd,ndk->nk", x, ops.take(w, expert, axis=0))


@kind((3,), tasks.integers(3))
def kernels_by_ids(*inputs):
    """A separate kernel for each kind of sample."""
    return Own(_looked_up, (3, 3, 4))(list(inputs))


@kind((4, 3), (2,))
def hypernetwork(inputs, context):
    """Weights computed for each sample."""
    kernel = layers.Reshape((3, 5))(layers.Dense(15, "tanh")(context))
    return ops.tanh(ops.matmul(inputs, kernel))


class Triplet(keras.losses.Loss):
    """An anchor nearer to its like than to another, in one sample."""

    def call(self, y_true, y_pred):
        anchor, like, other = (y_pred[:, k] for k in range(3))
        near = ops.sum((anchor - like) ** 2, -1)
        far = ops.sum((anchor - other) ** 2, -1)
        return ops.relu(near - far + 2.0) + 0 * y_true[:, 0]


@kind((3, 6, 6, 1), y=(1,))
def siamese_triplet(inputs):
    """Three images per sample."""
    encoder = keras.Sequential(
        [
            layers.Conv2D(3, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(4),
            layers.UnitNormalization(),
        ]
    )
    return ops.stack([encoder(inputs[:, k]) for k in range(3)], 1), Triplet()


@kind((2, 5), y=tasks.given([[1], [0], [1]]))
def siamese_pairs(inputs):
    """Two images per sample, contrastive."""
    x = layers.TimeDistributed(layers.Dense(4, "tanh"))(inputs)
    far = ops.norm(x[:, 0] - x[:, 1] + 1e-6, axis=-1, keepdims=True)

    def contrastive(y, d):
        return ops.mean(y * d**2 + (1 - y) * ops.relu(1 - d) ** 2, -1)

    return far, contrastive


class Mixture(keras.losses.Loss):
    """The likelihood of a mixture of normal distributions."""

    def call(self, y_true, y_pred):
        weights, means, logs = ops.split(y_pred, 3, -1)
        z = (y_true - means) * ops.exp(-logs)
        parts = ops.log_softmax(weights) - 0.5 * z**2 - logs
        return -ops.logsumexp(parts, -1)


@kind((2,), y=(1,))
def mixture_density(inputs):
    """A mixture of normal distributions."""
    return mlp(2, 6, 9)(inputs), Mixture()


@kind((4,), y=(1,))
def quantiles(inputs):
    """Several quantiles, by the pinball loss."""
    steps = layers.Dense(3, "softplus")(layers.Dense(5, "relu")(inputs))

    def pinball(y, p):
        gap = y - p
        rates = np.array([0.1, 0.5, 0.9])
        return ops.mean(ops.maximum(rates * gap, (rates - 1) * gap), -1)

    return ops.cumsum(steps, -1), pinball


def _curves(x, w):
    """A curve of its own for each connection (Kolmogorov–Arnold)."""
    bumps = ops.exp(-((x[..., None] - np.linspace(-2, 2, 5)) ** 2))
    return ops.einsum("nik,ikj->nj", bumps, w)


@kind((3,))
def kolmogorov_arnold(inputs):
    """Learned curves as connections."""
    return Own(_curves, (4, 5, 4))(Own(_curves, (3, 5, 4))(inputs))


def _regressed(x, y, new, log_scale):
    """A Gaussian process through the points of each sample."""

    def kernel(a, b):
        far = ops.sum((a[:, :, None] - b[:, None]) ** 2, -1)
        return ops.exp(-far * ops.exp(log_scale))

    root = ops.cholesky(kernel(x, x) + 0.1 * ops.eye(5, dtype=x.dtype))
    z = ops.solve_triangular(root, y, lower=True)
    half = ops.solve_triangular(root, kernel(x, new), lower=True)
    return ops.matmul(ops.transpose(half, (0, 2, 1)), z)


@kind((5, 2), (5, 1), (3, 2), y=(3, 1))
def gaussian_process(x, y, new):
    """A process through each sample's points."""
    encode = layers.Dense(3, "tanh")
    return Own(_regressed, (1,))([encode(x), y, encode(new)]), "mse"


@kind((2,))
def ordinal_bins(inputs):
    """Discretised numbers, hashed and crossed."""
    found = layers.Discretization(bin_boundaries=[-0.5, 0.0, 0.7])(inputs)
    x = layers.Flatten()(layers.Embedding(4, 3)(found))
    numbers = layers.Normalization(mean=0.1, variance=2)(inputs)
    return layers.Dense(4, "relu")(layers.Concatenate()([x, numbers]))


@kind((4,), y=[tasks.LABELS, (2,)])
def twice_the_outputs(inputs):
    """Losses of two outputs; weights shared."""
    hidden = layers.Dense(4, "tanh")
    a = hidden(hidden(inputs))
    outputs = [layers.Dense(tasks.CLASSES)(a), layers.Dense(2)(a)]
    return outputs, [tasks.CROSSENTROPY(), "cosine_similarity"], [1.0, 0.5]
