"""The tracker that writes for TensorBoard."""

import os

import numpy as np
import tensorflow as tf

from keras_pergrad.trackers.tracker import Tracker


class TensorBoard(Tracker):
    """Writes scalars and histograms that TensorBoard shows.

    `tensorboard --logdir <log_dir>` then has the figures under their names in
    the logs, those of variables under `<instrument>/<path>`, and histograms
    where they are measured. TensorBoard itself is not needed to write them.

    Args:
        log_dir: the directory for the event files, such as
            `"logs/fit1/gradients"` beside those of
            `keras.callbacks.TensorBoard("logs/fit1")`. A `fit` that resumes
            adds a file and goes on with the steps.

    Example:

    >>> import tempfile, keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.eye(4), np.ones((4, 3))
    >>> board = kpg.trackers.TensorBoard(tempfile.mkdtemp())
    >>> watch = kpg.callbacks.GradientVariance(probe=(x, y), trackers=[board])
    >>> history = model.fit(x, y, verbose=0, callbacks=[watch])
    """

    def __init__(self, log_dir: str | os.PathLike):
        self.log_dir = os.fspath(log_dir)
        self._writer = None

    def begin(self, run):
        self._writer = tf.summary.create_file_writer(self.log_dir)

    def write(self, reading):
        with (
            self._writer.as_default(step=reading.step),
            tf.summary.record_if(True),
        ):
            for name, value in self.numbers(reading).items():
                _write(name, "scalars", np.float32(value))
            for name, histogram in reading.histograms.items():
                edges = np.asarray(histogram.edges, np.float64)
                bins = [edges[:-1], edges[1:], histogram.counts]
                _write(name, "histograms", np.stack(bins, 1))
        # A process that is killed loses nothing.
        self._writer.flush()

    def end(self):
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _write(name, plugin, value):
    # Those of tf.summary.scalar and .histogram, which need the package
    # `tensorboard`, and of which the second counts the values by itself.
    known = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": plugin})
    tf.summary.write(name, value, metadata=known)
