"""What influence asks of every factor, against its gradients written out."""

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad import factors
from keras_pergrad.influence.projected_factors import dot_is_less, project
from keras_pergrad.influence.projection import Projection
from keras_pergrad.influence.sides import kronecker
from tests.factors.cases import ALL, HELD, KEEP, drawn, gradients, with_second
from tests.factors.questions import (
    check_answers,
    check_blank,
    check_in_a_graph,
)
from tests.influence.factor_questions import questions


@pytest.mark.quick
@pytest.mark.parametrize("name", ALL)
def test_answers(name):
    asked = questions(name, ALL[name](), gradients(name))
    projections = [one for one in asked if "projection" in one.name]
    for hold in HELD:
        check_answers(name, asked if hold == "nothing" else projections, hold)


#: What is asked of a factor with a blank sample, in turn.
OF_BLANK = {"projection to 6"}
#: What is asked before the norms have held anything.
OF_NEW_BLANK = {"kronecker", "gradients with nothing rotated"}


@pytest.mark.parametrize("name", ALL)
def test_a_sample_that_is_not_kept_is_blank(name):
    each, sound = np.copy(gradients(name)), with_second(ALL[name](), 0)
    each[~KEEP] = 0
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
    check_in_a_graph(name, asked, False, xla=False)
    check_in_a_graph(name, asked, True, xla=True)


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
