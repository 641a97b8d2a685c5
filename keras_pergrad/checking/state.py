"""A model's state, held and given back.

Private names in use: `keras.src.random.seed_generator.global_seed_generator`,
`Layer._losses`, `Layer._loss_ids`.
"""

import contextlib

from keras.src.random.seed_generator import global_seed_generator

from keras_pergrad.patching import attribute


class State:
    """Every number of a model: weights, seeds, metrics, optimizer.

    As a context manager it gives the numbers back at the end, however that
    comes, and leaves no loss of a traced step behind.
    """

    def __init__(self, model):
        variables = [*model.variables, *model.metrics_variables]
        if model.optimizer is not None:
            variables += model.optimizer.variables
        variables.append(global_seed_generator().state)
        once = {id(v): v for v in variables}
        self._held = [(v, v.numpy()) for v in once.values()]
        self._layers = model._flatten_layers()

    def restore(self):
        """Gives every variable its number back."""
        for variable, number in self._held:
            variable.assign(number)

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        self._stack.callback(self.restore)
        for layer in self._layers:
            held = {"_losses": [], "_loss_ids": set()}
            for name, value in held.items():
                self._stack.enter_context(attribute(layer, name, value))
        return self

    def __exit__(self, *_):
        self._stack.close()
