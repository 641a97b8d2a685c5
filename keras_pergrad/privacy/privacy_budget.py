"""The callback that logs epsilon and stops training within the budget."""

import math
import weakref

import keras

from keras_pergrad.keras_internals.models.parts import layers_of
from keras_pergrad.privacy.accounting import affordable_steps, compute_epsilon
from keras_pergrad.privacy.ledger import ledger_of


class TrainedModels(weakref.WeakSet):
    """The living models among those that were added; none in a copy."""

    def __reduce__(self):
        # Pickled and copied without the models.
        return type(self), ()


_TRAINED = TrainedModels()


def is_trained_elsewhere(model):
    """Whether another model that shares its weights was trained privately."""
    own = {id(variable) for variable in model.weights}
    run = model.aggregation_state.run
    for other in {*_TRAINED, *layers_of(model)} - {model}:
        ledger = ledger_of(other)
        is_other = ledger is not None and ledger.begun and ledger.run != run
        if is_other and own & set(map(id, other.weights)):
            return True
    return False


class PrivacyBudget(keras.callbacks.Callback):
    """Logs `epsilon` and stops training before a budget is exceeded."""

    # To compute epsilon takes about a tenth of a second. So a batch's logs have
    # the epsilon of the end of the epoch, and an epoch's logs what is spent.

    def __init__(self, mechanism, delta, *, target_epsilon, register_model):
        super().__init__()
        self.mechanism = mechanism
        self.delta = delta
        self.target_epsilon = target_epsilon
        self._budget = math.inf if target_epsilon is None else target_epsilon
        self._register_model = register_model
        self._first_step = self._step_limit = 0
        self._epsilon = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        """Allow as many updates as the budget permits."""
        ledger = self.model.aggregation_state
        _TRAINED.add(self.model)
        self._register_model(self.model)
        self._first_step = ledger.updates
        self._step_limit = affordable_steps(
            ledger.phases,
            self.mechanism,
            self._budget,
            delta=self.delta,
            min_steps=self._first_step,
            max_steps=self._first_step + self.mechanism.steps_per_epoch,
        )
        if self._step_limit - self._first_step < self._steps_per_call:
            raise ValueError(
                "The privacy budget is spent. Expected the next call of the "
                "train function, of steps_per_execution="
                f"{self._steps_per_call}, to keep epsilon at most "
                f"{self.target_epsilon}, at delta="
                f"{self.delta}. Received: a model with epsilon="
                f"{self._epsilon_after(ledger, self._first_step):.6g} "
                f"after {self._first_step} steps. No weight has changed. To "
                "continue, compile with a PrivateTraining of a larger "
                "target_epsilon: the ledger continues."
            )
        ledger.limit.assign(self._step_limit)
        ledger.epoch_start = self._first_step
        self._epsilon = self._epsilon_after(ledger, self._step_limit)

    def on_train_batch_begin(self, batch, logs=None):
        """Stop after these steps if the next ones would exceed the budget."""
        # Not in on_train_batch_end: it gets the first step of a call from Keras
        # 3.8, the last step from later versions. `stop_training` takes effect
        # after this call, so the end of the next one must be in the budget.
        next_end = self._first_step + batch + 2 * self._steps_per_call
        ends_early = (
            self._step_limit < self._first_step + self.mechanism.steps_per_epoch
        )
        if ends_early and next_end > self._step_limit:
            self.model.stop_training = True

    def on_train_batch_end(self, batch, logs=None):
        """Log what will be spent at the end of the epoch."""
        if logs is not None:
            logs["epsilon"] = self._epsilon

    def on_epoch_end(self, epoch, logs=None):
        """Log what is spent, and stop if nothing is left."""
        ledger = self.model.aggregation_state
        steps = ledger.updates
        epsilon = self._epsilon_after(ledger, steps)
        if logs is not None:
            logs["epsilon"] = epsilon
        is_last = epoch + 1 == self.params.get("epochs")
        if not is_last and not self._can_continue(ledger, steps):
            self.model.stop_training = True
            if self.params.get("verbose"):
                print(
                    f"The budget of epsilon={self.target_epsilon} is enough "
                    f"for {steps} steps: epsilon={epsilon:.4g} is spent."
                )

    @property
    def _steps_per_call(self):
        """The number of updates between two calls of a callback, at most."""
        # A call of the train function ends with the data of the epoch.
        length = self.mechanism.steps_per_epoch
        return min(self.model.steps_per_execution, length)

    def _epsilon_after(self, ledger, steps):
        phases = (*ledger.phases, (self.mechanism, steps))
        return compute_epsilon(phases, self.delta)

    def _can_continue(self, ledger, steps):
        """Whether the budget allows a step of the next epoch."""
        # The first figure is needed anyway when that epoch begins.
        increments = self.mechanism.steps_per_epoch, self._steps_per_call
        return any(
            self._epsilon_after(ledger, steps + increment) <= self._budget
            for increment in increments
        )
