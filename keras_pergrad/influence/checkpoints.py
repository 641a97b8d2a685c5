"""The weights of a model at checkpoints."""

import contextlib

from keras_pergrad.common.numbers import weights_checksum
from keras_pergrad.keras_internals.state.model import (
    ModelState,
    preserve_variables,
)


class Checkpoints:
    """Weights of a model, which it can be given for a while.

    Args:
        model: a built model.
        paths: weights files of `save_weights`, or None for its weights now,
            which then must stay as they are.
    """

    def __init__(self, model, paths):
        self._model = model
        self._saved = [None]
        self._checksum = weights_checksum(model)
        if paths is not None:
            self._saved = [self._read(path) for path in paths]

    def __len__(self):
        return len(self._saved)

    @contextlib.contextmanager
    def at(self, index):
        """Give the model the weights of one checkpoint; restore its own."""
        weights = self._saved[index]
        if weights is None:
            if weights_checksum(self._model) != self._checksum:
                raise ValueError(
                    f"The weights of model {self._model.name!r} have changed "
                    "since this Influence was made for them. Expected the same "
                    "weights. Make a new one, or pass checkpoints=[...] of "
                    "files from model.save_weights."
                )
            yield
            return
        with preserve_variables([v.value for v in self._model.weights]):
            for variable, value in zip(self._model.weights, weights):
                variable.assign(value)
            yield

    def checksum(self, index):
        """Return a text that changes with the weights of a checkpoint."""
        with self.at(index):
            return weights_checksum(self._model)

    def _read(self, path):
        with ModelState(self._model):
            self._model.load_weights(path)
            return [v.numpy() for v in self._model.weights]
