"""What a gradient mode logs, as running values over an epoch."""

import keras
import tensorflow as tf

from keras_pergrad import tallies


class Logs:
    """The running values of a mode's statistics, apart from the metrics."""

    def __init__(self, metrics):
        self._makers = metrics
        self._metrics = {
            name: make(name=name) for name, make in metrics.items()
        }
        self._of_losses = {}

    def of_loss(self, name=None):
        """The logs of one of several losses of a step, with the loss itself.

        Args:
            name: what goes before the names in the logs, or None.
        """
        if name not in self._of_losses:
            metrics = {"loss": keras.metrics.Mean, **self._makers}
            before = f"{name}_" if name else ""
            with tf.init_scope():
                self._of_losses[name] = Logs(
                    {before + key: make for key, make in metrics.items()}
                )
        return self._of_losses[name]

    def reset(self):
        for logs in self._of_losses.values():
            logs.reset()
        for metric in self._metrics.values():
            metric.reset_state()

    def update(self, statistics):
        logs = {}
        for name, value in statistics.items():
            metric = self._metrics[name]
            # Every replica has the statistics of the whole batch.
            tallies.update(
                metric.variables,
                lambda m=metric, v=value: m.update_state(v),
                whole=True,
            )
            logs[name] = metric.result()
        return logs
