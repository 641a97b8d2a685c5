"""The ledger of one model: epsilon spent, and where its draws stand."""

import json
import secrets
import weakref

import numpy as np
import tensorflow as tf

from keras_pergrad.common.numbers import weights_checksum
from keras_pergrad.keras_internals.state.saved import AggregationState
from keras_pergrad.privacy.correlated_noise import CorrelatedNoise
from keras_pergrad.privacy.mechanism import Mechanism, make_key
from keras_pergrad.privacy.model_check import ProofRecord

LEDGER = "ledger"
STEPS = "phase_steps"


class Ledger(AggregationState):
    """The state of a model that is trained privately.

    It counts the updates inside the step, so that none is missed. It is saved
    and loaded with the model's weights, and never goes back: who loads an
    earlier checkpoint may have chosen it by what came later.

    Attributes:
        phases: the earlier phases, a tuple of (`Mechanism`, steps).
        key: of the batches, see `sampling`.
        run: a text that the states of one run of training have in common.
        outside: whether the model was trained without privacy in between.
        proof: how far it is proved that examples are apart, a `ProofRecord`.
        checksum: of the weights that this ledger stands for, or None.
        epoch_start: how many updates of this phase there were when the
            running epoch began.
        phase_steps: a variable: the updates of this phase.
        limit: a variable: the last update that `fit` has allowed.
        correlated_noise: the noise of earlier steps, or None.
    """

    def __init__(self, mechanism, seed, **kept):
        super().__init__(seed, **kept, **{STEPS: 0, "limit": 0})
        self.mechanism = mechanism
        self.phases = ()
        self.key = make_key(seed)
        self.run = secrets.token_hex(8)
        self.outside = False
        self.proof = ProofRecord()
        self.checksum = None
        self.epoch_start = 0
        self.correlated_noise = mechanism.strategy and CorrelatedNoise(
            mechanism.strategy
        )
        self._model_ref = None

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

    @property
    def in_fit(self):
        """Whether a `fit` is running."""
        return self._model_ref is not None

    def next_update(self):
        """Return the number of the next update, and whether it is allowed."""
        number = tf.convert_to_tensor(getattr(self, STEPS))
        return number, number < tf.convert_to_tensor(self.limit)

    def count_update(self, allowed):
        """Count an update if it is allowed."""
        count = tf.cast(allowed, "int64")
        self.advance(STEPS, count)
        if self.correlated_noise is not None:
            self.correlated_noise.advance(count)

    def gradient_noise(self, index, like, deviation):
        if self.correlated_noise is None:
            return super().gradient_noise(index, like, deviation)
        _, allowed = self.next_update()
        noise = self.correlated_noise.draw(index, like, allowed)
        return noise * tf.cast(deviation, noise.dtype)

    def noise_variance(self):
        if self.correlated_noise is None:
            return 1.0
        return self.correlated_noise.variance()

    def prepare_noise(self, variables=None):
        """Let the noise go on, or close the phase where it cannot.

        Args:
            variables: the weights that get the noise; None: those of before.
        """
        noise = self.correlated_noise
        if noise is None:
            return
        words = np.asarray(self.generator.state)
        seed = int(words[0]) & 0xFFFFFFFF
        phase, step = len(self.phases), self.updates
        if not noise.begin(phase, step, seed, variables):
            # Part of the earlier noise could not be taken back any more.
            self._continue_phase(self.spent, self.mechanism, 0)
            self._restart_schedules()
            noise.begin(phase + 1, 0, seed, variables)

    def begin_fit(self, model):
        """Take note of training that is not counted."""
        aggregation = model.gradient_mode.aggregation
        counts = aggregation is not None and aggregation.counts
        if (self.begun and not counts) or self.was_changed(model):
            self.outside = True
        self._model_ref = weakref.ref(model)

    def end_fit(self, model):
        """Allow no more updates, and stand for the weights as they are."""
        self._model_ref = None
        self.limit.assign(np.asarray(0, "int64"))
        self.checksum = weights_checksum(model)

    def was_changed(self, model):
        """Whether weights were changed outside of `fit`, since the last one."""
        if self.in_fit or not self.begun or self.checksum is None:
            return False
        return self.checksum != weights_checksum(model)

    def resume_from(self, before):
        """Take over from the state before another compile()."""
        super().resume_from(before)
        if isinstance(before, Ledger):
            self._continue_phase(
                before.phases, before.mechanism, before.updates
            )
            self.run = before.run
            self.outside = before.outside
            self.proof = before.proof
            self.checksum = before.checksum
            if self.seed is None or self.seed == before.seed:
                self.key = before.key
            if before.mechanism == self.mechanism:
                self.correlated_noise = before.correlated_noise

    def _continue_phase(self, phases, mechanism, steps):
        """Continue the last phase if it is the same, else close it."""
        self.phases = tuple(phases)
        if mechanism != self.mechanism:
            if steps:
                self.phases = (*self.phases, (mechanism, steps))
            steps = 0
            self._restart_schedules()
        getattr(self, STEPS).assign(np.asarray(steps, "int64"))
        self.limit.assign(np.asarray(0, "int64"))

    def _restart_schedules(self):
        if "steps" in self.kept:  # Schedules begin with the phase.
            self.steps.assign(np.asarray(0, "int64"))

    def record(self):
        """Return what was spent, and where draws stand, for JSON."""
        return {
            "phases": [[m.to_dict(), steps] for m, steps in self.phases],
            "mechanism": self.mechanism.to_dict(),
            "steps": self.updates,
            "key": [str(word) for word in self.key],
            "noise": [int(word) for word in np.asarray(self.generator.state)],
            "run": self.run,
            "outside": self.outside,
            "proof": self.proof.to_dict(),
            "checksum": self._current_checksum(),
        }

    def _current_checksum(self):
        model = self._model_ref and self._model_ref()
        return self.checksum if model is None else weights_checksum(model)

    def continue_from_record(self, record):
        """Continue what `record` gave, in a ledger that has not begun."""
        self.set_generator(np.asarray(record["noise"], "uint32"))
        self._continue_phase(*_recorded_phases(record), record["steps"])
        self._merge_proof(record)
        self.outside = self.outside or record["outside"]
        self.run = record["run"]
        if self.seed is None:
            self.key = tuple(int(word) for word in record["key"])

    def _merge_proof(self, record):
        phases, mechanism = _recorded_phases(record)
        begun = bool(_nonempty_phases((*phases, (mechanism, record["steps"]))))
        proof = ProofRecord.from_record(record.get("proof"), begun)
        self.proof = self.proof.merged_with(proof)

    def save_own_variables(self, store):
        super().save_own_variables(store)
        text = json.dumps(self.record()).encode()
        store[LEDGER] = np.frombuffer(text, "uint8")
        if self.correlated_noise is not None:
            self.correlated_noise.save(store)

    def load_own_variables(self, store):
        if LEDGER not in list(store.keys()):
            # Of a model that was not trained privately.
            if not self.begun:
                super().load_own_variables(store)
            return
        text = np.asarray(store[LEDGER]).tobytes().decode()
        record = json.loads(text)
        phases, mechanism = _recorded_phases(record)
        loaded = _nonempty_phases((*phases, (mechanism, record["steps"])))
        own_phases, same_run = (
            _nonempty_phases(self.spent),
            record["run"] == self.run,
        )
        # A later state of the same run replaces this one, an earlier state
        # changes nothing, and what another run or branch spent is added.
        if not own_phases or (same_run and _is_prefix(own_phases, loaded)):
            super().load_own_variables(store)
            self.continue_from_record(record)
            if self.correlated_noise is not None:
                self.correlated_noise.load(store)
        elif not (same_run and _is_prefix(loaded, own_phases)):
            self.add_record(record)
        self.outside = self.outside or record["outside"]
        self.checksum = record["checksum"]
        if self.correlated_noise and self.correlated_noise.weights:
            self.prepare_noise()  # It is loaded within a `fit`.

    def add_record(self, record):
        """Count what another run has spent, given by `record`, beside this."""
        phases, mechanism = _recorded_phases(record)
        spent = (*self.spent, *phases, (mechanism, record["steps"]))
        self._continue_phase(_nonempty_phases(spent), self.mechanism, 0)
        self._merge_proof(record)
        self.outside = self.outside or record["outside"]
        self._restart_schedules()
        noise = record["noise"]
        generator_state = np.asarray(self.generator.state)
        if int(noise[0]) == int(generator_state[0]) and int(noise[1]) > int(
            generator_state[1]
        ):
            # The same stream of noise: go on where both have been.
            self.generator.state.assign(
                np.asarray(noise, generator_state.dtype)
            )


def _recorded_phases(record):
    phases = [(Mechanism.from_dict(m), steps) for m, steps in record["phases"]]
    return phases, Mechanism.from_dict(record["mechanism"])


def _nonempty_phases(phases):
    return tuple((m, steps) for m, steps in phases if steps)


def _is_prefix(prefix, phases):
    """Whether training that spent `prefix` may go on to spend `phases`."""
    if not prefix:
        return True
    # The last phase of the prefix may have gone on; all others are closed.
    *before, (mechanism, steps) = prefix
    if tuple(before) != phases[: len(before)] or len(prefix) > len(phases):
        return False
    continued = phases[len(before)]
    return continued[0] == mechanism and continued[1] >= steps
