"""The aggregation of private training: clip, add noise, count."""

import copy

import tensorflow as tf

from keras_pergrad.aggregations.aggregation import Aggregation, aggregations
from keras_pergrad.common.registry import serialize
from keras_pergrad.keras_internals.tensorflow.settings import is_inspecting
from keras_pergrad.privacy.ledger import Ledger, ledger_of
from keras_pergrad.privacy.mechanism import Mechanism


class PrivateMean(Aggregation):
    """The result of another aggregation, with a ledger of the updates made."""

    # `after` is what another model has spent, from which the training of this
    # one begins, as `Ledger.record` gives it, or None.

    counts = True

    def __init__(
        self,
        clipping,
        mechanism,
        delta,
        *,
        target_epsilon=None,
        public_layers=(),
        after=None,
    ):
        self.clipping = aggregations.get(clipping)
        if isinstance(mechanism, dict):
            mechanism = Mechanism.from_dict(mechanism)
        self.mechanism = mechanism
        self.delta = delta
        self.target_epsilon = target_epsilon
        self.public_layers = tuple(public_layers)
        self.after = after

    @property
    def adds_noise(self):
        return self.clipping.adds_noise

    @property
    def limits_norms(self):
        return self.clipping.limits_norms

    @property
    def noise_multiplier(self):
        """The noise multiplier of the aggregation inside."""
        return self.clipping.noise_multiplier

    @property
    def needs(self):
        return self.clipping.needs

    def batch_sizes(self):
        """Return a few sizes to which batches may be padded, ascending."""
        return self.mechanism.selection.sizes(self.mechanism)

    def groups(self, variables):
        return self.clipping.groups(variables)

    def at(self, state):
        current = copy.copy(self)
        current.clipping = self.clipping.at(state)
        return current

    def weights(self, norms):
        return self.clipping.weights(norms)

    def observe(self, norms, state):
        self.clipping.observe(norms, state)

    def statistics(self, norms):
        return self.clipping.statistics(norms)

    @property
    def log_metrics(self):
        return self.clipping.log_metrics

    def make_state(self, before=None):
        kept = self.clipping.kept()
        state = Ledger(self.mechanism, self.clipping.seed, **kept)
        after = self.after
        has_begun = isinstance(before, Ledger) and before.begun
        if isinstance(before, Ledger):
            state.resume_from(before)
        # Compiled again, it may count twice what was spent: never too little.
        if after is not None and not (has_begun and before.run == after["run"]):
            state.add_record(after)
            if not has_begun:
                state.run = after["run"]
        return state

    def finish(self, gradients, n, state=None):
        if not isinstance(state, Ledger):
            raise ValueError(
                "Private training counts every update. Expected finish("
                "gradients, n, state) with what make_state() returned. "
                f"Received: state={state!r}"
            )
        num_updates, allowed = state.next_update()
        check = tf.debugging.Assert(allowed, [_NOT_ALLOWED, num_updates])
        # Eagerly Assert raises by itself and returns None. In a graph, identity
        # ties the gradients to the check.
        with tf.control_dependencies([check] if check is not None else []):
            gradients = [
                None if g is None else tf.identity(tf.convert_to_tensor(g))
                for g in gradients
            ]
            gradients = self.clipping.finish(gradients, n, state)
            state.count_update(allowed)
        # XLA drops assertions: there, a step that is not allowed gets zeros.
        return [
            None if g is None else tf.where(allowed, g, tf.zeros_like(g))
            for g in gradients
        ]

    def noise_variance(self, n, state=None):
        return self.clipping.noise_variance(n, state)

    def require_fit(self, model, received, is_step=False):
        ledger = ledger_of(model)
        in_fit = ledger is not None and ledger.in_fit
        if is_step and (in_fit or is_inspecting()):
            return
        raise ValueError(
            "Private training counts only the updates of fit(), because it "
            "is unknown how other batches were drawn. Expected fit("
            "private.batches(x, y), callbacks=[private.callback]). Received: "
            f"{received}. No weight has changed. To train without privacy, "
            "call compile(gradient_mode='batch') first: the statement then "
            "says so."
        )

    def prepare_fit(self, model, arguments):
        # It looks deep into the model; saved models are loaded without it.
        from keras_pergrad.privacy import fit_check

        fit_check.prepare(self, model, arguments)

    def get_config(self):
        return {
            "clipping": serialize(self.clipping),
            "mechanism": self.mechanism.to_dict(),
            "delta": self.delta,
            "target_epsilon": self.target_epsilon,
            "public_layers": list(self.public_layers),
            "after": self.after,
        }


aggregations.register("private_mean", PrivateMean)

_NOT_ALLOWED = (
    "This update was not made: it is beyond the privacy budget, or outside "
    "fit(private.batches(...), callbacks=[private.callback]), where it is "
    "unknown how the batch was drawn. Updates so far:"
)
