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
# Fields that tell runs apart where seeds and tags do not.
_TELLING = (
    "device",
    "mode",
    "machine",
    "precision",
    "jit_compile",
    "batch_size",
)
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
    """

    def __init__(self, infos, by=None):
        seeds = [info.get("seed") for info in infos]
        self.known = np.array([seed is not None for seed in seeds])
        self.seeds = numbers(
            f"unknown {i}" if seed is None else str(seed)
            for i, seed in enumerate(seeds)
        )
        self._settings = [_settings(info) for info in infos]
        settings = numbers(map(_text, self._settings))
        self.groups = None if by is None else labels(infos, by)
        different = ~np.eye(len(infos), dtype=bool)
        same_seed = equal(self.seeds) & different
        self.independent = different & ~same_seed
        self.repeats = same_seed & equal(settings)
        if self.groups is not None:
            self.repeats &= equal(numbers(self.groups))
        alone = not self.independent.any()
        self.units = np.arange(len(infos)) if alone else self.seeds

    def always_differ(self, first, second):
        """Name known settings that differ between any runs of two groups."""

        def differs(name):
            one = {self._settings[r][name] for r in first}
            other = {self._settings[r][name] for r in second}
            return None not in one | other and not one & other

        return [name for name in self._settings[0] if differs(name)]


def labels(infos, by):
    """Return each run's group by a tag or field."""
    tags = _tags(infos)
    if by not in (*tags, *FIELDS):
        raise ValueError(
            f"`by` expected a tag of the runs ({', '.join(tags) or 'none'}) "
            f"or one of {', '.join(FIELDS)}. Received: by={by!r}"
        )
    return [_label(by, _value(info, by, by in tags)) for info in infos]


def short_names(infos):
    """Name each run by what tells it apart: seed, tags, and what else must."""
    names: list[tuple[str, ...]] = [()] * len(infos)
    tags = _tags(infos)
    for field in ("seed", *tags, *_TELLING):
        parts = [_short(info, field, field in tags) for info in infos]
        longer: list[tuple[str, ...]] = [
            (*name, part) for name, part in zip(names, parts)
        ]
        # What the user has set is named wherever it differs.
        before = 1 if field in ("seed", *tags) else len(set(names))
        if len(set(longer if before > 1 else parts)) > before:
            names = longer
    if not any(names):
        names = [(_short(info, "seed", False),) for info in infos]
    texts = [" · ".join(name) for name in names]
    again = [texts[:r].count(text) for r, text in enumerate(texts)]
    return [f"{t} ({n + 1})" if n else t for t, n in zip(texts, again)]


def _short(info, field, is_tag):
    value = _value(info, field, is_tag)
    return f"no {field}" if value is None else _label(field, value)


def _value(info, field, is_tag):
    if is_tag:
        return (info.get("tags") or {}).get(field)
    return mode_of(info) if field == "mode" else info.get(field)


def _tags(infos):
    return sorted({tag for info in infos for tag in info.get("tags") or ()})


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
    known = {name: info.get(name) for name in _SETTINGS}
    texts = {name: v if v is None else _text(v) for name, v in known.items()}
    return {name: _text(value) for name, value in always.items()} | texts


def _without_names(config):
    """Return a config without names: Keras calls a second Adam adam_1."""
    if isinstance(config, dict):
        return {k: _without_names(v) for k, v in config.items() if k != "name"}
    return config


def _text(value):
    return json.dumps(value, sort_keys=True, default=str)


def numbers(values):
    """Return equal numbers for equal values, in order of appearance."""
    seen = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values])


def equal(values):
    """Return whether each two are equal, (R, R)."""
    return values[:, None] == values[None, :]
