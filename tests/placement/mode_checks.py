"""PerGradModel on the stand-in; see test_on_stand_in.py."""

import keras_pergrad as kpg
from tests.metal_stub import models
from tests.placement.report_checks import replayed, watch


def modes(plugin):
    """gradient mode → report and truth."""
    found = {}
    clipped = kpg.Vectorized(aggregation=kpg.ClippedMean(1.0))
    chosen = {
        "batch": "batch",
        "vectorized": "vectorized",
        "clipped": clipped,
        "per_sample": "per_sample",
        "accumulated": kpg.Accumulated(microbatch_size=3),
        "accumulated, clipped": kpg.Accumulated(
            microbatch_size=4, inner=clipped
        ),
        "accumulated over steps": kpg.Accumulated(2, microbatch_size=4),
    }
    for name, mode in chosen.items():
        made = models.make("dense", wrap=kpg.PerGradModel, gradient_mode=mode)
        found[name] = watch(plugin, *made)
        found[name]["replayed"] = replayed(plugin, *made)
    return found
