"""What every factor answers, against its gradients written out."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad import factors
from keras_pergrad.factors.sampled import map_factors
from tests.factors.cases import (
    ALL,
    FACTORS,
    HELD,
    KEEP,
    N,
    dense,
    drawn,
    gradients,
    without_first,
)
from tests.factors.questions import (
    Question,
    check_answers,
    check_blank,
    check_in_a_graph,
    of_pairs,
    questions,
)


def test_there_is_a_case_of_every_class():
    public = map(factors.__dict__.get, factors.__all__)
    classes = {
        one
        for one in public
        if inspect.isclass(one)
        and issubclass(one, factors.SampleGradients)
        and not inspect.isabstract(one)
    }
    assert classes <= {type(make()) for make in FACTORS.values()}


@pytest.mark.quick
@pytest.mark.parametrize("name", ALL)
def test_answers(name):
    make, each = ALL[name], gradients(name)
    assert each.shape[0] == N
    asked = questions(each)
    for hold in HELD:
        pairs = of_pairs(name, hold) if name in FACTORS else ()
        check_answers(name, [*asked, *pairs], hold)
    factor = make()
    assert isinstance(factor.chosen_method(), str)
    assert isinstance(factor.sum_method(), str)
    held = factor.norm_bytes(N)
    assert held is None or held > 0


#: What is asked of a factor with a blank sample, in turn.
OF_BLANK = {
    "sum",
    "weighted sum",
    "norm of the sum",
    "product with ndarray",
    "product with its sum",
    "squares",
    "squares by chunks of 1",
    "pairs",
}


@pytest.mark.parametrize("name", ALL)
def test_a_sample_that_is_not_kept_is_blank(name):
    """Also where it is broken, and whether it was held before or not."""
    each = np.copy(gradients(name))
    each[~KEEP] = 0
    asked = questions(each)
    asked = [question for question in asked if question.name in OF_BLANK]
    assert len(asked) == len(OF_BLANK)
    asked.append(_pairs_with_the_last_two(name, each))
    for norms in (True, False):
        check_blank(name, asked, norms)


#: What is asked in a graph.
OF_CLASSES = {
    "product with ndarray",
    "squares",
    "pairs",
    "pairs with the last two",
}


@pytest.mark.parametrize("name", FACTORS)
def test_answers_are_the_same_in_a_graph(name):
    each = gradients(name)
    asked = [*questions(each), _pairs_with_the_last_two(name, each)]
    # A graph may not know the batch's size, and XLA traces other methods.
    for (known, xla), names in (
        ((False, False), OF_CLASSES),
        ((False, True), {"product with ndarray", "squares"}),
        ((True, True), OF_CLASSES | {"squares by chunks of 3"}),
    ):
        chosen = [one for one in asked if one.name in names]
        assert len(chosen) == len(names)
        check_in_a_graph(name, chosen, known, xla=xla)


def _pairs_with_the_last_two(name, each):
    return Question(
        "pairs with the last two",
        lambda f: f.gram(without_first(ALL[name](), 2)),
        each.reshape(N, -1) @ each[2:].reshape(2, -1).T,
    )


def test_a_table_keeps_its_rows_where_each_entry_is_changed_by_itself():
    factor = factors.Widened(FACTORS["Rows"](), "float64")
    assert isinstance(factor.weighted_sum(None), tf.IndexedSlices)


class Three(factors.SampleGradients):
    """A class that answers no more than it must."""

    sampled = ("scale",)

    def __init__(self, scale):
        self.scale = scale

    def squared_norms(self):
        return 6 * tf.square(self.scale)

    def weighted_sum(self, weights):
        scale = self.scale if weights is None else self.scale * weights
        return tf.reduce_sum(scale) * tf.ones((3, 2), scale.dtype)

    def materialize(self):
        return self.scale[:, None, None] * tf.ones((3, 2), self.scale.dtype)


def test_a_class_with_three_answers_has_the_others():
    numbers = tf.constant([1.0, 2.0, 3.0])
    for factor in (
        Three(numbers),
        factors.Widened(Three(tf.cast(numbers, tf.float16)), tf.float16),
        factors.Columns([Three(numbers), Three(numbers)]),
        factors.join([Three(numbers), Three(0 * numbers)]),
    ):
        columns = factor.materialize().shape[-1]
        direction = tf.ones((3, columns))
        products = 3 * columns * np.array([1, 2, 3])
        np.testing.assert_array_equal(factor.dot(direction), products)
        squares = np.full((3, columns), 14)
        np.testing.assert_array_equal(factor.sum_of_squares(), squares)
        pairs = 3 * columns * np.outer([1, 2, 3], [1, 2, 3])
        np.testing.assert_array_equal(factor.gram(), pairs)


class _Thrice:
    """For the bases of a class: other gradients than the next one's."""

    def materialize(self):
        return 3 * super().materialize()


@pytest.mark.parametrize("kind", [factors.Outer, factors.Sum, factors.Joined])
def test_a_class_of_other_gradients_derives_from_none_that_has_some(kind):
    message = "SampleGradients or Adapted.*Thrice, which derives from "
    with pytest.raises(TypeError, match=message + kind.__name__):
        type("Thrice", (_Thrice, kind), {})


def test_a_class_that_names_nothing_is_not_taken_for_unchanged():
    nameless = type("Nameless", (Three,), {"sampled": ()})
    with pytest.raises(NotImplementedError, match=r"Nameless.*`sampled`"):
        nameless(drawn()).map(tf.identity)


def test_what_factors_share_is_changed_once():
    x, dz = drawn(3), drawn(4)
    count = []

    def halved(tensor):
        count.append(tensor)
        return tensor / 2

    kernel, none, bias = map_factors(
        [factors.Blocks(x[:, None, None], dz, [3, 4]), None, factors.Sum(dz)],
        halved,
    )
    assert none is None
    assert kernel.dz is bias.dz
    assert len(count) == 2


def test_what_is_squared_stays_in_single_precision():
    """300² is infinite in float16, and so are 512 products of 300."""
    large = tf.fill([2, 512], tf.constant(300, tf.float16))
    ids = tf.zeros([2, 512], tf.int32)
    for make in (
        lambda: factors.Full(large),
        lambda: factors.Outer(large[:, None], tf.ones_like(large[:, None, :1])),
        lambda: factors.Rows(ids[:, :1], large[:, None], (3, 512)),
        lambda: factors.Joined([factors.Full(large), factors.Full(large)]),
    ):
        right = make().materialize().numpy().astype("float64")
        factor = factors.Widened(make(), tf.float16)
        direction = 300 * np.ones(right.shape[1:])
        found = factor.dot(direction)
        products = (right * direction).reshape(2, -1).sum(1)
        np.testing.assert_allclose(found, products, rtol=1e-6)
        squares = factor.sum_of_squares()
        assert found.dtype == squares.dtype == tf.float32
        np.testing.assert_allclose(
            dense(squares), np.square(right).sum(0), rtol=1e-6
        )
