"""Programs are solved exactly from any first set of positive weights."""

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.multitask import programs
from tests.multitask.matrices import normal

ROWS = {
    "apart": normal(0, 20, 60),
    "one direction": 3.0 + normal(1, 20, 60),
    "dependent": normal(2, 20, 7),
}


def _problem(kind):
    """Return M with ones on the diagonal, q, and which may be positive."""
    rows = ROWS[kind]
    gramian = rows @ rows.T
    gramian /= np.trace(gramian)
    gramian += 1e-4 * np.eye(len(gramian))
    others = ~np.eye(len(gramian), dtype=bool)
    return tuple(map(tf.constant, (gramian, gramian, others)))


def _assert_optimal(found, matrix, q, allowed):
    z = found.numpy()
    matrix, q, allowed = (t.numpy() for t in (matrix, q, allowed))
    # In the units in which the diagonal is 1.
    roots = np.sqrt(np.diagonal(matrix))
    slack = (z @ matrix + q) / roots
    sizes = np.abs(q / roots).max(1, keepdims=True)
    assert z.min() >= 0
    assert not z[~allowed].any()
    assert (slack / sizes)[allowed].min() > -1e-10
    assert np.abs(z * roots / sizes * (slack / sizes)).max() < 1e-9


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("xla", [False, True])
def test_every_program_is_solved(kind, xla):
    given = _problem(kind)
    function = tf.function(
        programs.solve_complementarity, autograph=False, jit_compile=xla
    )
    found, solved = function(*given)
    assert solved
    _assert_optimal(found, *given)


@pytest.mark.parametrize("start", ["all", "none"])
def test_a_wrong_guess_changes_nothing(start, monkeypatch):
    given = _problem("apart")
    expected, _ = programs.solve_complementarity(*given)

    def wrong(matrix, q, allowed):
        return allowed if start == "all" else tf.zeros_like(allowed)

    monkeypatch.setattr(programs, "first_guess", wrong)
    found, solved = programs.solve_complementarity(*given)
    assert solved
    np.testing.assert_allclose(found, expected, 1e-8, 1e-10)
