"""Conjugate gradients for several right-hand sides at once, in float64."""

import numpy as np

#: The norm of the residual, over that of the right-hand side.
TOLERANCE = 1e-6
_MAX_STEPS = 2000


def solve(product, right_sides):
    """Solve A x = b for each row b of the right sides; return the x, (m, size).

    `product` returns A p for each row p; A is symmetric.
    """
    solution = np.zeros_like(right_sides)
    residual, search = right_sides.copy(), right_sides.copy()
    squared_norms = np.sum(residual**2, 1)
    squared_tolerances = TOLERANCE**2 * squared_norms
    active = np.flatnonzero(squared_norms > squared_tolerances)
    for _ in range(_MAX_STEPS):
        if not active.size:
            return solution
        # Each row has its own step length; rows that have converged drop out.
        directions = search[active]
        products = product(directions)
        curvatures = np.sum(directions * products, 1)
        _require_positive(curvatures / np.sum(directions**2, 1))
        step = (squared_norms[active] / curvatures)[:, None]
        solution[active] += step * directions
        residual[active] -= step * products
        new_squared_norms = np.sum(residual[active] ** 2, 1)
        search[active] = (
            residual[active]
            + (new_squared_norms / squared_norms[active])[:, None] * directions
        )
        squared_norms[active] = new_squared_norms
        active = active[new_squared_norms > squared_tolerances[active]]
    worst = (
        np.sqrt(np.max(squared_norms[active] / squared_tolerances[active]))
        * TOLERANCE
    )
    raise ValueError(
        f"Conjugate gradients expected a residual below {TOLERANCE:g} of the "
        f"gradient's norm in {_MAX_STEPS} iterations. Received: {worst:.2g}. "
        "Pass a larger `damping`, or compute in float64 "
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
