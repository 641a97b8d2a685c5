"""A data set that gives other batches in another pass is refused."""

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.common.data_batches import batches_of
from keras_pergrad.influence.fixed_order import FixedOrderBatches
from tests.influence.making import influence_of
from tests.models.making import compiled, net, normal

X = normal(40, 3)
Y = X.sum(1, keepdims=True)
SOURCE = tf.data.Dataset.from_tensor_slices((X, Y))


@pytest.fixture(scope="module")
def model():
    return compiled(net(shape=(3,), units=1))


@pytest.mark.parametrize(
    "changing",
    [
        SOURCE.shuffle(40).batch(8),
        SOURCE.batch(8).map(lambda x, y: (x + tf.random.normal([3]), y)),
    ],
    ids=["shuffled", "changed"],
)
def test_other_batches_are_refused(model, changing):
    with pytest.raises(ValueError, match="`x` must give the same") as error:
        influence_of(model, changing).scores(X[:2], Y[:2])
    assert "reshuffle_each_iteration=False" in str(error.value)
    with pytest.raises(ValueError, match="`x_test` must give the same"):
        influence_of(model, X, Y).scores(changing)


def test_a_later_batch_is_looked_at_too(model):
    late = SOURCE.take(8).concatenate(SOURCE.skip(8).shuffle(32)).batch(8)
    influence = influence_of(model, late)
    influence.scores(X[:2], Y[:2])
    with pytest.raises(ValueError, match="another batch number 1"):
        influence.self_influence()


def test_one_order_of_all_passes_is_served(model):
    fixed = SOURCE.shuffle(40, reshuffle_each_iteration=False).batch(8)
    x, y = (np.concatenate(part) for part in zip(*fixed))
    scores = influence_of(model, fixed).scores(fixed)
    alike = influence_of(model, x, y).scores(x, y)
    np.testing.assert_allclose(scores, alike, rtol=1e-4, atol=1e-5)


def test_texts_and_sparse_tensors_are_compared():
    texts = tf.constant([["one"], ["two"]])
    sparse = tf.sparse.from_dense(np.eye(2))
    same = batches_of(tf.data.Dataset.from_tensors((texts, sparse)))
    again = FixedOrderBatches(same, "x")
    assert len(list(again)) == len(list(again)) == 1
    each = tf.data.Dataset.from_tensor_slices((texts, sparse)).batch(1)
    shuffled = each.shuffle(2, seed=0, reshuffle_each_iteration=True)
    other = FixedOrderBatches(batches_of(shuffled), "x")
    with pytest.raises(ValueError, match="the same batches"):
        [list(other) for _ in range(20)]
