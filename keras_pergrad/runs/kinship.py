"""Which runs repeat each other, which differ by seed, which by a tag.

Two runs are *repeats* with the same seed on the same kind of device and
machine, with the same versions, optimizer and gradient mode: only
nondeterminism can tell them apart. Runs of different seeds, or of unknown
ones, are *independent*.
"""

import json

import numpy as np

# What `by` may name besides the runs' own tags.
FIELDS = ("device", "seed", "machine", "mode")
WITHOUT = "(none)"


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
        settings = _numbers([_setting(info) for info in infos])
        self.groups = None if by is None else labels(infos, by)
        different = ~np.eye(len(infos), dtype=bool)
        same_seed = _equal(self.seeds) & different
        self.independent = different & ~same_seed
        self.repeats = same_seed & _equal(settings)
        if self.groups is not None:
            self.repeats &= _equal(_numbers(self.groups))


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
    return [WITHOUT if label is None else str(label) for label in found]


def mode_of(info):
    """The gradient mode's name; plain Keras has none."""
    mode = info.get("gradient_mode")
    if not isinstance(mode, dict):
        return mode
    return mode.get("class") or _text(mode)


def _setting(info):
    versions = info.get("versions") or {}
    return _text(
        [
            info.get("device"),
            info.get("machine"),
            info.get("gradient_mode"),
            _without_names(info.get("optimizer")),
            versions.get("tensorflow"),
            versions.get("keras"),
        ]
    )


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
