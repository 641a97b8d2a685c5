"""What a gradient mode logs, as running values over an epoch."""

from keras_pergrad import tallies


class Logs:
    """The running values of a mode's statistics, apart from the metrics."""

    def __init__(self, metrics):
        self._metrics = {
            name: make(name=name) for name, make in metrics.items()
        }

    def reset(self):
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
