"""Copies of a model's weights from earlier in a training."""

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

    def hold(self):
        """Hold the weights before an update, if they are needed."""
        if "before" in self._needs:
            self.before = self.now()

    def now(self):
        """Return copies of the present weights."""
        # Not views: an optimizer may write into the same memory.
        return [np.array(v.value) for v in self._variables]
