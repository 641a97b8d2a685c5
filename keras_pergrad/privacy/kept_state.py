"""State that a traced forward pass takes from its batch."""

from keras_pergrad.keras_internals.model_parts import (
    compiled_loss,
    entries_of,
    layers_of,
)
from keras_pergrad.keras_internals.model_state import Handle, plain_variables
from keras_pergrad.samples.types.step_types import StepTypes
from keras_pergrad.samples.types.tensor_types import BY_SIZE, Free


class KeptState:
    """The variables whose new values depend on a traced function's batch."""

    # A count of the calls does not depend on it, nor does a seed.

    def __init__(self, concrete, batch, given=()):
        graph = concrete.graph
        self._types = StepTypes(
            graph, batch, [], list(given), graph.get_operations()
        )
        self._handles = [
            handle
            for handle, kind in self._types.assigned
            if handle is not None and _tells(kind)
        ]

    def has(self, tensor):
        """Whether a tensor of the function depends on its arguments."""
        return _tells(self._types.of(tensor))

    def names(self, model):
        """Name the variables and tables that ops assign, without repetition."""
        # Keras's variables are not among them if the function was traced in a
        # `keras.StatelessScope`.
        names = {id(t): _name(t, model) for t in self._handles}
        return sorted(set(names.values()))


def _tells(kind):
    """Whether a tensor of a type tells of the batch, if only of its size."""
    return not isinstance(kind, Free) or bool(kind.flags & BY_SIZE)


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
    losses = [entry.loss for entry in entries_of(compiled_loss(model))]
    return [*layers_of(model), *losses]


def _variables(owner):
    for variable in plain_variables([owner]):
        yield variable.name, variable
    for value in vars(owner).values():
        if hasattr(value, "path") and hasattr(value, "value"):
            yield value.path, value.value
