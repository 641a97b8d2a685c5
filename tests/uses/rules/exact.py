"""Compares what the rules give for a model with the oracle."""

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.factors.sampled import select
from keras_pergrad.influence.projected_factors import project
from keras_pergrad.influence.projection import projections
from keras_pergrad.keras_internals.losses.losses import total_loss
from keras_pergrad.uses import TracedStep
from tests import oracle
from tests.models import making

# Repeated ids, the id that is masked, and ids that count from the end.
IDS = np.array(
    [[1, 2, -1, 0], [3, 6, 6, 0], [-1, 0, 5, 6], [6, -1, -7, 0], [0, 2, 2, 2]],
    "int32",
)
RUNS = ("graph", "known size", "xla")


class Unmasked(keras.layers.Layer):
    """Flattens, and ends the mask, which losses would apply once more."""

    supports_masking = True

    def compute_mask(self, inputs, mask=None):
        return None

    def call(self, inputs):
        return keras.ops.reshape(inputs, (keras.ops.shape(inputs)[0], -1))


class Noting(TracedStep):
    """Notes each use that gives a part, with the index of its variable."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.noted = []

    def parts(self, *arguments):
        for part in super().parts(*arguments):
            self.noted.append((part[0], part[2]))
            yield part


def assert_exact(
    model, x, run="graph", *, one_by_one=(), training=False, others=()
):
    """Asserts that all that factors answer is what the oracle gives.

    Args:
        model: a built model; it is compiled here.
        x: a batch; the targets are drawn.
        run: one of `RUNS`, or "any size" or "any size, xla", where the trace
            knows no more of the sizes than the model's inputs do.
        one_by_one: the types of the ops that must be differentiated for one
            sample after the other; all others must have a rule.
        training: whether the model is called for training.
        others: further batches that the same function is asked of, too; it is
            traced once where `run` leaves their sizes open.
    """
    model.compile(loss="mse")
    batches = [_with_targets(model, data, training) for data in (x, *others)]
    x, y = batches[0]
    rng = np.random.default_rng(2)
    directions = [
        tf.constant(rng.normal(size=v.shape), v.value.dtype)
        for v in model.trainable_variables
    ]
    shapes = [v.shape for v in model.trainable_variables]
    projected = projections(shapes, 4 * len(shapes), seed=3)
    questions = list(zip(directions, projected))
    slow = set()

    def compute(x, y, weights):
        tape = Noting(model, (x, y, None), training)
        with tape:
            y_pred = tape.forward(x)
            target = total_loss(
                model,
                x,
                y,
                y_pred=y_pred,
                sample_weight=None,
                training=training,
            )
        factors = tape.sample_gradients(target)
        slow.update(
            use.type for _, use in tape.noted if getattr(use, "reason", None)
        )
        keep = tf.ones_like(weights, tf.bool)
        new = [_further(f, *q) for f, q in zip(factors, questions)]
        full = [f and f.materialize() for f in factors]
        plain = [f and f.weighted_sum(None) for f in factors]
        factors = [f and f.held() for f in factors]
        norms = [f and f.squared_norms() for f in factors]
        kept = select(factors, keep)
        sums = [f and f.weighted_sum(weights) for f in kept]
        dense = [
            [None if g is None else tf.convert_to_tensor(g) for g in group]
            for group in (plain, sums)
        ]
        # Samples one by one hold nothing: their loops would run once more.
        held = []
        if not one_by_one:
            held = [_further(f, *q) for f, q in zip(factors, questions)]
        return norms, full, *dense, new, held

    function = tf.function(
        compute, jit_compile=run.endswith("xla"), autograph=False
    )
    if run != "known size":
        open_sizes = run.startswith("any size")
        shapes = (model.input, model.output) if open_sizes else (x, y)
        specs = tf.nest.map_structure(
            lambda t, s: tf.TensorSpec([None, *s.shape[1:]], t.dtype),
            (x, y),
            shapes,
        )
        weights = tf.TensorSpec([None], tf.float64)
        concrete = function.get_concrete_function(*specs, weights)
    for first in batches:
        weights = np.linspace(0.3, 1.7, len(tf.nest.flatten(first)[0]))
        if run == "known size":
            found = function(*first, tf.constant(weights))
        else:
            found = concrete(*tf.nest.flatten((first, tf.constant(weights))))
        _assert_found(found, model, *first, weights, questions, training)
    assert slow == set(one_by_one), (
        f"differentiated one by one: {sorted(slow)}; expected: "
        f"{sorted(one_by_one)}. An op that has a rule now moves to LAYERS"
    )


def _with_targets(model, x, training):
    """The samples, and targets of the shapes of the model's outputs."""
    x = tf.nest.map_structure(tf.convert_to_tensor, x)
    rng = np.random.default_rng(1)
    return x, tf.nest.map_structure(
        lambda t: tf.constant(rng.normal(size=t.shape), t.dtype),
        model(x, training=training),
    )


