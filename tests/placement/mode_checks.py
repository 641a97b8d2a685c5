"""PerGradModel on the stand-in; see test_on_stand_in.py."""

import keras_pergrad as kpg
from tests.metal_stub import models
from tests.placement.report_checks import watch


def modes(plugin):
    """gradient mode → report and truth."""
    found = {}
    clipped = kpg.Vectorized(aggregation=kpg.ClippedMean(1.0))
    chosen = {
        "batch": "batch",
        "vectorized": "vectorized",
        "clipped": clipped,
        "per_sample": "per_sample",
    }
    for name, mode in chosen.items():
        made = models.make("dense", wrap=kpg.PerGradModel, gradient_mode=mode)
        found[name] = watch(plugin, *made)
    return found
