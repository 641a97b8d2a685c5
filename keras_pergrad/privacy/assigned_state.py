"""State that a traced forward pass takes from its batch."""

from keras_pergrad.keras_internals.models.parts import (
    compiled_loss,
    entries_of,
    layers_of,
)
from keras_pergrad.keras_internals.state.model import Handle, plain_variables
from keras_pergrad.proof.step_types import type_step
from keras_pergrad.proof.tensor_types import BY_SIZE, Free


class AssignedState:
    """The variables whose new values depend on a traced function's batch."""

    # A count of the calls does not depend on it, nor does a seed.

    def __init__(self, concrete, batch, outputs=()):
        graph = concrete.graph
        self._types = type_step(
            graph,
            batch,
            variables=[],
            operations=graph.get_operations(),
            tensors=list(outputs),
        )
        self._handles = [
            handle
            for handle, tensor_type in self._types.assigned
            if handle is not None and _reveals_batch(tensor_type)
        ]

    def depends_on_batch(self, tensor):
        """Whether a tensor of the function depends on its arguments."""
        return _reveals_batch(self._types.of(tensor))

    def names(self, model):
        """Name the variables and tables that ops assign, without repetition."""
        # Keras's variables are not among them if the function was traced in a
        # `keras.StatelessScope`.
        names = {id(t): _state_name(t, model) for t in self._handles}
        return sorted(set(names.values()))


def _reveals_batch(tensor_type):
    """Whether a tensor of a type tells of the batch, if only of its size."""
    return not isinstance(tensor_type, Free) or bool(
        tensor_type.flags & BY_SIZE
    )


def _state_name(handle, model):
    """Return the name of what a captured handle belongs to."""
    if not Handle.is_variable(handle):
        return "a table"
    for owner in _owners(model):
        for name, variable in _owned_variables(owner):
            if variable.handle is handle:
                return f"{name!r} of {owner.name!r}"
    return "a tf.Variable"


def _owners(model):
    losses = [entry.loss for entry in entries_of(compiled_loss(model))]
    return [*layers_of(model), *losses]


def _owned_variables(owner):
    for variable in plain_variables([owner]):
        yield variable.name, variable
    for value in vars(owner).values():
        if hasattr(value, "path") and hasattr(value, "value"):
            yield value.path, value.value
