"""The ledger of one model: epsilon spent, and where its draws stand."""

import dataclasses
import json
import secrets
import weakref

import numpy as np
import tensorflow as tf

from keras_pergrad.common.numbers import weights_checksum
from keras_pergrad.keras_internals.state.saved import AggregationState
from keras_pergrad.privacy.draws import make_key, noise_seed
from keras_pergrad.privacy.mechanism import Mechanism
from keras_pergrad.privacy.phase import Phase, checksum
from keras_pergrad.privacy.phase_noise import PhaseNoise, shared_by_workers
from keras_pergrad.privacy.proof_record import ProofRecord

LEDGER = "ledger"


class Ledger(AggregationState):
    """The state of a model that is trained privately.

    It counts the updates inside the step, so that none is missed. It is saved
    and loaded with the model's weights, and never goes back: who loads an
    earlier checkpoint may have chosen it by what came later.

    Attributes:
        phase: the record of this phase, a `Phase`.
        phases: the earlier phases, a tuple of (`Mechanism`, steps); how many
            there are is part of all draws.
        run: a text that the states of one run of training have in common.
        outside: whether the model was trained without privacy in between.
        has_seed: whether draws follow from a seed that the user gave, or that
            an earlier version took from Keras.
        proof: a `ProofRecord`: how far it is proved that examples stay
            separate.
        checksum: of the weights that this ledger stands for, or None.
        epoch_start: how many updates of this phase there were when the
            running epoch began.
        steps: a variable: the updates of this phase.
        limit: a variable: the last update that `fit` has allowed.
        noise: the `PhaseNoise`.
    """

    def __init__(self, mechanism, seed, **kept):
        super().__init__(seed, **{**kept, "steps": 0, "limit": 0})
        #: What clipping estimates. Its count of steps is ours.
        self._estimates = {*kept} - {"steps"}
        self.phase = Phase(mechanism, shared_by_workers(make_key(seed)))
        self.phases = ()
        self.run = secrets.token_hex(8)
        self.outside = False
        self.has_seed = seed is not None
        self.proof = ProofRecord()
        self.checksum = None
        self.epoch_start = 0
        self.noise = PhaseNoise(mechanism.strategy)
        self._model_ref = None
        self._set_steps(0)

    @property
    def mechanism(self):
        """The `Mechanism` of this phase."""
        return self.phase.mechanism

    @property
    def key(self):
        """The key of all draws, two integers."""
        return self.phase.key

    @property
    def updates(self):
        """The updates of this phase so far, a number."""
        return int(np.asarray(self.steps))

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
        number = tf.convert_to_tensor(self.steps)
        return number, number < tf.convert_to_tensor(self.limit)

    def count_update(self, allowed):
        """Count an update if it is allowed."""
        self.advance("steps", tf.cast(allowed, "int64"))

    def advance_schedules(self):
        """Do nothing: schedules go by `steps`, which `count_update` counts."""

    def gradient_noise(self, index, like, deviation):
        noise = self.noise.draw(index, like, *self.next_update())
        return noise * tf.cast(deviation, noise.dtype)

    def noise_variance(self):
        return self.noise.variance(self.steps)

    def enter_phase(self, variables, **facts):
        """Let the phase go on in a `fit` if it is the same, else close it.

        Args:
            variables: the weights that get the noise.
            facts: what else a `Phase` has; what is left out is as before.
        """
        shapes = [(tuple(v.shape), str(v.dtype)) for v in variables]
        before = self.phase
        self.phase = dataclasses.replace(
            before, weights=checksum(shapes), **facts
        )
        self.noise.allocate(variables)
        self._continue_phase(self.phases, before, self.updates)

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
        """Take over from the ledger before another compile()."""
        for name in self._estimates & {*before.kept}:
            getattr(self, name).assign(np.asarray(getattr(before, name)))
        self.run = before.run
        self.outside = before.outside
        self.has_seed = self.has_seed or before.has_seed
        self.proof = before.proof
        self.checksum = before.checksum
        if before.mechanism == self.mechanism:
            self.noise = before.noise
        self._continue_phase(before.phases, before.phase, before.updates)

    def handed_on(self, source, model):
        if not self.begun:
            return None
        ledger = Ledger(self.mechanism, None)
        ledger.add_record(self.record())
        ledger.run = self.run
        ledger.outside = self.outside or self.was_changed(source)
        ledger.checksum = weights_checksum(model)
        return ledger

    def _continue_phase(self, phases, phase, steps):
        """Go on after steps of a phase if it is this one, else close it."""
        own = self.phase
        if self.seed is None:  # Its key is as good as ours.
            own = dataclasses.replace(own, key=phase.key)
        self.phases, self.phase = tuple(phases), own
        if steps and own.may_continue(phase) and self.noise.is_known:
            self.phase = phase
        elif steps:
            self.phases, steps = (*self.phases, (phase.mechanism, steps)), 0
        self._set_steps(steps)

    def _set_steps(self, steps):
        """Stand after some steps of this phase, with its noise."""
        self.steps.assign(np.asarray(steps, "int64"))
        self.limit.assign(np.asarray(0, "int64"))
        seed = noise_seed(self.key, len(self.phases))
        self.noise.set_seed(seed, restarts=steps == 0)

    def record(self):
        """Return what was spent, and where draws stand, for JSON."""
        return {
            "phases": [[m.to_dict(), steps] for m, steps in self.phases],
            "phase": self.phase.to_dict(),
            "steps": self.updates,
            "run": self.run,
            "outside": self.outside,
            "has_seed": self.has_seed,
            "proof": self.proof.to_dict(),
            "checksum": self._current_checksum(),
        }

    def _current_checksum(self):
        model = self._model_ref and self._model_ref()
        return self.checksum if model is None else weights_checksum(model)

    def add_record(self, record):
        """Count what another run has spent, given by `record`, beside this."""
        self.phases = (*_nonempty_phases(self.spent), *_spent(record))
        self._set_steps(0)
        self._take_notes(record)

    def _take_notes(self, record):
        """Note what holds of any training that a record counts."""
        begun = bool(_spent(record))
        proof = ProofRecord.from_record(record.get("proof"), begun)
        self.proof = self.proof.merged_with(proof)
        self.outside = self.outside or record["outside"]
        self.has_seed = self.has_seed or record.get("has_seed", begun)

    def save_own_variables(self, store):
        for name in self.kept:
            store[name] = np.asarray(getattr(self, name))
        text = json.dumps(self.record()).encode()
        store[LEDGER] = np.frombuffer(text, "uint8")
        self.noise.save(store)

    def load_own_variables(self, store):
        names = list(store.keys())
        if LEDGER not in names:
            return  # Of a model that was not trained privately.
        record = json.loads(np.asarray(store[LEDGER]).tobytes().decode())
        loaded = _spent(record)
        own_phases = _nonempty_phases(self.spent)
        same_run = record["run"] == self.run
        # A later state of the same run replaces this one, an earlier state
        # changes nothing, and what another run or branch spent is added.
        if not own_phases or (same_run and _is_prefix(own_phases, loaded)):
            for name in {*self._estimates} & {*names}:
                getattr(self, name).assign(np.asarray(store[name]))
            self.noise.load(store)
            if self.noise.weights is not None:  # It is loaded within a `fit`.
                self.noise.allocate()
            self._continue_phase(*_read(record))
            self._take_notes(record)
            self.run = record["run"]
        elif not (same_run and _is_prefix(loaded, own_phases)):
            self.add_record(record)
        self.outside = self.outside or record["outside"]
        self.checksum = record["checksum"]


def ledger_of(model):
    """Return the `Ledger` of a model that is trained privately, else None."""
    state = getattr(model, "aggregation_state", None)
    return state if isinstance(state, Ledger) else None


def require_new(model, mechanism):
    """Refuse a model that was trained, or is not for a `Mechanism`."""
    ledger = ledger_of(model)
    if ledger is None or ledger.mechanism != mechanism or ledger.begun:
        raise ValueError(
            "`make_model` must return a new model, compiled with the "
            f"gradient_mode of `private`. Received: {model!r}"
        )


def _read(record):
    """Return the closed phases of a record, its phase and the steps of that."""
    phases = [(Mechanism.from_dict(m), steps) for m, steps in record["phases"]]
    if "phase" in record:
        return phases, Phase.from_dict(record["phase"]), record["steps"]
    # Earlier versions drew their noise from a stream that has no phases, so
    # what they have begun is closed.
    config = {"mechanism": record["mechanism"], "key": record["key"]}
    phase = Phase.from_dict(config)
    return [*phases, (phase.mechanism, record["steps"])], phase, 0


def _spent(record):
    """Return all phases of a record that were begun."""
    phases, phase, steps = _read(record)
    return _nonempty_phases((*phases, (phase.mechanism, steps)))


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
