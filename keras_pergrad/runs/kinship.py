"""Which runs repeat each other, which differ by seed, which by a tag.

Two runs are *repeats* with the same seed on the same kind of device and
machine, with the same versions and everything in `_SETTINGS`: only
nondeterminism can tell them apart. Runs of different seeds, or of unknown
ones, are *independent*.
"""

import json

import numpy as np

# What `by` may name besides the runs' own tags.
FIELDS = ("device", "seed", "machine", "mode")
WITHOUT = "(none)"
# What is compared besides; None, as in older records, is unknown.
_SETTINGS = {
    "loss": "loss",
    "precision": "precision",
    "jit_compile": "jit_compile",
    "run_eagerly": "run_eagerly",
    "op determinism": "op_determinism",
    "batch size": "batch_size",
    "steps per epoch": "steps_per_epoch",
}


class Kinship:
    """How each two runs are related.

    Args:
        infos: the runs' `run.json`, as dicts.
        by: a tag, or one of `FIELDS`; None for no groups.

    Attributes:
        seeds: for each run a number, equal for equal seeds; a run of
            unknown seed has its own.
        known: whether the run's seed is known, (R,).
        groups: each run's group, or None.
        repeats: whether two runs repeat each other, (R, R).
        independent: whether their seeds differ or are unknown, (R, R).

    Raises:
        ValueError: no run has the tag `by`.
    """

    def __init__(self, infos, by=None):
        seeds = [info.get("seed") for info in infos]
        self.known = np.array([seed is not None for seed in seeds])
        self.seeds = _numbers(
            [
                f"unknown {i}" if seed is None else str(seed)
                for i, seed in enumerate(seeds)
            ]
        )
        self._settings = [_setting(info) for info in infos]
        settings = _numbers([_text(setting) for setting in self._settings])
        self.groups = None if by is None else labels(infos, by)
        different = ~np.eye(len(infos), dtype=bool)
        same_seed = _equal(self.seeds) & different
        self.independent = different & ~same_seed
        self.repeats = same_seed & _equal(settings)
        if self.groups is not None:
            self.repeats &= _equal(_numbers(self.groups))

    def always_differ(self, first, second):
        """In which settings each run of one group differs from each other's.

        Args:
            first, second: indices of the runs of two groups.

        Returns:
            The names of the settings, of those that are known of all.
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
    """Each run's group by a tag or field.

    Raises:
        ValueError: no run has it.
    """
    tags = sorted(
        {str(tag) for info in infos for tag in info.get("tags") or ()}
    )
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
    """The gradient mode's name; plain Keras has none."""
    mode = info.get("gradient_mode")
    if not isinstance(mode, dict):
        return mode
    return mode.get("class") or _text(mode)


def _setting(info):
    """What two runs must share to repeat each other, by name."""
    versions = info.get("versions") or {}
    settings: dict[str, object] = {
        "device": info.get("device"),
        "machine": info.get("machine"),
        "mode": info.get("gradient_mode"),
        "optimizer": _without_names(info.get("optimizer")),
        "TensorFlow": versions.get("tensorflow"),
        "Keras": versions.get("keras"),
    }
    found: dict[str, str | None] = {
        name: _text(value) for name, value in settings.items()
    }
    for name, field in _SETTINGS.items():
        value = info.get(field)
        found[name] = None if value is None else _text(value)
    return found


def _without_names(config):
    """Keras calls the second Adam of a process adam_1."""
    if isinstance(config, dict):
        return {k: _without_names(v) for k, v in config.items() if k != "name"}
    return config


def _text(value):
    return json.dumps(value, sort_keys=True, default=str)


def _numbers(values):
    """Equal numbers for equal values, in order of appearance."""
    seen = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values])


def _equal(numbers):
    return numbers[:, None] == numbers[None, :]
