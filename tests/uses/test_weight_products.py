"""Weights that are products of weights, and never written out."""

import pytest
import tensorflow as tf
from keras import layers, ops

import keras_pergrad as kpg
from tests.uses.own_layer import Own, between
from tests.uses.rules.exact import assert_exact, normal, stack

pytestmark = pytest.mark.usefixtures("float64")


def kernel(make, *weights):
    """A kernel that is a product of weights, with more behind it."""
    return 3 - make(*weights) / 2


def around(equation, make, *shapes):
    """A model with an einsum of a layer's input and a product of weights."""

    def call(x, *weights):
        return ops.tanh(ops.einsum(equation, x, kernel(make, *weights)))

    return between(call, *shapes)


def einsum(equation):
    return lambda a, b: ops.einsum(equation, a, b)


def turned(a, b):
    return ops.transpose(tf.matmul(a, b, transpose_b=True))


def kronecker(a, b):
    return ops.reshape(ops.einsum("ab,cd->acbd", a, b), (5, 8))


def heads_first(a, b):
    return ops.reshape(ops.reshape(a, (15, 2)) @ b, (3, 5, 4))


def in_heads(a, b):
    return ops.reshape(a @ b, (5, 2, 3))


def three(a, b, c):
    return a @ b @ c


PLAIN, HEADS = "ntd,de->nte", "ntd,dhe->nthe"
BLOCKS = einsum("dhr,hre->dhe")
CASES = {
    "matrix": (PLAIN, ops.matmul, (5, 2), (2, 4)),
    "turned": (PLAIN, turned, (4, 2), (5, 2)),
    "heads of the output": (HEADS, ops.matmul, (5, 3, 2), (2, 4)),
    "heads of the input": (HEADS, in_heads, (5, 2), (2, 6)),
    "heads first": ("ntd,hde->nthe", heads_first, (3, 5, 2), (2, 4)),
    "a block of the output": (HEADS, BLOCKS, (5, 3, 2), (3, 2, 4)),
    "a block of the input": (PLAIN, einsum("dr,dre->de"), (5, 2), (5, 2, 4)),
    "Kronecker": (PLAIN, kronecker, (1, 4), (5, 2)),
    "three": (PLAIN, three, (5, 2), (2, 3), (3, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_is_exact(name):
    model = around(*CASES[name])
    for run, n in (("graph", 4), ("known size", 1)):
        assert_exact(model, normal(n, 6, 5), run=run)


def held(model):
    """What the norms of the weights of a product hold, None if unknown."""
    model = kpg.PerGradModel.from_model(model)
    model.compile("sgd", "mse", gradient_mode=kpg.Vectorized())
    rows = kpg.explain(model, batch_size=4).rows
    return [
        variable.held_bytes
        for row in rows
        for variable in row.variables
        if row.type == "Own"
    ]


@pytest.mark.parametrize("name", ["matrix", "heads first", "three"])
def test_no_gradient_of_the_product_is_written_out(name):
    found = held(around(*CASES[name]))
    assert len(found) >= 2
    assert None not in found


@pytest.mark.parametrize("shapes", [((7, 2), (2, 4)), ((2, 7), (4, 2))])
def test_tables_of_low_rank(shapes):
    turned = shapes[0][0] == 2

    def make(a, b):
        return ops.transpose(b @ a) if turned else a @ b

    def call(x, *weights):
        return ops.tanh(ops.take(kernel(make, *weights), x, 0))

    parts = Own(call, *shapes), layers.Flatten(), layers.Dense(3)
    model = stack((5,), *parts, dtype="int32")
    ids = tf.constant([[1, 1, 2, 0, 6], [3, 3, 3, 3, 3], [0, 5, 0, 5, 1]])
    assert_exact(model, ids)
