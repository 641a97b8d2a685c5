"""The ways to compute a gradient: which modes, where and how."""

import math

from keras_pergrad.aggregation import weighs
from keras_pergrad.analysis.checking import execution
from keras_pergrad.common.devices import accelerators
from keras_pergrad.common.devices import chosen as device_names
from keras_pergrad.common.registry import serialize
from keras_pergrad.modes import Accumulated
from keras_pergrad.modes.base import gradient_modes as registry


def modes(wanted, model, samples):
    """Return label → mode, for what the user asked for."""
    if wanted is None:
        thirds = Accumulated(microbatch_size=math.ceil(samples / 3))
        wanted = ["batch", "vectorized", "per_sample", thirds]
        own = getattr(model, "_gradient_mode", None)
        wanted += [own] if own is not None else []
    if isinstance(wanted, str) or not hasattr(wanted, "__iter__"):
        wanted = [wanted]
    chosen = {}
    for mode in map(registry.get, wanted):
        if not any(_same(mode, other) for other in chosen.values()):
            label = _label(mode)
            again = sum(name.partition(" #")[0] == label for name in chosen)
            chosen[f"{label} #{again + 1}" if again else label] = mode
    return chosen


def _same(mode, other):
    return type(mode) is type(other) and serialize(mode) == serialize(other)


def _label(mode):
    names = [name for name, cls in registry.items() if cls is type(mode)]
    label = names[0] if names else type(mode).__name__
    if isinstance(mode, Accumulated):
        label += f" by {mode.microbatch_size}"
        if type(mode.inner).__name__ != "Batch":
            return f"{label}, {_label(mode.inner)}"
    weighing = aggregation(mode)
    if weighing is not None:
        label += f", {type(weighing).__name__}"
    return label


def places(devices):
    """Return the names of the devices to compute on."""
    cpu = ["CPU:0"] if devices is None else []
    return cpu + device_names(devices)


def exists(device, setting, model):
    """Whether this can run: XLA needs the variables' device, and no Metal."""
    if setting != "xla":
        return True
    metal = {d.name for d in accelerators() if d.is_metal}
    return device == execution.home(model) and device not in metal


def aggregation(mode):
    """Return what weighs the samples, None for the mean."""
    return mode.aggregation if weighs(mode.aggregation) else None
