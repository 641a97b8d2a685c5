"""State that a traced forward pass takes from its batch.

Private names in use: those of `keras_pergrad.keras_internals.model_state`.
"""

import tensorflow as tf

from keras_pergrad.keras_internals.model_state import (
    READS,
    Handle,
    bodies,
    plain_variables,
)

#: Ops that change a resource, but keep no data in it: how many numbers were
#: drawn, and what is written into a log.
_HARMLESS = ("Rng", "Stateful", "Write", "Flush")
_INTO_TABLES = ("LookupTableInsert", "LookupTableImport", "LookupTableRemove")
_LOOPS = ("While", "StatelessWhile")


class KeptState:
    """The variables whose new values depend on the arguments of a function.

    A count of the calls does not depend on them, nor does a seed.

    Args:
        concrete: a concrete function of a batch, traced already.
    """

    def __init__(self, concrete):
        outside = concrete.captured_inputs
        inputs = concrete.graph.inputs
        first = len(inputs) - len(outside)
        self._of_batch = {id(tensor) for tensor in inputs[:first]}
        captured = {id(a): b for a, b in zip(inputs[first:], outside)}
        found = _kept(concrete.graph, self._of_batch)
        self._handles = [captured[id(t)] for t in found if id(t) in captured]

    def has(self, tensor):
        """Whether a tensor of the function depends on its arguments."""
        return id(tensor) in self._of_batch

    def names(self, model):
        """Name the variables and tables that ops assign, without repetition.

        Keras's variables are not among them if the function was traced in a
        `keras.StatelessScope`.

        Args:
            model: the compiled model that the function runs.
        """
        found = {id(t): _name(t, model) for t in self._handles}
        return sorted(set(found.values()))


def _kept(graph, of_batch):
    """List a graph's resources that are assigned what depends on the batch.

    Args:
        graph: the graph of a function.
        of_batch: the ids of tensors in it that depend on the batch; those of
            all that follow from them are added.
    """
    origin = {id(t): t for t in graph.inputs if t.dtype == tf.resource}
    found = []
    for op in graph.get_operations():
        taken = [origin.get(id(t)) for t in op.inputs]
        if op.type == "Identity" or op.type in _LOOPS:  # pass them on
            origin.update(
                (id(t), own)
                for t, own in zip(op.outputs, taken)
                if own is not None
            )
        if not any(id(t) in of_batch for t in op.inputs):
            continue
        of_batch.update(id(t) for t in op.outputs)
        inside = bodies(op)
        for body in inside:
            found += [taken[k] for k in _kept_inside(op, body, of_batch)]
        if not inside and _keeps(op.type):
            found += taken
    return [t for t in found if t is not None]


def _keeps(kind):
    """Whether an op that takes a resource and data may keep the data."""
    if kind.startswith("LookupTable"):
        return kind.startswith(_INTO_TABLES)
    return kind not in READS and not kind.startswith(_HARMLESS)


def _kept_inside(op, body, of_batch):
    """Return which inputs of an op its function assigns from the batch."""
    # Conditions and cases take the choice before the inputs they pass on.
    first = len(op.inputs) - len(body.inputs)
    outer = list(op.inputs)
    places = {id(t): first + k for k, t in enumerate(body.inputs)}
    # A choice, or a number of turns, may tell of the batch by itself.
    chosen = op.type in _LOOPS or any(id(t) in of_batch for t in outer[:first])
    inside = {
        id(t)
        for t, o in zip(body.inputs, outer[first:])
        if chosen or id(o) in of_batch
    }
    return {places[id(t)] for t in _kept(body, inside)}


def _name(handle, model):
    """Return the name of what a captured handle belongs to."""
    if not Handle.is_variable(handle):
        return "a table"
    for owner in _owners(model):
        for name, variable in _variables(owner):
            if variable.handle is handle:
                return f"{name!r} of {owner.name!r}"
    return "a tf.Variable"


def _owners(model):
    losses = getattr(getattr(model, "_compile_loss", None), "_flat_losses", ())
    return [*model._flatten_layers(), *(entry.loss for entry in losses)]


def _variables(owner):
    for variable in plain_variables([owner]):
        yield variable.name, variable
    for value in vars(owner).values():
        if hasattr(value, "path") and hasattr(value, "value"):
            yield value.path, value.value
