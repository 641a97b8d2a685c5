"""Draws are as they are, however many samples there are."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.proof.op_facts import FILLS_SHAPE, ops_with
from tests.models.making import assert_equal, compiled, net, normal, trained

layers, raw = keras.layers, tf.raw_ops
HALF, MANY = np.float32(0.5), np.float32(30)
STATE = np.array([1, 2, 3])


def _op(name, **inputs):
    """Return a function of a number of rows, to a draw of so many."""
    draw = getattr(raw, name)

    def rows(n):
        if "Stateful" not in name:
            return draw(shape=[n, 4], **inputs)
        return draw(
            resource=tf.Variable(STATE).handle,
            algorithm=np.int64(1),
            shape=[n, 4],
            **inputs,
        )

    return rows


def _multinomial(name, **inputs):
    def rows(n):
        logits = np.zeros((n, 9), "float32")
        return getattr(raw, name)(logits=logits, num_samples=4, **inputs)

    return rows


_seeds = {"seed": 1, "seed2": 2}
_seed = {"seed": [1, 2]}
_key = {
    "key": tf.constant([5], "uint64"),
    "counter": tf.constant([1, 2], "uint64"),
    "alg": 1,
}
_float = {"dtype": "float32"}
_bounds = {"minval": 0, "maxval": 99}
_counts = {"counts": MANY, "probs": HALF, "dtype": "float32"}
_normal = {"means": HALF, "stddevs": HALF, "minvals": HALF, "maxvals": MANY}
INPUTS = {
    "RandomGamma": {"alpha": HALF} | _seeds,
    "RandomPoissonV2": {"rate": MANY} | _seeds,
    "RandomStandardNormal": _float | _seeds,
    "RandomUniform": _float | _seeds,
    "RandomUniformInt": _bounds | _seeds,
    "StatefulRandomBinomial": _counts,
    "StatefulStandardNormalV2": {},
    "StatefulTruncatedNormal": {},
    "StatefulUniform": {},
    "StatefulUniformFullInt": {"dtype": "int64"},
    "StatefulUniformInt": _bounds,
    "StatelessParameterizedTruncatedNormal": _normal | _seed,
    "StatelessRandomBinomial": _counts | _seed,
    "StatelessRandomGammaV2": {"alpha": HALF} | _seed,
    "StatelessRandomGammaV3": {"alpha": HALF} | _key,
    "StatelessRandomNormal": _seed,
    "StatelessRandomNormalV2": _key,
    "StatelessRandomPoisson": {"lam": MANY} | _float | _seed,
    "StatelessRandomUniform": _seed,
    "StatelessRandomUniformFullInt": {"dtype": "int32"} | _seed,
    "StatelessRandomUniformFullIntV2": {"dtype": "int32"} | _key,
    "StatelessRandomUniformInt": _bounds | _seed,
    "StatelessRandomUniformIntV2": _bounds | _key,
    "StatelessRandomUniformV2": _key,
    "StatelessTruncatedNormal": _seed,
    "StatelessTruncatedNormalV2": _key,
    "TruncatedNormal": _float | _seeds,
}
ROWS = {name: _op(name, **inputs) for name, inputs in INPUTS.items()} | {
    "Multinomial": _multinomial("Multinomial", **_seeds),
    "StatelessMultinomial": _multinomial("StatelessMultinomial", **_seed),
}
#: Entries of an input or zeros, no draws.
NO_DRAW = {"BroadcastTo", "Empty", "Fill", "Reshape", "Tile"}
#: In graphs of old versions; today's TensorFlow does not run it.
REMOVED = {"RandomPoisson"}


def test_each_draw_that_fills_a_shape_is_tried():
    assert set(ROWS) | NO_DRAW | REMOVED == ops_with(FILLS_SHAPE)


@pytest.mark.parametrize("name", ROWS)
def test_a_draw_does_not_follow_how_many_there_are(name):
    few, many = (_drawn_anew(ROWS[name], n) for n in (3, 7))
    assert len(np.unique(few)) > 1
    np.testing.assert_array_equal(few, many[:3])


def _drawn_anew(rows, n):
    tf.random.set_seed(1)
    return rows(n).numpy()


#: Names of ops → factors by a generator, in the shape of a layer's inputs.
FACTORS = {
    "RandomGamma": lambda _, shape: tf.random.gamma(shape, 2.0, seed=1),
    "StatefulRandomBinomial": lambda generator, shape: generator.binomial(
        shape, 3.0, 0.5, "float32"
    ),
    "StatefulTruncatedNormal": lambda generator, shape: (
        generator.truncated_normal(shape)
    ),
    "StatefulUniformInt": lambda generator, shape: tf.cast(
        generator.uniform(shape, 0, 9, "int32"), "float32"
    ),
    "TruncatedNormal": lambda _, shape: tf.random.truncated_normal(
        shape, seed=1
    ),
}


class Factors(keras.layers.Layer):
    """Multiplies its inputs by factors that it draws."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, x):
        return x * self.draw(self.generator, tf.shape(x))


@pytest.mark.parametrize("name", FACTORS)
def test_a_layer_that_draws_factors_trains_as_in_keras(name):
    ours, theirs = (_trained(name, mode) for mode in ("vectorized", None))
    assert_equal(ours, theirs, rtol=1e-5, atol=1e-6)


def _trained(name, mode):
    keras.utils.set_random_seed(1)
    model = net(layers.Dense(4), Factors(FACTORS[name]))
    model = compiled(model, mode, jit_compile=False)
    return trained(model, normal(21, 5), normal(21, 3), batch_size=6)
