"""The exact Hessian of the loss, solved by conjugate gradients.

Koh & Liang, arXiv 1703.04730. The loss is the compiled one with its weight
regularisers, as in `evaluate`.
"""

import weakref

import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import ranks, sample_count
from keras_pergrad.common.gradients import dense_gradients
from keras_pergrad.functions.data_passes import with_progress
from keras_pergrad.influence.conjugate_gradients import solve
from keras_pergrad.influence.definiteness import is_definite, rounding_share
from keras_pergrad.influence.gradient_products import (
    flatten_gradients,
    gradients_of,
    unflatten_gradients,
)
from keras_pergrad.influence.validation_gradient import loss_in_inference
from keras_pergrad.keras_internals.replicas.replicas import out_of_scope
from keras_pergrad.keras_internals.state.model import (
    bodies,
    preserve_random_state,
    run_and_restore,
    twice_differentiable,
)
from keras_pergrad.keras_internals.tensorflow.settings import traced_functions
from keras_pergrad.uses import function_cache

#: Up to so many weights the Hessian is made as a matrix, and factored.
MAX_DENSE_SIZE = 4096
#: Directions that go through a batch at a time.
_DIRECTIONS_AT_ONCE = 256


class Hessian:
    """(H + damping)⁻¹ of the weights that the loss depends on."""

    def __init__(self, model, batches, *, damping, verbose=0):
        self._model, self._batches = model, batches
        self._damping, self._verbose = damping, verbose
        # Of one sample: which variables are in use, and their shapes.
        self._templates = [
            None if g is None else g[:1].copy()
            for g in gradients_of(model, next(iter(batches)))
        ]
        self.size = sum(g.size for g in self._templates if g is not None)
        self._factor = (
            self._dense_factor() if self.size <= MAX_DENSE_SIZE else None
        )

    def solve(self, gradients):
        """Return (H + damping)⁻¹ g for gradients of m samples."""
        rows = flatten_gradients(gradients)
        if self._factor is None:
            solutions = solve(self._damped_products, rows)
        else:
            columns = tf.linalg.cholesky_solve(self._factor, rows.T)
            solutions = columns.numpy().T
        wide_templates = [
            None if g is None else g.astype("float64") for g in gradients
        ]
        return unflatten_gradients(solutions, wide_templates)

    def products(self, rows, verbose=0):
        """Return H v for vectors v, (m, size), in float64."""
        total, samples = np.zeros(rows.shape), 0
        directions = unflatten_gradients(rows, self._templates)
        for batch in with_progress(self._batches, verbose, "Hessian"):
            n = int(sample_count(batch[0]))
            for begin in range(0, len(rows), _DIRECTIONS_AT_ONCE):
                part = slice(begin, begin + _DIRECTIONS_AT_ONCE)
                selected = [d if d is None else d[part] for d in directions]
                total[part] += n * flatten_gradients(
                    _batch_products(self._model, batch, selected)
                )
            samples += n
        return total / samples

    def _damped_products(self, rows):
        return self.products(rows) + self._damping * rows

    def _dense_factor(self):
        """Return the Cholesky factor of H + damping."""
        matrix = self.products(np.eye(self.size), self._verbose)
        matrix = (matrix + matrix.T) / 2 + self._damping * np.eye(self.size)
        share = rounding_share(self._model.trainable_variables)
        if not is_definite(matrix, share):
            least, *_, largest = np.linalg.eigvalsh(matrix)
            least -= self._damping
            needed = max(share * largest - least, 0.0)
            raise ValueError(
                _not_positive_message(least, self._damping, needed)
            )
        return tf.linalg.cholesky(matrix)


def _not_positive_message(least, damping, needed):
    return (
        "The Hessian of the mean loss plus the damping expected to be "
        "positive definite, beyond rounding. Received: least eigenvalue "
        f"{least:.3g}, damping {damping:g}. The weights are at no strict "
        "minimum (training not ended, a nonconvex model, or weights that no "
        f"sample uses): pass a `damping` clearly above {needed:.3g}, or "
        "curvature='ekfac', which is never negative."
    )


def _batch_products(model, batch, directions):
    """Return the products of one batch's Hessian, by variable."""
    function = function_cache.kept(
        model,
        ("hessian", ranks(batch), tuple(d is None for d in directions)),
        lambda: _trace_product(weakref.ref(model)),
    )
    tensors = [d if d is None else tf.convert_to_tensor(d) for d in directions]
    try:
        with out_of_scope(), preserve_random_state(), traced_functions():
            products = run_and_restore(function, *batch, tensors)
    except LookupError as error:
        raise ValueError(
            f"Model {model.name!r} has an op without a second derivative in "
            f"TensorFlow: {error}. Expected one for curvature='exact'. Use "
            "curvature='ekfac' or 'projected'."
        ) from error
    return [f if f is None else f.numpy() for f in products]


def _trace_product(model_reference):
    @tf.function(autograph=False, reduce_retracing=True)
    def function(x, y, sample_weight, directions):
        model = model_reference()
        variables = [
            v.value
            for v, d in zip(model.trainable_variables, directions)
            if d is not None
        ]

        def gradients_on(tape):
            with tape, tf.GradientTape() as inner:
                with twice_differentiable():
                    loss = loss_in_inference(model, (x, y, sample_weight))
                gradients = inner.gradient(loss, variables)
                return dense_gradients(gradients, variables)

        # One forward pass and its gradient serve all directions.
        shared_tape = tf.GradientTape(persistent=True)
        shared_gradients = gradients_on(shared_tape)
        # A loop cannot be differentiated again from inside another one.
        has_bodies = any(
            map(bodies, tf.compat.v1.get_default_graph().get_operations())
        )

        def product(direction):
            tape, gradients = shared_tape, shared_gradients
            if has_bodies:
                tape = tf.GradientTape()
                gradients = gradients_on(tape)
            products = tape.gradient(
                gradients,
                variables,
                output_gradients=[
                    tf.cast(d, g.dtype) for d, g in zip(direction, gradients)
                ],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return [
                tf.cast(tf.convert_to_tensor(f), d.dtype)
                for f, d in zip(products, direction)
            ]

        used_directions = [d for d in directions if d is not None]
        products = iter(
            tf.map_fn(product, used_directions, parallel_iterations=1)
        )
        return [None if d is None else next(products) for d in directions]

    return function
