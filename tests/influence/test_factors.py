"""What influence asks of every factor, against its gradients written out."""

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad import factors
from keras_pergrad.influence.projected_factors import dot_is_less, project
from keras_pergrad.influence.projection import Projection
from keras_pergrad.influence.sides import kronecker
from tests.factors.cases import ALL, KEEP, drawn, gradients, set_second
from tests.factors.questions import (
    check_answers,
    check_blank,
    check_in_a_graph,
)
from tests.influence.factor_questions import questions


@pytest.mark.quick
@pytest.mark.parametrize("name", ALL)
def test_answers(name):
    check_answers(name, questions(name, ALL[name](), gradients(name)))


#: What is asked of a factor with a blank sample, in turn.
OF_BLANK = {"projection to 6"}
#: What is asked before the norms have held anything.
OF_NEW_BLANK = {"kronecker", "gradients with nothing rotated"}


@pytest.mark.parametrize("name", ALL)
def test_a_sample_that_is_not_kept_is_blank(name):
    each, sound = np.copy(gradients(name)), ALL[name]()
    each[~KEEP] = 0
    set_second(sound, 0)
    everything = questions(name, sound, each)
    for names, norms in ((OF_BLANK, True), (OF_BLANK | OF_NEW_BLANK, False)):
        asked = [question for question in everything if question.name in names]
        assert len(asked) == len(names)
        check_blank(name, asked, norms)


#: What is asked in a graph.
OF_LAYOUTS = {
    "kronecker",
    "squares with outputs rotated",
    "projection to 6",
}


@pytest.mark.parametrize("name", ALL)
def test_answers_are_the_same_in_a_graph(name):
    """It may not know the batch's size, and XLA traces other methods."""
    asked = questions(name, ALL[name](), gradients(name))
    asked = [question for question in asked if question.name in OF_LAYOUTS]
    assert len(asked) == len(OF_LAYOUTS)
    check_in_a_graph(name, asked, False, False)
    check_in_a_graph(name, asked, True, True)


class _Thrice(factors.Outer):
    """Other gradients by the same tensors."""

    def materialize(self):
        return 3 * super().materialize()


def test_a_class_of_other_gradients_has_none_of_its_bases_answers():
    x, dz = drawn(1, 3), drawn(1, 2)
    projection = Projection((3, 2), 2, seed=0)
    right = 3 * project(factors.Outer(x, dz), projection)
    found = project(_Thrice(x, dz), projection)
    np.testing.assert_allclose(found, right, rtol=1e-10)


def test_what_is_projected_stays_in_single_precision():
    large = tf.fill([2, 512], tf.constant(300, tf.float16))
    factor = factors.Widened(factors.Sum(large), tf.float16)
    found = project(factor, Projection((512,), 4, seed=0))
    assert found.dtype == tf.float32
    assert dot_is_less(factor, Projection((512,), 4, seed=0))


def test_one_sample_at_one_position_is_exact():
    factor = factors.Outer(drawn(4)[:1], drawn(6)[:1])
    inputs, outputs, count, _ = kronecker(factor)
    m = factor.materialize().numpy().ravel()
    product = np.kron(inputs, outputs) / count
    np.testing.assert_allclose(product, np.outer(m, m), rtol=1e-10, atol=1e-10)
