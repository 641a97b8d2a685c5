"""Layers that no rule knows, behind and before a Dense, against the oracle."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests.marks import few
from tests.uses.own_layer import between
from tests.uses.rules.exact import RUNS, assert_exact, normal

pytestmark = pytest.mark.usefixtures("float64")


def loop(x, w, b):
    def body(i, h):
        return i + 1, ops.tanh(h @ w + ops.mean(x, 1) @ b)

    start = ops.zeros((ops.shape(x)[0], 4), x.dtype)
    return tf.while_loop(lambda i, h: i < 3, body, (0, start))[1]


def scan(x, w):
    steps = ops.transpose(x, (1, 0, 2))

    def step(h, e):
        h = ops.tanh(h + e @ w)
        return h, h * 2

    last, all_steps = ops.scan(step, ops.zeros_like(steps[0][:, :4]), steps)
    return last + ops.sum(all_steps, 0)


def standardized(x, w):
    w = ops.convert_to_tensor(w)
    return x @ ((w - ops.mean(w, 0)) / (ops.std(w, 0) + 1e-3))


def with_own_gradient(x, w):
    @tf.custom_gradient
    def f(x, w):
        y = tf.tanh(x @ w)

        def gradient(dy):
            d = dy * (1 - y * y)
            return d @ tf.transpose(w), tf.einsum("nta,ntb->ab", x, d)

        return y, gradient

    return f(x, tf.convert_to_tensor(w))


def repeated_product(x, a, w):
    """As in DeBERTa, for a number of samples that is not known."""
    rows = ops.repeat(ops.expand_dims(a, 0), ops.shape(x)[0], 0)
    rows = tf.matmul(rows, tf.convert_to_tensor(w))
    return tf.matmul(x, rows, transpose_b=True)


def one_tensor(function):
    """The function, given its weight as one tensor for all its uses."""
    return lambda x, w: function(x, tf.convert_to_tensor(w))


def turned(x, w, u=None):
    def body(i, h):
        h = ops.tanh(h @ w)
        return i + 1, h if u is None else h @ u

    return tf.while_loop(lambda i, h: i < 2, body, (0, x))[1]


def solved(x, w):
    """A system with a column for each sample, as a flow has."""
    matrix = 3 * tf.eye(5, dtype=x.dtype) + ops.tanh(w)
    found = tf.linalg.solve(matrix, ops.transpose(x[:, 0]))
    return x * ops.transpose(found)[:, None]


def rounded(x, low, high):
    """Rounded to 16 steps of a range that is trained."""
    return tf.raw_ops.QuantizeAndDequantizeV4(
        input=x,
        input_min=ops.tanh(low) - 1.5,
        input_max=ops.tanh(high) + 1.5,
        range_given=True,
        num_bits=4,
    )


def cast_to_complex(x, w):
    return tf.math.imag(tf.complex(x, 2 * x) * tf.cast(w, tf.complex128))


def rows_looked_up(x, w):
    return x[..., :4] * tf.gather_nd(w, ops.cast(x[..., :1] > 0, "int32"))


def two_maps(x, w):
    rows = tf.map_fn(lambda r: ops.tanh(r @ w), x)
    return tf.map_fn(lambda r: r @ w, rows)


def complex_twice(x, w):
    w = tf.complex(w, ops.sin(w))
    y = tf.complex(x, 2 * x) @ w @ w
    return tf.math.real(y) * tf.math.imag(y)


def experts(x, gate, w):
    h = ops.einsum("ntd,edf->ntef", x, w)
    return ops.einsum("nte,ntef->ntf", ops.softmax(x @ gate), h)


def attention(x, q, k, v):
    scores = (x @ q) @ ops.transpose(x @ k, (0, 2, 1))
    return ops.softmax(scores) @ (x @ v)


def relative_bias(x, q, b):
    table = ops.reshape(ops.take(b, np.arange(36) % 11, 0), (1, 6, 6))
    scores = (x @ q) @ ops.transpose(x @ q, (0, 2, 1))
    return ops.softmax(scores + table) @ x


def again_and_again(x, w):
    for _ in range(3):
        x = ops.tanh(x @ w)
    return x


def time_major(x, w):
    x = ops.reshape(ops.transpose(x, (1, 0, 2)), (-1, 5)) @ w
    return ops.transpose(ops.reshape(x, (6, -1, 4)), (1, 0, 2))


def merged(x, w, b):
    return ops.reshape(ops.reshape(x, (-1, 5)) @ w * b, (-1, 6, 4))


def in_class_token(x, c):
    token = ops.broadcast_to(c, (ops.shape(x)[0], 1, 5))
    return ops.concatenate([token, x], 1)


def tiled_token(x, c):
    return ops.concatenate([ops.tile(c, (ops.shape(x)[0], 2, 1)), x], 1)


def gated(x, a, b):
    return ops.where(x[..., :1] > 0, x @ a, x @ b)


def squeezed(x, a, b):
    s = ops.relu(ops.mean(x, 1, keepdims=True) @ a)
    return x * ops.sigmoid(s @ b)


def hyper(x, w, v):
    made = ops.reshape(ops.mean(x, 1) @ w, (-1, 5, 2))
    return ops.einsum("ndf,ntd->ntf", made, x) @ v


@tf.function(autograph=False)
def inner(x, w):
    return tf.tanh(x @ w)


@tf.function(autograph=False)
def outer(x, w, b):
    return tf.tanh(inner(x, w) + b)


def in_function(x, w, b):
    return outer(x, tf.convert_to_tensor(w), tf.convert_to_tensor(b))


def looked_up(x, w):
    """Entries that are the same for all samples, and the whole."""
    found = tf.gather(w.value, [4, 0, 2, 2, 1])
    return x * found * tf.gather_nd(w.value, [[2], [0], [1], [3], [3]]) + w


def looked_up_by_default(x, w):
    """What a table gives for a key that it has not, from the weight."""
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant([1], "int64"), tf.constant([0.0], "float64")
    )
    table = tf.lookup.StaticHashTable(initializer, 0.0)
    found = tf.raw_ops.LookupTableFindV2(
        table_handle=table.resource_handle,
        keys=tf.constant([5], "int64"),
        default_value=tf.convert_to_tensor(w)[0],
    )
    found.set_shape([1])
    return x * w + found


def looked_up_in_function(x, w):
    @tf.function(autograph=False)
    def act(x):
        return looked_up(x, w)

    return act(x)


def conditional(x, w):
    return tf.cond(
        tf.reduce_sum(tf.zeros_like(x[0, 0, 0])) < 1,
        lambda: tf.tanh(x @ w),
        lambda: x[..., :4],
    )


def einsum_sample_last(x, w):
    x = ops.einsum("ntd->dtn", x)
    return ops.einsum("dtn,df->nft", x, w)


def both_sides(x, c):
    return (c - x) * ops.maximum(x, c) + ops.where(x > 0, c, x) / (2 + c * c)


def split(x, w):
    return sum((x @ q) ** (k + 1) for k, q in enumerate(ops.split(w, 2, 1)))


def fourier(x, re, im):
    """Weights for frequencies (FNO, arXiv 2010.08895)."""
    transformed = tf.signal.fft(tf.complex(x, 0 * x))
    weighted = transformed * tf.complex(*map(tf.convert_to_tensor, (re, im)))
    return tf.math.real(tf.signal.ifft(weighted))


def mixed_frequencies(x, re, im):
    transformed = tf.signal.fft(tf.complex(x, 0 * x))
    kernel = tf.complex(*map(tf.convert_to_tensor, (re, im)))
    return tf.math.real(tf.signal.ifft(tf.matmul(transformed, kernel)))


def stopped(x, w):
    return x @ w[:, :2] + x @ ops.stop_gradient(w[:, 2:])


def mapped(x, w):
    return ops.vectorized_map(lambda r: ops.tanh(r @ w), x)


def bilinear(x, w):
    return ops.einsum("nti,ijk,ntj->ntk", x, w, x)


def joined(axis):
    return lambda x, a, b: x @ ops.concatenate([a, b], axis)


def spectral_kernel(x, w):
    """A kernel of real numbers that is computed by way of complex ones."""
    w = tf.cast(w, tf.complex128)
    eye = tf.eye(5, dtype=tf.float64)
    return x @ tf.math.imag(w @ w * tf.complex(eye + 1, 2 * eye))


LAYERS = {
    "entries looked up": (looked_up, (5,)),
    "looked up by default": (looked_up_by_default, (5,)),
    "entries looked up in a function": (looked_up_in_function, (5,)),
    "one plus": (lambda x, s: x * (1 + s), (5,)),
    "weight normalisation": (
        lambda x, v, g: x @ (g * v / ops.sqrt(ops.sum(v * v, 0))),
        (5, 4),
        (4,),
    ),
    "weight standardisation": (standardized, (5, 4)),
    "kernel of frequencies": (spectral_kernel, (5, 5)),
    "low rank": (lambda x, k, a, b: x @ (k + a @ b), (5, 4), (5, 2), (2, 4)),
    "low rank of heads": (
        lambda x, a, b: ops.einsum("ntd,dhe->nthe", x, ops.matmul(a, b)),
        (5, 3, 2),
        (2, 4),
    ),
    "transposed": (lambda x, w: x @ ops.transpose(w), (4, 5)),
    "reshaped": (lambda x, w: x @ ops.reshape(w, (5, 4)), (20,)),
    "slices": (lambda x, w: x @ w[:, :3] + (x @ w[:, 3:]) ** 2, (5, 6)),
    "overlapping": (lambda x, w: ops.tanh(x @ w[:, :4]) + x @ w[:, 2:], (5, 6)),
    "split": (split, (5, 8)),
    "concatenated": (joined(1), (5, 2), (5, 3)),
    "stacked below": (joined(0), (2, 4), (3, 4)),
    "looked up": (lambda x, w: x + ops.take(w, [0, 1, 1, 2, 0, 2], 0), (3, 5)),
    "positions": (lambda x, w: x + w[: ops.shape(x)[1]], (9, 5)),
    "position weights": (lambda x, w: x * w, (6, 1)),
    "class token": (in_class_token, (1, 1, 5)),
    "tiled token": (tiled_token, (1, 1, 5)),
    "zeros like": (lambda x, c: x * (ops.zeros_like(x) + c), (5,)),
    "both sides": (both_sides, (5,)),
    "power": (lambda x, c: ops.power(ops.abs(x) + 1, c), (5,)),
    "twice": (lambda x, w: ops.tanh(ops.tanh(x @ w) @ w), (5, 5)),
    "tied": (lambda x, w: ops.tanh(x @ w) @ ops.transpose(w), (5, 4)),
    "recurrent": (again_and_again, (5, 5)),
    "hyper-network": (hyper, (5, 10), (2, 3)),
    "squeeze and excite": (squeezed, (5, 2), (2, 5)),
    "time-major": (time_major, (5, 4)),
    "merged": (merged, (5, 4), (4,)),
    "sample last": (einsum_sample_last, (5, 4)),
    "bilinear": (bilinear, (5, 5, 3)),
    "gate": (gated, (5, 4), (5, 4)),
    "experts": (experts, (5, 3), (3, 5, 4)),
    "attention": (attention, (5, 3), (5, 3), (5, 4)),
    "relative bias": (relative_bias, (5, 3), (11,)),
    "stopped part": (stopped, (5, 4)),
    "mapped in one": (mapped, (5, 4)),
    "function in a function": (in_function, (5, 4), (4,)),
    "cumulated": (lambda x, w: x @ ops.cumsum(w, 0), (5, 4)),
    "unit norm": (lambda x, w: x @ (w / ops.norm(w)), (5, 4)),
    "repeated weight times another": (repeated_product, (4, 3), (3, 5)),
}
#: Name: the type of the op, and a layer.
ONE_BY_ONE = {
    "while loop": ("While", loop, (4, 4), (5, 4)),
    "scan": ("While", scan, (5, 4)),
    "condition": ("If", conditional, (5, 4)),
    "weights for frequencies": ("Mul", fourier, (6, 5), (6, 5)),
    "real weights for frequencies": (
        "Mul",
        lambda x, w: fourier(x, w, tf.zeros_like(w)),
        (6, 5),
    ),
    "weights cast to complex": ("Mul", cast_to_complex, (6, 5)),
    "frequencies mixed": ("BatchMatMulV2", mixed_frequencies, (5, 5), (5, 5)),
    "own gradient": ("IdentityN", with_own_gradient, (5, 4)),
    "look-up of rows": ("GatherNd", rows_looked_up, (3, 4)),
    "solved for columns": ("MatrixSolve", solved, (5, 5)),
    "rounded": ("QuantizeAndDequantizeV4", rounded, (), ()),
    "map over the samples": (
        "While",
        lambda x, w: ops.map(lambda r: ops.tanh(r @ w), x),
        (5, 4),
    ),
    # The data come from the same tensor of the weight, which is another use.
    "loop behind a loop": (
        "StatelessWhile",
        one_tensor(lambda x, w: turned(turned(x, w), w)),
        (5, 5),
    ),
    "map behind a map": ("StatelessWhile", one_tensor(two_maps), (5, 5)),
    "own gradient behind itself": (
        "IdentityN",
        one_tensor(lambda x, w: with_own_gradient(with_own_gradient(x, w), w)),
        (5, 5),
    ),
    "loop of a weight and of its multiple": (
        "StatelessWhile",
        one_tensor(lambda x, w: turned(x @ w, w, 3 * w)),
        (5, 5),
    ),
    "complex behind complex": (
        "BatchMatMulV2",
        one_tensor(complex_twice),
        (5, 5),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_is_exact(name):
    assert_exact(between(*LAYERS[name]), normal(4, 6, 5))


@pytest.mark.parametrize("name", few(ONE_BY_ONE, [*ONE_BY_ONE][::2], ()))
def test_is_exact_one_by_one(name):
    op, *case = ONE_BY_ONE[name]
    assert_exact(between(*case), normal(4, 6, 5), one_by_one=[op])


@pytest.mark.parametrize("run", [r for r in RUNS if r != "graph"])
@pytest.mark.parametrize("name", ["class token", "tied", "time-major"])
def test_however_it_runs(name, run):
    assert_exact(between(*LAYERS[name]), normal(3, 6, 5), run=run)
