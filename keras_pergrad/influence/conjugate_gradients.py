"""Conjugate gradients for several right-hand sides at once, in float64."""

import numpy as np

#: The norm of what is left, over that of the right-hand side.
TOLERANCE = 1e-6
_MOST = 2000


def solve(product, right):
    """Return x of A x = b for each row b, (m, size).

    Args:
        product: returns A p for rows p; A is symmetric.
        right: (m, size).

    Raises:
        ValueError: A is not positive definite, or it takes too long.
    """
    found = np.zeros_like(right)
    left, search = right.copy(), right.copy()
    square = np.sum(left**2, 1)
    goal = TOLERANCE**2 * square
    open_rows = np.flatnonzero(square > goal)
    for _ in range(_MOST):
        if not open_rows.size:
            return found
        p = search[open_rows]
        curved = product(p)
        bend = np.sum(p * curved, 1)
        _require_positive(bend / np.sum(p**2, 1))
        step = (square[open_rows] / bend)[:, None]
        found[open_rows] += step * p
        left[open_rows] -= step * curved
        now = np.sum(left[open_rows] ** 2, 1)
        search[open_rows] = (
            left[open_rows] + (now / square[open_rows])[:, None] * p
        )
        square[open_rows] = now
        open_rows = open_rows[now > goal[open_rows]]
    worst = np.sqrt(np.max(square[open_rows] / goal[open_rows])) * TOLERANCE
    raise ValueError(
        f"Conjugate gradients expected a residual below {TOLERANCE:g} of the "
        f"gradient's norm in {_MOST} iterations. Received: {worst:.2g}. Pass "
        "a larger `damping`, or compute in float64 "
        "(keras.config.set_dtype_policy('float64') before the model is made)."
    )


def _require_positive(curvature):
    least = curvature.min()
    if not least > 0:
        raise ValueError(
            "The Hessian of the mean loss plus the damping expected to be "
            "positive definite. Received: a direction of curvature "
            f"{least:.3g}. The weights are at no strict minimum (training not "
            "ended, or a nonconvex model): pass a `damping` that is larger by "
            f"clearly more than {-least:.3g}, or curvature='ekfac', which is "
            "never negative."
        )
