"""What conditions, loops and functions assign, and what is read after them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg

layers = keras.layers
X = np.random.default_rng(0).normal(size=(4, 5)).astype("float32")
Y = np.ones((4, 3), "float32")


def _if(choice):
    def keep(state, x):
        ones = tf.ones_like(state)
        tf.cond(
            choice(state, x),
            lambda: state.assign(ones),
            lambda: tf.identity(state),
        )

    return keep


def _turns(number):
    def keep(state, x):
        def body(k):
            state.assign_add(tf.ones_like(state))
            return k + 1

        tf.while_loop(lambda k: k < number(x), body, [0])

    return keep


@tf.function
def _mean_in_a_function(state, x):
    state.assign(tf.reduce_mean(x, 0))


@tf.function
def _count_in_a_function(state, x):
    state.assign_add(tf.ones_like(state))


def _positive(x):
    return tf.reduce_sum(tf.cast(x > 0, tf.int32))


MIXING = {
    "condition on a sum": _if(lambda state, x: tf.reduce_sum(x) > 0),
    "condition on a mask": _if(lambda state, x: _positive(x) > 2),
    "as many turns as the values say": _turns(_positive),
    "mean in a function": _mean_in_a_function,
}
SOUND = {
    "condition on the state": _if(lambda state, x: state[0] > 2),
    "a number of turns": _turns(lambda x: 3),
    "count in a function": _count_in_a_function,
}


class Keeps(layers.Layer):
    """Reads its state after what has changed it, or before."""

    def __init__(self, keep, after):
        super().__init__()
        self.keep, self.after = keep, after

    def build(self, shape):
        self.state = self.add_weight((4,), "zeros", trainable=False)

    def call(self, x):
        state = self.state.value
        if self.after:
            self.keep(state, x)
        result = x * (1 + tf.convert_to_tensor(state))
        if not self.after:
            self.keep(state, x)
        return result


def _norms(keep, after):
    inputs = keras.Input((5,))
    hidden = Keeps(keep, after)(layers.Dense(4)(inputs))
    model = keras.Model(inputs, layers.Dense(3)(hidden))
    model.compile("sgd", "mse")
    return kpg.per_sample_norms(model, X, Y)


@pytest.mark.parametrize("name", MIXING)
def test_state_of_others_is_refused_where_it_is_read_after(name):
    with pytest.raises(ValueError, match=r"\(Keeps\) mixes the samples"):
        _norms(MIXING[name], after=True)


@pytest.mark.parametrize("name", MIXING)
def test_state_of_others_is_served_where_it_is_read_before(name):
    assert np.isfinite(_norms(MIXING[name], after=False)).all()


@pytest.mark.parametrize("name", SOUND)
def test_state_that_follows_no_sample_is_served(name):
    assert np.isfinite(_norms(SOUND[name], after=True)).all()
