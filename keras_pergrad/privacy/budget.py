"""The callback that logs epsilon and stops training within the budget."""

import weakref

import keras

from keras_pergrad.privacy.accounting import epsilon_of, most_steps


class TrainedModels(weakref.WeakSet):
    """The living models among those that were added; none in a copy."""

    def __reduce__(self):
        # Pickled and copied without the models.
        return type(self), ()


class PrivacyBudget(keras.callbacks.Callback):
    """Logs `epsilon` and stops training before a budget is passed."""

    # In a batch's logs `epsilon` is what will be spent at the end of the epoch,
    # since each figure takes about a tenth of a second. In an epoch's logs it
    # is what is spent.

    def __init__(self, mechanism, delta, target_epsilon=None, watched=None):
        super().__init__()
        self.mechanism = mechanism
        self.delta = delta
        self.target_epsilon = target_epsilon
        self._watched = watched
        self._first = self._limit = 0
        self._epsilon = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        """Allow as many updates as the budget is enough for."""
        ledger = self.model.aggregation_state
        if self._watched is not None:
            self._watched(self.model)
        self._first = ledger.updates
        self._limit = self._allowed(ledger, self._first)
        if self._limit - self._first < self._at_once:
            raise ValueError(
                "The privacy budget is spent. Expected that the next call of "
                "the train function, of steps_per_execution="
                f"{self._at_once}, keeps epsilon at most "
                f"{self.target_epsilon}, at delta="
                f"{self.delta}. Received: a model with epsilon="
                f"{self._spent(ledger, self._first):.6g} after {self._first} "
                "steps. The model is as it was; to go on, compile with a "
                "PrivateTraining of a larger target_epsilon: the ledger goes "
                "on."
            )
        ledger.limit.assign(self._limit)
        ledger.epoch_start = self._first
        self._epsilon = self._spent(ledger, self._limit)

    def on_train_batch_begin(self, batch, logs=None):
        """Stop after these steps if the next ones would exceed the budget."""
        # At the end Keras 3.8 gives the first step, later versions the last.
        next_end = self._first + batch + 2 * self._at_once
        within = self._limit < self._first + self.mechanism.steps_per_epoch
        if within and next_end > self._limit:
            self.model.stop_training = True

    def on_train_batch_end(self, batch, logs=None):
        """Log what will be spent at the end of the epoch."""
        if logs is not None:
            logs["epsilon"] = self._epsilon

    def on_epoch_end(self, epoch, logs=None):
        """Log what is spent, and stop where nothing is left."""
        ledger = self.model.aggregation_state
        steps = ledger.updates
        epsilon = self._spent(ledger, steps)
        if logs is not None:
            logs["epsilon"] = epsilon
        is_last = epoch + 1 == self.params.get("epochs")
        if not is_last and not self._goes_on(ledger, steps):
            self.model.stop_training = True
            if self.params.get("verbose"):
                print(
                    f"The budget of epsilon={self.target_epsilon} is enough "
                    f"for {steps} steps: epsilon={epsilon:.4g} is spent."
                )

    @property
    def _at_once(self):
        """The number of updates between two calls of a callback, at most."""
        # A call of the train function ends with the data of the epoch.
        length = self.mechanism.steps_per_epoch
        return min(self.model.steps_per_execution, length)

    def _spent(self, ledger, steps):
        phases = (*ledger.phases, (self.mechanism, steps))
        return epsilon_of(phases, self.delta)

    def _allowed(self, ledger, steps):
        """Return the last step of the next epoch that the budget allows."""
        most = steps + self.mechanism.steps_per_epoch
        if self.target_epsilon is None:
            return most
        return most_steps(
            ledger.phases,
            self.mechanism,
            self.target_epsilon,
            self.delta,
            steps,
            most,
        )

    def _goes_on(self, ledger, steps):
        """Whether the budget is enough for some of the next epoch."""
        if self.target_epsilon is None:
            return True
        # The first figure is needed anyway when that epoch begins.
        lengths = self.mechanism.steps_per_epoch, self._at_once
        return any(
            self._spent(ledger, steps + length) <= self.target_epsilon
            for length in lengths
        )
