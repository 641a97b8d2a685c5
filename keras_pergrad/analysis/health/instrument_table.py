"""All instruments of gradient health, by name."""

import dataclasses
from collections.abc import Callable

from keras_pergrad.analysis.health import (
    dead_units,
    gradient_tests,
    layer_gradients,
    local_quadratic,
    signal_by_weight,
    step_sizes,
)
from keras_pergrad.analysis.health.batch_size_rule import cabs
from keras_pergrad.analysis.health.observation import Answer


@dataclasses.dataclass(frozen=True)
class Instrument:
    """One instrument.

    Attributes:
        read: returns its `Answer` to an `Observation`.
        needs: what it needs besides ḡ: "samples": their norms; "dots": with
            ḡ; "weights": squares by weight; "units": those of layers' units;
            "along": losses and slopes along the last update; "begin",
            "before": weights when training began, before the last update;
            "now": the present ones.
    """

    read: Callable
    needs: frozenset

    def can_read(self, seen):
        """Whether an `Observation` has what it needs."""
        lacking = set()
        if seen.traces is None:
            lacking |= {"samples", "dots", "weights", "units"}
        if seen.ends is None:
            lacking.add("along")
        if seen.update is None:
            lacking.add("before")
        return not self.needs & lacking


def _instrument(read, *needs):
    return Instrument(read, frozenset(needs))


INSTRUMENTS = {
    "norm_test": _instrument(gradient_tests.norm_test, "samples"),
    "inner_product_test": _instrument(
        gradient_tests.inner_product_test, "dots"
    ),
    "orthogonality_test": _instrument(
        gradient_tests.orthogonality_test, "samples", "dots"
    ),
    "cabs": _instrument(cabs, "samples"),
    # It is measured without being asked for.
    "noise_scale": _instrument(lambda seen: Answer({}), "samples"),
    "snr_by_weight": _instrument(signal_by_weight.signal_to_noise, "weights"),
    "early_stopping": _instrument(
        signal_by_weight.stopping_evidence, "weights"
    ),
    "update_ratio": _instrument(step_sizes.update_ratio, "before"),
    "distance": _instrument(step_sizes.distance, "begin"),
    "alpha": _instrument(local_quadratic.alpha, "samples", "along", "before"),
    "dead_units": _instrument(dead_units.dead_units, "units"),
    "layers": _instrument(layer_gradients.layers, "now"),
}


def chosen(instruments, argument="instruments", known=tuple(INSTRUMENTS)):
    """Return the names that an argument asks for, all `known`, in order."""
    names = () if instruments is None else instruments
    if isinstance(names, str):
        names = known if names == "all" else (names,)
    if not isinstance(names, (tuple, list, set)) or not all(
        isinstance(name, str) and name in known for name in names
    ):
        raise ValueError(
            f"`{argument}` expected None, 'all' or a tuple of names of "
            f"instruments: {', '.join(map(repr, known)) or 'none is chosen'}. "
            f"Received: {argument}={instruments!r}"
        )
    return tuple(name for name in known if name in names)


def figures_of(names):
    """Return the names in the logs of instruments of these names."""
    several = {
        "layers": ("gradient_vanishing_layers", "gradient_exploding_layers")
    }
    return {
        figure
        for name in names
        for figure in several.get(name, (f"gradient_{name}",))
    }


def needs_of(names):
    """Return all that instruments of these names need."""
    return frozenset().union(*(INSTRUMENTS[name].needs for name in names))
