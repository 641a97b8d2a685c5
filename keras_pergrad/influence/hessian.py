"""The exact Hessian of the loss, solved by conjugate gradients.

Koh & Liang, arXiv 1703.04730. The loss is the compiled one with its weight
regularisers, as in `evaluate`.
"""

import weakref

import numpy as np
import tensorflow as tf

from keras_pergrad.functions.data_passes import shown
from keras_pergrad.influence.data import as_before, flat
from keras_pergrad.keras_internals.data.batches import ranks, sample_count
from keras_pergrad.keras_internals.losses.losses import total_loss
from keras_pergrad.keras_internals.models.parts import call_model
from keras_pergrad.keras_internals.replicas.replicas import out_of_scope
from keras_pergrad.keras_internals.state.model import (
    bodies,
    random_state_kept,
    run_and_restore,
    twice_differentiable,
)
from keras_pergrad.keras_internals.tensorflow.settings import traced_functions
from keras_pergrad.uses import function_cache

# Conjugate gradients for several right-hand sides at once, in float64.


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


# The Hessian of the mean loss: its products with vectors, and its solution.
#
# Koh & Liang, arXiv 1703.04730. The loss is the compiled one with its weight
# regularisers, as in `evaluate`.


#: With more weights the matrix is not made.
DENSE = 4096
#: Directions that go through a batch at a time.
_AT_ONCE = 256


class Hessian:
    """(H + damping)⁻¹ of the weights that the loss depends on.

    Args:
        model: a compiled and built model.
        batches: the training data, from `batches_of`.
        like: gradients of any samples: which variables are in use.
        damping: a number.
        verbose: whether to show a progress bar.
    """

    def __init__(self, model, batches, like, damping, verbose=0):
        self._model, self._batches = model, batches
        self._like, self._damping = like, damping
        self._verbose = verbose
        self.size = sum(g[0].size for g in like if g is not None)
        self._factor = self._dense() if self.size <= DENSE else None

    def solve(self, gradients):
        """Return (H + damping)⁻¹ g for gradients of m samples."""
        rows = flat(gradients)
        if self._factor is None:
            found = solve(self._damped, rows)
        else:
            columns = tf.linalg.cholesky_solve(self._factor, rows.T)
            found = columns.numpy().T
        wide = [None if g is None else g.astype("float64") for g in gradients]
        return as_before(found, wide)

    def products(self, rows, verbose=0):
        """Return H v for vectors v, (m, size), in float64."""
        total, samples = np.zeros(rows.shape), 0
        directions = as_before(rows, self._like)
        for batch in shown(self._batches, verbose):
            n = int(sample_count(batch[0]))
            for begin in range(0, len(rows), _AT_ONCE):
                part = slice(begin, begin + _AT_ONCE)
                some = [d if d is None else d[part] for d in directions]
                total[part] += n * flat(_of_batch(self._model, batch, some))
            samples += n
        return total / samples

    def _damped(self, rows):
        return self.products(rows) + self._damping * rows

    def _dense(self):
        """Return the Cholesky factor of H + damping."""
        matrix = self.products(np.eye(self.size), self._verbose)
        matrix = (matrix + matrix.T) / 2 + self._damping * np.eye(self.size)
        try:
            np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            least = np.linalg.eigvalsh(matrix)[0] - self._damping
            raise ValueError(_not_positive(least, self._damping)) from None
        return tf.linalg.cholesky(matrix)


def _not_positive(least, damping):
    more = max(-least, 0)
    return (
        "The Hessian of the mean loss plus the damping expected to be "
        f"positive definite. Received: least eigenvalue {least:.3g}, damping "
        f"{damping:g}. The weights are at no strict minimum (training not "
        "ended, a nonconvex model, or weights that no sample uses): pass a "
        f"`damping` clearly above {more:.3g}, or curvature='ekfac', which is "
        "never negative."
    )


def _of_batch(model, batch, directions):
    """Return the products of one batch's Hessian, by variable."""
    function = function_cache.kept(
        model,
        ("hessian", ranks(batch), tuple(d is None for d in directions)),
        lambda: _trace(weakref.ref(model)),
    )
    tensors = [d if d is None else tf.convert_to_tensor(d) for d in directions]
    try:
        with out_of_scope(), random_state_kept(), traced_functions():
            found = run_and_restore(function, *batch, tensors)
    except LookupError as error:
        raise ValueError(
            f"Model {model.name!r} has an op without a second derivative in "
            f"TensorFlow: {error}. Expected one for curvature='exact'. Use "
            "curvature='ekfac' or 'projected'."
        ) from error
    return [f if f is None else f.numpy() for f in found]


def _trace(model_reference):
    @tf.function(autograph=False, reduce_retracing=True)
    def function(x, y, sample_weight, directions):
        model = model_reference()
        variables = [
            v.value
            for v, d in zip(model.trainable_variables, directions)
            if d is not None
        ]

        def slopes_in(tape):
            with tape, tf.GradientTape() as inner:
                with twice_differentiable():
                    y_pred = call_model(model, x, training=False)
                    data = x, y, y_pred, sample_weight
                    loss = total_loss(model, *data, False)
                slopes = inner.gradient(loss, variables)
                return [
                    tf.zeros_like(v) if g is None else tf.convert_to_tensor(g)
                    for g, v in zip(slopes, variables)
                ]

        first = tf.GradientTape(persistent=True)
        shared = slopes_in(first)
        # A loop cannot be differentiated again from inside another one.
        has_bodies = any(
            map(bodies, tf.compat.v1.get_default_graph().get_operations())
        )

        def one(own):
            tape, slopes = first, shared
            if has_bodies:
                tape = tf.GradientTape()
                slopes = slopes_in(tape)
            found = tape.gradient(
                slopes,
                variables,
                output_gradients=[
                    tf.cast(d, g.dtype) for d, g in zip(own, slopes)
                ],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return [
                tf.cast(tf.convert_to_tensor(f), d.dtype)
                for f, d in zip(found, own)
            ]

        own = [d for d in directions if d is not None]
        found = iter(tf.map_fn(one, own, parallel_iterations=1))
        return [None if d is None else next(found) for d in directions]

    return function