def _assert_found(found, model, x, y, weights, questions, training):
    norms, full, plain, sums, new, held = found
    n = len(weights)
    expected = oracle.per_sample_gradients(model, x, y, training=training)
    contributions = [None if g is None else g / n for g in expected]
    oracle.assert_agree(full, contributions)
    oracle.assert_agree(
        plain,
        oracle.batch_gradient(
            model, x, y, sample_weight=None, training=training
        ),
    )
    oracle.assert_agree(
        sums,
        [
            None if g is None else np.tensordot(weights.astype(g.dtype), g, 1)
            for g in contributions
        ],
    )
    oracle.assert_agree(
        norms,
        [
            None if g is None else np.square(g).reshape(n, -1).sum(1)
            for g in contributions
        ],
    )
    right = [
        answer
        for g, q in zip(contributions, questions)
        for answer in _answers(g, *q, n)
    ]
    for answers in (new, held) if held else (new,):
        oracle.assert_agree(sum(answers, ()), right)


def assert_draws_of_the_batch(model, x, y, *, method="vectorized"):
    """Asserts that samples meet what random layers draw for the batch.

    Their mean gradient is the batch's, from the same state of the layers.
    """
    model.compile("sgd", "mse")
    state = [(v, v.numpy()) for v in model.variables]
    found = kpg.per_sample_gradients(model, x, y, method=method)
    for variable, value in state:
        variable.assign(value)
    # As `fit` calls it.
    training = True if model._call_has_training_arg else None
    plain = oracle.batch_gradient(model, x, y, training=training)
    oracle.assert_agree([np.mean(g, 0) for g in found], plain)
    return found


def _further(factor, direction, projection):
    """Return products with a direction, in pairs, squares, projections."""
    if factor is None:
        return None, None, None, None
    squares = tf.convert_to_tensor(factor.sum_of_squares())
    projected = project(factor, projection)
    return factor.dot(direction), factor.gram(), squares, projected


def _answers(gradients, direction, projection, n):
    """Return what these are by the gradients themselves."""
    if gradients is None:
        return None, None, None, None
    rows, direction = (
        np.reshape(gradients, (n, -1)),
        np.reshape(direction, -1),
    )
    projected = projection.of_gradients(gradients).numpy()
    squares = np.square(gradients).sum(0)
    return rows @ direction, rows @ rows.T, squares, projected


def stack(shape, *layers, dtype=None):
    """A functional model of these layers, ended by one number a sample.

    Every variable starts at a random value: zeros hide mistakes.
    """
    inputs = keras.Input(shape, dtype=dtype)
    outputs = inputs
    for layer in layers:
        outputs = layer(outputs)
    return randomized(keras.Model(inputs, outputs))


def randomized(model):
    """`model` with every variable at a random value."""
    rng = np.random.default_rng(5)
    for variable in model.weights:
        if "float" not in variable.dtype:
            continue
        value = rng.normal(size=variable.shape) * 0.5
        if "variance" in variable.path:
            value = np.abs(value) + 0.5
        variable.assign(value)
    return model


def normal(*shape):
    """A batch of normal numbers of the default float type."""
    return making.normal(*shape, seed=3)
