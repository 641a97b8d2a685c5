"""Groups of runs: repeats, seeds, and those that a tag makes.

Two runs are *repeats* if they share the seed, the kind of device and machine,
the versions, the gradient mode, the optimizer and `_REPEAT_SETTINGS`: only
nondeterminism makes them differ. Runs of different seeds, or of unknown ones,
are *independent*.
"""

import json

import numpy as np

from keras_pergrad.common.arguments import require_one_of

# What `by` may name in addition to the runs' own tags.
FIELDS = ("device", "seed", "machine", "mode")
NO_VALUE = "(none)"
# Fields that distinguish runs where seeds and tags do not.
_LABEL_FIELDS = (
    "device",
    "mode",
    "machine",
    "precision",
    "jit_compile",
    "batch_size",
)
# Other fields that repeats must share; None is unknown.
_REPEAT_SETTINGS = (
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
        has_seed: whether the run's seed is known, (R,).
        groups: each run's group, or None.
        repeats: whether two runs repeat each other, (R, R).
        independent: whether their seeds differ or are unknown, (R, R).
        units: for each run a number, equal for runs that count as one draw:
            all runs of a seed, or each run by itself if there is only one
            seed.
    """

    def __init__(self, infos, by=None):
        seeds = [info.get("seed") for info in infos]
        self.has_seed = np.array([seed is not None for seed in seeds])
        self.seeds = equality_codes(
            f"unknown {i}" if seed is None else str(seed)
            for i, seed in enumerate(seeds)
        )
        self._run_settings = [_repeat_settings(info) for info in infos]
        setting_codes = equality_codes(map(_to_json, self._run_settings))
        self.groups = None if by is None else group_labels(infos, by)
        off_diagonal = ~np.eye(len(infos), dtype=bool)
        same_seed = equality_matrix(self.seeds) & off_diagonal
        self.independent = off_diagonal & ~same_seed
        self.repeats = same_seed & equality_matrix(setting_codes)
        if self.groups is not None:
            self.repeats &= equality_matrix(equality_codes(self.groups))
        is_single_seed = not self.independent.any()
        self.units = np.arange(len(infos)) if is_single_seed else self.seeds

    def always_differ(self, first, second):
        """Name known settings that differ between any runs of two groups."""

        def differs(name):
            first_values = {self._run_settings[r][name] for r in first}
            second_values = {self._run_settings[r][name] for r in second}
            return (
                None not in first_values | second_values
                and not first_values & second_values
            )

        return [name for name in self._run_settings[0] if differs(name)]


def group_labels(infos, by):
    """Return each run's group by a tag or field."""
    tags = _tag_names(infos)
    advice = "" if tags else " The runs have no tags, which would do, too."
    require_one_of("by", by, (*tags, *FIELDS), advice=advice)
    return [_format_value(by, facts.get(by)) for facts in _facts(infos, tags)]


def short_names(infos):
    """Name each run by what distinguishes it: seed, tags, other fields."""
    names: list[tuple[str, ...]] = [()] * len(infos)
    tags = _tag_names(infos)
    # A field is added where it distinguishes more runs.
    for field in ("seed", *tags, *_LABEL_FIELDS):
        parts = [_short_label(facts, field) for facts in _facts(infos, tags)]
        longer: list[tuple[str, ...]] = [
            (*name, part) for name, part in zip(names, parts)
        ]
        # What the user has set is named wherever it differs.
        previous_count = 1 if field in ("seed", *tags) else len(set(names))
        if len(set(longer if previous_count > 1 else parts)) > previous_count:
            names = longer
    if not any(names):
        names = [(_short_label(info, "seed"),) for info in infos]
    texts = [" · ".join(name) for name in names]
    repetitions = [texts[:r].count(text) for r, text in enumerate(texts)]
    return [f"{t} ({n + 1})" if n else t for t, n in zip(texts, repetitions)]


def _short_label(facts, field):
    value = facts.get(field)
    return f"no {field}" if value is None else _format_value(field, value)


def _facts(infos, tags):
    """Yield each run's fields and tags by name; a tag hides a field."""
    for info in infos:
        own_tags = info.get("tags") or {}
        by_tag = {tag: own_tags.get(tag) for tag in tags}
        yield {**info, "mode": mode_name(info), **by_tag}


def _tag_names(infos):
    return sorted({tag for info in infos for tag in info.get("tags") or ()})


def _format_value(by, value):
    if value is None:
        return NO_VALUE
    # "0 and 1 differ" would say little.
    is_number = isinstance(value, (int, float))
    return f"{by} {value}" if is_number else str(value)


def mode_name(info):
    """Return the gradient mode's name; plain Keras has none."""
    mode = info.get("gradient_mode")
    if not isinstance(mode, dict):
        return mode
    return mode.get("class") or _to_json(mode)


def _repeat_settings(info):
    """Return what two runs must share to repeat each other, by name."""
    versions = info.get("versions") or {}
    required = {
        "device": info.get("device"),
        "machine": info.get("machine"),
        "mode": info.get("gradient_mode"),
        "optimizer": _without_names(info.get("optimizer")),
        "TensorFlow": versions.get("tensorflow"),
        "Keras": versions.get("keras"),
    }
    settings = {name: info.get(name) for name in _REPEAT_SETTINGS}
    texts = {
        name: v if v is None else _to_json(v) for name, v in settings.items()
    }
    return {name: _to_json(value) for name, value in required.items()} | texts


def _without_names(config):
    """Return a config without names: Keras calls a second Adam adam_1."""
    if isinstance(config, dict):
        return {k: _without_names(v) for k, v in config.items() if k != "name"}
    return config


def _to_json(value):
    return json.dumps(value, sort_keys=True, default=str)


def equality_codes(values):
    """Return equal numbers for equal values, in order of appearance."""
    codes = {}
    return np.array([codes.setdefault(value, len(codes)) for value in values])


def equality_matrix(values):
    """Return whether each two are equal, (R, R)."""
    return values[:, None] == values[None, :]
