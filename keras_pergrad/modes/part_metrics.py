"""Metrics of a batch whose samples go through the model in parts.

Compiled metrics are updated part by part. A user's own `compute_metrics` may
log what only the whole batch shows: it gets the joined outputs of the parts.
"""

import warnings

import keras
import tensorflow as tf

from keras_pergrad.common.batches import map_tensors
from keras_pergrad.keras_internals.data import views
from keras_pergrad.keras_internals.models.parts import (
    logits_behind,
    mask_of,
    set_logits,
    set_mask,
)
from keras_pergrad.keras_internals.replicas import replicas

_ATTACHED = ((mask_of, set_mask), (logits_behind, set_logits))


class PartMetrics:
    """What becomes of the outputs of a batch's parts."""

    #: Whether the batch is surely one part.
    is_single = False

    def __init__(self, model, count):
        self._model, self._count = model, count
        self._several = replicas.has_several_replicas()
        #: Whether the step gives the outputs of its replica's only part.
        self._keeps_outputs = getattr(model, "keeps_outputs", False)
        self.joins_outputs = _has_own(model) and not self._several
        self._dtypes = None

    def of_part(self, x, y, y_pred, *, sample_weight, index):
        """Update the metrics, unless outputs are joined; return what adds up.

        On several replicas the metrics have what is to be added to them.
        """
        if self.joins_outputs and self._can_join(y_pred, index):
            return {"metrics": None, "outputs": self._placed(y_pred, index)}

        # A loop of one replica cannot update what all replicas share.
        def update():
            batch = views.rows_of_views(
                x, y, y_pred, sample_weight=sample_weight
            )
            update_metrics(self._model, batch)

        metrics = None
        if self._several:
            variables = self._model.metrics_variables
            metrics = replicas.additions(variables, update)
        else:
            update()
        outputs = y_pred if self._keeps_outputs else None
        return {"metrics": metrics, "outputs": outputs}

    def _can_join(self, y_pred, index):
        """Whether there is a row for each sample, of a size that is known."""
        return all(
            not isinstance(t, (tf.RaggedTensor, tf.SparseTensor))
            and t.dtype != tf.string
            and t.shape.rank
            and index.shape.is_compatible_with(t.shape[:1])
            and (self.is_single or t.shape[1:].is_fully_defined())
            for t in tf.nest.flatten(y_pred)
        )

    def _placed(self, y_pred, index):
        flat = tf.nest.flatten(y_pred)
        attached = [[get(t) for t in flat] for get, _ in _ATTACHED]
        outputs = y_pred, attached
        self._dtypes = map_tensors(lambda t: t.dtype, outputs)
        return map_tensors(lambda t: placed(t, index, self._count), outputs)

    def joined(self, totals):
        """Return the batch's outputs, of the sum of what the parts gave."""
        if self._dtypes is None:
            return totals
        y_pred, attached = tf.nest.map_structure(
            lambda t, dtype: t if t is None else tf.cast(t, dtype),
            totals,
            self._dtypes,
        )
        flat = tf.nest.flatten(y_pred)
        for (_, put), values in zip(_ATTACHED, attached, strict=True):
            for tensor, value in zip(flat, values, strict=True):
                if value is not None:
                    put(tensor, value)
        return y_pred


def placed(rows, index, count):
    """Return a part's rows at their places among `count`, so that they add up.

    Truth values become numbers.
    """
    if rows.dtype.is_bool:
        rows = tf.cast(rows, keras.config.floatx())
    shape = tf.concat([[count], tf.shape(rows)[1:]], 0)
    result = tf.scatter_nd(tf.expand_dims(index, 1), rows, shape)
    result.set_shape([None, *rows.shape[1:]])
    return result


def update_metrics(model, batch):
    """Update the metrics where logs hold these alone; warn of others.

    `batch` is x, y, y_pred and sample_weight.
    """
    logs = model.compute_metrics(*batch)
    if not _has_own(model):
        return
    names = sorted(set(logs) ^ set(model.get_metrics_result()))
    if names:
        warnings.warn(
            _METRICS_ALONE.format(cls=type(model).__name__, names=names),
            stacklevel=2,
        )


def _has_own(model):
    method = getattr(model.compute_metrics, "__func__", None)
    return method is not keras.Model.compute_metrics


_METRICS_ALONE = (
    "The logs of this step hold the results of the metrics alone. "
    "{cls}.compute_metrics() adds other entries or leaves some out: {names}. "
    "What it does to the logs counts only where it gets the outputs of a "
    "whole batch: on one replica, not with updates='sample', and in "
    "microbatches if each sample has a row of outputs whose size the data "
    "declare. To log such an entry here, make it a keras.metrics.Metric that "
    "compute_metrics() updates."
)
