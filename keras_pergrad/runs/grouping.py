"""Groups of runs: repeats, seeds, and those that a tag makes.

Two runs are *repeats* if they share the seed, the kind of device and machine,
the versions, the gradient mode, the optimizer and `_SETTINGS`: only
nondeterminism can tell them apart. Runs of different seeds, or of unknown ones,
are *independent*.
"""

import json

import numpy as np

# What `by` may name besides the runs' own tags.
FIELDS = ("device", "seed", "machine", "mode")
WITHOUT = "(none)"
# Other fields that repeats must share; None is unknown.
_SETTINGS = (
    "settings",
    "loss",
    "precision",
    "jit_compile",
    "run_eagerly",
    "op_determinism",
    "batch_size",
    "steps_per_epoch",
)


class Grouping:
    """How each two runs are related.

    Args:
        infos: what was run, one dict a run.
        by: a tag, or one of `FIELDS`; None for no groups.

    Attributes:
        seeds: for each run a number, equal for equal seeds; a run of
            unknown seed has its own.
        known: whether the run's seed is known, (R,).
        groups: each run's group, or None.
        repeats: whether two runs repeat each other, (R, R).
        independent: whether their seeds differ or are unknown, (R, R).
        units: for each run a number, equal for runs that count as one draw:
            all runs of a seed, or each run by itself if there is only one
            seed.

    Raises:
        ValueError: no run has the tag `by`.
    """

    def __init__(self, infos, by=None):
        seeds = [info.get("seed") for info in infos]
        self.known = np.array([seed is not None for seed in seeds])
        self.seeds = _numbers(
            f"unknown {i}" if seed is None else str(seed)
            for i, seed in enumerate(seeds)
        )
        self._settings = [_settings(info) for info in infos]
        settings = _numbers(map(_text, self._settings))
        self.groups = None if by is None else labels(infos, by)
        different = ~np.eye(len(infos), dtype=bool)
        same_seed = _equal(self.seeds) & different
        self.independent = different & ~same_seed
        self.repeats = same_seed & _equal(settings)
        if self.groups is not None:
            self.repeats &= _equal(_numbers(self.groups))
        alone = not self.independent.any()
        self.units = np.arange(len(infos)) if alone else self.seeds

    def always_differ(self, first, second):
        """Name the settings that differ between any runs of two groups.

        Args:
            first, second: indices of the runs of two groups.

        Returns:
            The names of these settings, among those known for all runs.
        """
        found = []
        for name in self._settings[0]:
            one, other = (
                {self._settings[r][name] for r in group}
                for group in (first, second)
            )
            if None not in one | other and not one & other:
                found.append(name)
        return found


def labels(infos, by):
    """Return each run's group by a tag or field.

    Raises:
        ValueError: no run has it.
    """
    tags = sorted({tag for info in infos for tag in info.get("tags") or ()})
    if by in tags:
        found = [(info.get("tags") or {}).get(by) for info in infos]
    elif by in FIELDS:
        found = [mode_of(i) if by == "mode" else i.get(by) for i in infos]
    else:
        raise ValueError(
            f"`by` expected a tag of the runs ({', '.join(tags) or 'none'}) "
            f"or one of {', '.join(FIELDS)}. Received: by={by!r}"
        )
    return [_label(by, value) for value in found]


def _label(by, value):
    if value is None:
        return WITHOUT
    # "0 and 1 differ" would say little.
    number = isinstance(value, (int, float))
    return f"{by} {value}" if number else str(value)


def mode_of(info):
    """Return the gradient mode's name; plain Keras has none."""
    mode = info.get("gradient_mode")
    if not isinstance(mode, dict):
        return mode
    return mode.get("class") or _text(mode)


def _settings(info):
    """Return what two runs must share to repeat each other, by name."""
    versions = info.get("versions") or {}
    always = {
        "device": info.get("device"),
        "machine": info.get("machine"),
        "mode": info.get("gradient_mode"),
        "optimizer": _without_names(info.get("optimizer")),
        "TensorFlow": versions.get("tensorflow"),
        "Keras": versions.get("keras"),
    }
    others = {name: info.get(name) for name in _SETTINGS}
    return {name: _text(value) for name, value in always.items()} | {
        name: None if value is None else _text(value)
        for name, value in others.items()
    }


def _without_names(config):
    """Return a config without names: Keras calls a second Adam adam_1."""
    if isinstance(config, dict):
        return {k: _without_names(v) for k, v in config.items() if k != "name"}
    return config


def _text(value):
    return json.dumps(value, sort_keys=True, default=str)


def _numbers(values):
    """Return equal numbers for equal values, in order of appearance."""
    seen = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values])


def _equal(numbers):
    return numbers[:, None] == numbers[None, :]
