"""Checks of compare_devices that need the stand-in."""

from keras_pergrad.placement.comparison import compare_devices
from tests.metal_stub import models


def compare(plugin, *names):
    """model → what compare_devices says."""
    found = {}
    for name in names:
        model, x, y = models.make(name)
        before = [v.numpy().copy() for v in model.variables]
        result = compare_devices(model, x, y)
        after = [v.numpy() for v in model.variables]
        [device] = result.devices
        suspect = device.suspect
        found[name] = {
            "ok": result.ok,
            "agreement": device.agreement,
            "wrong": device.wrong,
            "op": suspect and suspect.op,
            "layer": suspect and suspect.layer,
            "alone": suspect and suspect.alone,
            "text": str(result),
            "unchanged": all((a == b).all() for a, b in zip(before, after)),
        }
    return found
