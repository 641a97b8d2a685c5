"""Weights that are products of weights, and never written out."""

import keras
import pytest
import tensorflow as tf
from keras import layers, ops

import keras_pergrad as kpg
from tests.samples.rules.exact import assert_exact, normal, randomized

pytestmark = pytest.mark.usefixtures("float64")


class Product(layers.Layer):
    """An einsum of the input with a product of two weights."""

    def __init__(self, make, equation, *shapes, table=False):
        super().__init__()
        self.make, self.equation, self.shapes = make, equation, shapes
        self.table = table

    def build(self, shape):
        self.own = [self.add_weight(shape=s) for s in self.shapes]

    def call(self, x):
        kernel = 3 - self.make(*self.own) / 2
        if self.table:
            return ops.take(kernel, x, 0)
        return ops.einsum(self.equation, x, kernel)


def einsum(equation):
    return lambda a, b: ops.einsum(equation, a, b)


CASES = {
    "matrix": (ops.matmul, "ntd,de->nte", (5, 2), (2, 4)),
    "turned": (
        lambda a, b: ops.transpose(tf.matmul(a, b, transpose_b=True)),
        "ntd,de->nte",
        (4, 2),
        (5, 2),
    ),
    "heads of the output": (
        ops.matmul,
        "ntd,dhe->nthe",
        (5, 3, 2),
        (2, 4),
    ),
    "heads of the input": (
        lambda a, b: ops.reshape(a @ b, (5, 2, 3)),
        "ntd,dhe->nthe",
        (5, 2),
        (2, 6),
    ),
    "heads first": (
        lambda a, b: ops.reshape(
            ops.reshape(a, (15, 2)) @ b,
            (3, 5, 4),
        ),
        "ntd,hde->nthe",
        (3, 5, 2),
        (2, 4),
    ),
    "a block of the output": (
        einsum("dhr,hre->dhe"),
        "ntd,dhe->nthe",
        (5, 3, 2),
        (3, 2, 4),
    ),
    "a block of the input": (
        einsum("dr,dre->de"),
        "ntd,de->nte",
        (5, 2),
        (5, 2, 4),
    ),
    "Kronecker": (
        lambda a, b: ops.reshape(ops.einsum("ab,cd->acbd", a, b), (5, 8)),
        "ntd,de->nte",
        (1, 4),
        (5, 2),
    ),
    "three": (
        lambda a, b, c: a @ b @ c,
        "ntd,de->nte",
        (5, 2),
        (2, 3),
        (3, 4),
    ),
}


def between(layer):
    """A model with the layer between two with weights."""
    inputs = keras.Input((6, 5))
    x = layer(layers.Dense(5, activation="tanh")(inputs))
    x = layers.Flatten()(ops.tanh(x))
    return randomized(keras.Model(inputs, layers.Dense(3)(x)))


@pytest.mark.parametrize("name", CASES)
def test_is_exact(name):
    assert_exact(between(Product(*CASES[name])), normal(4, 6, 5))


@pytest.mark.parametrize("name", CASES)
def test_is_exact_for_few_samples_of_known_number(name):
    model = between(Product(*CASES[name]))
    assert_exact(model, normal(1, 6, 5), run="known size")


def by_product(name, model):
    """What the norms of the weights of a product hold, None if unknown."""
    model = kpg.PerGradModel.from_model(model)
    model.compile("sgd", "mse", gradient_mode=kpg.Vectorized())
    rows = kpg.explain(model, batch_size=4).rows
    return [
        variable.held_bytes
        for row in rows
        for variable in row.variables
        if "product" in row.layer
    ]


@pytest.mark.parametrize("name", ["matrix", "heads first", "three"])
def test_no_gradient_of_the_product_is_written_out(name):
    found = by_product(name, between(Product(*CASES[name])))
    assert len(found) >= 2
    assert None not in found


@pytest.mark.parametrize("shapes", [((7, 2), (2, 4)), ((2, 7), (4, 2))])
def test_tables_of_low_rank(shapes):
    turned = shapes[0][0] == 2

    def make(a, b):
        return ops.transpose(b @ a) if turned else a @ b

    layer = Product(make, None, *shapes, table=True)
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Flatten()(ops.tanh(layer(inputs)))
    model = randomized(keras.Model(inputs, layers.Dense(3)(x)))
    ids = tf.constant([[1, 1, 2, 0, 6], [3, 3, 3, 3, 3], [0, 5, 0, 5, 1]])
    assert_exact(model, ids)
