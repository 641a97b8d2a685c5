"""Copies of a model's weights from earlier in a training."""

import contextlib

import numpy as np


class HeldWeights:
    """The weights when training began, and before the last update.

    Attributes:
        begin, before: one array a variable, or None: not held.
    """

    def __init__(self, variables, needs):
        self._variables = list(variables)
        self._needs = needs
        self.before = None
        self.begin = self.now() if "begin" in needs else None

    @contextlib.contextmanager
    def held(self):
        """Hold the weights before an update, if they are needed.

        If it raises, as at the end of the data, there was no update.
        """
        before = self.before
        if "before" in self._needs:
            self.before = self.now()
        try:
            yield
        except BaseException:
            self.before = before
            raise

    def now(self):
        """Return copies of the present weights."""
        # Not views: an optimizer may write into the same memory.
        return [np.array(v.numpy()) for v in self._variables]
