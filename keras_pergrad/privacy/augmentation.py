"""The augmented views of the examples of private training."""

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import map_tensors
from keras_pergrad.keras_internals.data.views import Views, split_rows
from keras_pergrad.keras_internals.graphs import draws
from keras_pergrad.keras_internals.models.parts import trace_symbolically
from keras_pergrad.keras_internals.replicas.hooks import not_converted
from keras_pergrad.privacy.phase import checksum
from keras_pergrad.proof.op_facts import (
    ASSIGNS,
    DRAWS,
    FACTS,
    IN_PYTHON,
    KNOWN_STATE,
)

_SEED_SPEC = tf.TensorSpec([2], tf.int64)


def check_augmentations(augmentations, augment):
    """Refuse a number of views without what makes them, or the reverse."""
    if (augmentations is None) != (augment is None):
        raise ValueError(
            "Expected `augmentations`, the number of views of each example, "
            "together with `augment`, which makes one. Received: "
            f"augmentations={augmentations!r}, augment={augment!r}"
        )
    if augment is not None and not callable(augment):
        raise TypeError(
            "`augment` must be a keras layer, or a function of a batch of "
            f"inputs. Received: augment={augment!r}"
        )


class Augmentation:
    """A function of batches of examples that gives views of each of them.

    A view is made of its example alone, with numbers that follow from the
    seed of the batch, the example's row in the data and the view's number. So
    it does not depend on what else is in the batch.

    Args:
        augment: a layer, or a function of a batch of inputs.
        count: how many views an example has.
        spec: the `tf.TensorSpec`s of batches, a tuple (x, ...).
        samples: how many examples the data have.

    Attributes:
        checksum: a text that changes if an op of `augment` does.
        spec: those of batches of views.
        row_spec: those of batches of one view of each example.

    Raises:
        ValueError: `augment` gives something else than one row for a batch of
            one example, or does what cannot be repeated.
    """

    def __init__(self, augment, count, spec, *, samples):
        self._augment, self._count = augment, count
        self._is_layer = isinstance(augment, keras.layers.Layer)
        x, *others = spec
        single = map_tensors(
            lambda s: tf.TensorSpec([1, *s.shape[1:]], s.dtype), x
        )
        if self._is_layer and not augment.built:
            # A seed of ours must not make the first values of its weights.
            symbolic = map_tensors(
                lambda s: keras.KerasTensor(s.shape, s.dtype.name), single
            )
            trace_symbolically(augment, symbolic)
        self._view = tf.function(
            self._make_view,
            autograph=False,
            input_signature=[single, _SEED_SPEC],
        )
        concrete = self._view.get_concrete_function()
        _require_repeatable(concrete.graph)
        _require_no_data(concrete.graph, single, samples)
        self.checksum = _graph_checksum(concrete.graph)
        self._view_spec = map_tensors(
            lambda t: tf.TensorSpec(t.shape, t.dtype),
            concrete.structured_outputs,
        )
        self.row_spec = self._with_sizes([None], others)
        rows, *others = self._with_sizes([None, count], others)
        self.spec = Views(rows), *others

    def _with_sizes(self, sizes, others):
        x = map_tensors(
            lambda s: tf.TensorSpec([*sizes, *s.shape], s.dtype),
            self._view_spec,
        )
        return x, *others

    @not_converted
    def __call__(self, batch, rows, seed):
        """Return a batch (x, ...) with `Views` in place of its inputs.

        `rows`: the places of its examples in all data, (n,).
        """
        x, *others = map_tensors(tf.convert_to_tensor, batch)
        rows, seed = tf.cast(rows, tf.int64), tf.cast(seed, tf.int64)

        def make_view(number):
            i, k = number // self._count, number % self._count
            single = map_tensors(lambda t: t[i : i + 1], x)
            return self._view(single, _folded(_folded(seed, rows[i]), k))

        views = tf.map_fn(
            make_view,
            tf.range(tf.size(rows, tf.int64) * self._count),
            fn_output_signature=self._view_spec,
        )
        return split_rows(views, self._count), *others

    def _make_view(self, single, seed):
        """Return one view of an example, without a first axis."""
        arguments = {"training": True} if self._is_layer else {}
        with draws.seeded(lambda k: _folded(seed, k)):
            views = self._augment(single, **arguments)
        # A tf.data.Dataset takes a list for one tensor.
        views = keras.tree.lists_to_tuples(views)
        views = map_tensors(tf.convert_to_tensor, views)
        for view in tf.nest.flatten(views):
            if view.shape.rank in (None, 0) or view.shape[0] != 1:
                raise ValueError(
                    "`augment` must return as many rows as it gets. Expected "
                    "tensors of shape (1, ...) for a batch of one example. "
                    f"Received: the shape {view.shape}"
                )
        return map_tensors(lambda t: t[0], views)


def _folded(seed, number):
    return tf.random.experimental.stateless_fold_in(seed, number)


def _nodes(graph):
    """Return all nodes of a graph, those of its functions included."""
    definition = graph.as_graph_def()
    bodies = [f.node_def for f in definition.library.function]
    return [node for nodes in (definition.node, *bodies) for node in nodes]


def _constants(graph):
    """Return the values of all constants, and of all that is captured."""
    held = [
        tf.make_ndarray(node.attr["value"].tensor)
        for node in _nodes(graph)
        if node.op == "Const"
    ]
    captured = [t for t, _ in graph.captures if t.dtype != tf.resource]
    return [*held, *map(np.asarray, captured)]


def _require_no_data(graph, single, samples):
    """Refuse an array that has a row for each example."""
    shapes = {(samples, *spec.shape[1:]) for spec in tf.nest.flatten(single)}
    for value in _constants(graph):
        if samples > 1 and value.shape in shapes:
            raise ValueError(
                "A view must depend on its own example alone. Expected an "
                "`augment` that holds no other examples. Received: one with "
                f"an array of shape {value.shape}, the shape of the data. "
                "Remove the array, or mix in public examples, whose number "
                "differs from `samples`."
            )


def _graph_checksum(graph):
    # In whatever order a graph lists its functions.
    types = sorted(node.op for node in _nodes(graph))
    return checksum([types, sorted(checksum([c]) for c in _constants(graph))])


def _require_repeatable(graph):
    """Refuse ops that keep state, or draw what a seed does not determine."""
    for op_type in sorted({node.op for node in _nodes(graph)}):
        facts = FACTS[op_type]
        is_unknown = facts.has_state and not (
            facts.has_functions or facts.has(KNOWN_STATE)
        )
        if facts.has(DRAWS):
            reason = "draws numbers that no seed repeats"
        elif facts.has(IN_PYTHON | ASSIGNS) or is_unknown:
            reason = "may keep something of an example for the next"
        else:
            continue
        raise ValueError(
            "The views of an example must depend only on it and on its seed. "
            "Expected an `augment` that draws with keras.random (or is a "
            "layer of Keras), runs no Python and assigns nothing. "
            f"Received: the op {op_type}, which {reason}."
        )
