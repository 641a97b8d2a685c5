"""The ledger of one model: epsilon spent, and where its draws stand.

Private names in use: those of `keras_pergrad.keras_internals.noise`.
"""

import json

import numpy as np

from keras_pergrad.keras_internals.noise import Noise
from keras_pergrad.privacy.mechanism import Mechanism
from keras_pergrad.privacy.sampling import make_key

LEDGER = "ledger"
STEPS = "phase_steps"


class Ledger(Noise):
    """The state of a model that is trained privately.

    It counts the updates inside the step, so that none is missed. It is saved
    and loaded with the model's weights.

    Args:
        mechanism: the `Mechanism` of the phase that begins.
        seed: of noise and batches, an integer or None.
        **kept: as for `Noise`.

    Attributes:
        phases: the earlier phases, a tuple of (`Mechanism`, steps).
        key: of the batches, see `sampling`.
        outside: whether the model was trained without privacy in between.
        epoch_start: how many updates of this phase there were when the
            running epoch began.
        phase_steps: a variable: the updates of this phase.
        limit: a variable: the last update that `fit` has allowed.
    """

    def __init__(self, mechanism, seed, **kept):
        super().__init__(seed, **kept, **{STEPS: 0, "limit": 0})
        self.mechanism = mechanism
        self.phases = ()
        self.key = make_key(seed)
        self.outside = False
        self.epoch_start = 0

    @property
    def updates(self):
        """The updates of this phase so far, a number."""
        return int(np.asarray(getattr(self, STEPS)))

    @property
    def spent(self):
        """All phases so far, a tuple of (`Mechanism`, steps)."""
        return (*self.phases, (self.mechanism, self.updates))

    @property
    def begun(self):
        """Whether any update has been made."""
        return any(steps for _, steps in self.spent)

    def begin_fit(self, aggregation):
        """Take note of training that is not counted."""
        if self.begun and (aggregation is None or not aggregation.counts):
            self.outside = True

    def go_on_from(self, before):
        """Take over from the state before another compile()."""
        super().go_on_from(before)
        if isinstance(before, Ledger):
            self._join(before.phases, before.mechanism, before.updates)
            self.outside = before.outside
            if self.seed is None or self.seed == before.seed:
                self.key = before.key

    def _join(self, phases, mechanism, steps):
        """Continue the last phase if it is the same, else close it."""
        self.phases = tuple(phases)
        if mechanism != self.mechanism:
            if steps:
                self.phases = (*self.phases, (mechanism, steps))
            steps = 0
            if "steps" in self.kept:  # Schedules begin with the phase.
                self.steps.assign(np.asarray(0, "int64"))
        getattr(self, STEPS).assign(np.asarray(steps, "int64"))
        self.limit.assign(np.asarray(0, "int64"))

    def save_own_variables(self, store):
        super().save_own_variables(store)
        record = {
            "phases": [[m.to_dict(), steps] for m, steps in self.phases],
            "mechanism": self.mechanism.to_dict(),
            "steps": self.updates,
            "key": [str(word) for word in self.key],
            "outside": self.outside,
        }
        text = json.dumps(record).encode()
        store[LEDGER] = np.frombuffer(text, "uint8")

    def load_own_variables(self, store):
        super().load_own_variables(store)
        names = list(store.keys())
        if LEDGER not in names:
            return  # Of a model that was not trained privately.
        record = json.loads(np.asarray(store[LEDGER]).tobytes().decode())
        phases = [
            (Mechanism.from_dict(config), steps)
            for config, steps in record["phases"]
        ]
        mechanism = Mechanism.from_dict(record["mechanism"])
        self._join(phases, mechanism, record["steps"])
        self.outside = record["outside"]
        if self.seed is None:
            self.key = tuple(int(word) for word in record["key"])
