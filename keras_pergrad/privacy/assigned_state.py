"""State that a traced forward pass takes from its batch."""

from keras_pergrad.keras_internals.models.parts import (
    compiled_loss,
    entries_of,
    layers_of,
)
from keras_pergrad.keras_internals.state.model import Handle, plain_variables
from keras_pergrad.proof.step_types import type_step
from keras_pergrad.proof.tensor_types import BY_SIZE, Free


def state_of_batch(model, graph, batch, *, values):
    """Return which state depends on the batch of a traced function.

    A count of the calls does not depend on it, nor does a seed.

    Returns:
        For each of `values`, tensors of the graph, whether it does; and the
        names of the variables and tables that ops of the graph assign, but
        for Keras's variables in a trace in a `keras.StatelessScope`.
    """
    types = type_step(
        graph,
        batch,
        variables=[],
        operations=graph.get_operations(),
        tensors=values,
    )
    names = {
        _state_name(handle, model)
        for handle, tensor_type in types.assigned
        if handle is not None and _reveals_batch(tensor_type)
    }
    return [_reveals_batch(types.of(v)) for v in values], sorted(names)


def _reveals_batch(tensor_type):
    """Whether a tensor of a type tells of the batch, if only of its size."""
    return not isinstance(tensor_type, Free) or bool(
        tensor_type.flags & BY_SIZE
    )


def _state_name(handle, model):
    """Return the name of what a captured handle belongs to."""
    if not Handle.is_variable(handle):
        return "a table"
    losses = [entry.loss for entry in entries_of(compiled_loss(model))]
    for owner in [*layers_of(model), *losses]:
        for name, variable in _owned_variables(owner):
            if variable.handle is handle:
                return f"{name!r} of {owner.name!r}"
    return "a tf.Variable"


def _owned_variables(owner):
    for variable in plain_variables([owner]):
        yield variable.name, variable
    for value in vars(owner).values():
        if hasattr(value, "path") and hasattr(value, "value"):
            yield value.path, value.value
