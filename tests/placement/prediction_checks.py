"""Checks of the prediction that need the stand-in; see test_prediction.py."""

import collections

import keras

from keras_pergrad.callbacks import DevicePlacement
from keras_pergrad.placement.prediction import predict_placement
from tests.metal_stub import models

# The input pipeline and Keras's logs are outside of the predicted step.
_OUTSIDE = {"IteratorGetNext", "OptionalFromValue"}


def by_kind(report):
    """kind → op type → how many ops."""
    counts = collections.defaultdict(collections.Counter)
    for operation in report.operations:
        if operation.op not in _OUTSIDE:
            counts[operation.kind][operation.op] += 1
    return {kind: dict(found) for kind, found in counts.items()}


def agreement(plugin, *names):
    """model → [predicted, reported], each by kind and op."""
    found = {}
    for name in names:
        model, x, y = models.make(name)
        predicted = predict_placement(model, x, y)
        placement = DevicePlacement(warn=False)
        model.fit(x, y, batch_size=len(x), verbose=0, callbacks=[placement])
        reported = placement.report
        found[name] = [by_kind(predicted), by_kind(reported)]
        keras.backend.clear_session()
    return found
