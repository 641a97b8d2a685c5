"""Checks of the prediction that need the stand-in; see test_prediction.py."""

import collections

from keras_pergrad.callbacks import DevicePlacement
from keras_pergrad.placement.prediction import predict_placement
from tests.metal_stub import models

# The input pipeline and Keras's logs are outside of the predicted step.
_OUTSIDE = {"IteratorGetNext", "OptionalFromValue"}


def by_kind(report):
    """kind → op and its types → how many ops."""
    counts = collections.defaultdict(collections.Counter)
    for operation in report.operations:
        if operation.op not in _OUTSIDE:
            key = " ".join([operation.op, *sorted(operation.dtypes)])
            counts[operation.kind][key] += 1
    return {kind: dict(found) for kind, found in counts.items()}


def agreement(plugin, name):
    """What is predicted and reported, by kind and op, and the kernels."""
    model, x, y = models.make(name)
    predicted = predict_placement(model, x, y)
    placement = DevicePlacement(warn=False)
    model.fit(x, y, batch_size=len(x), verbose=0, callbacks=[placement])
    reported = placement.report
    kernels = plugin.counters()["registered"]
    return [by_kind(predicted), by_kind(reported), kernels]
