"""Models that people train: the clipped `fit` step beside the plain one.

Both take turns in one process. For the first step and the peak memory, each
has processes of its own. The models are those of `tests/real_models.py`.
"""

import dataclasses

from benchmarks.harness import alone, interleaved, results
from benchmarks.harness.rivals import REAL_MODELS

RIVALS = ("plain", "ours")
#: The clipped step's first call, times the plain step's.
FIRST_STEP = 1.6
#: The first step of the largest models takes minutes on a busy machine.
SECONDS = 600
#: Processes of each, for the first step and the peak memory. One alone gave
#: ratios of 2.1 and 2.9 for the same model.
TURNS = 3


@dataclasses.dataclass(frozen=True)
class Limits:
    """What is aimed at; None: no aim.

    Attributes:
        time: clipped step, times the plain step.
        memory: peak memory of the process, times that of the plain step's.
        batch: samples of a step.
        first: the first step, times the plain step's.
    """

    time: float | None = None
    memory: float | None = None
    batch: int = 16
    first: float = FIRST_STEP


def _all(names, limits):
    return dict.fromkeys(names.split(), limits)


LIMITS = {
    **_all("gemma llama mistral qwen3 opt bloom phi3", Limits(1.15, 1.25)),
    **_all(
        "bert gpt2 roberta distilbert electra albert fnet", Limits(1.2, 1.35)
    ),
    **_all("t5 whisper deberta xlnet gpt2_causal", Limits(1.3, 1.5)),
    **_all("vit deit dinov2", Limits(1.15, 1.5)),
    **_all("swin", Limits()),
    **_all(
        "resnet50_frozen mobilenetv3_frozen densenet121_frozen "
        "resnet50_frozen_norms mobilenetv3_frozen_norms "
        "densenet121_frozen_norms",
        Limits(1.3, 2.0),
    ),
    **_all("convnext", Limits(1.3, 2.0, first=2.0)),
    **_all("gemma_lora bert_lora", Limits(1.05, 1.2)),
    **_all("gpt2_124m", Limits(1.2, batch=4)),
    **_all("gpt2_124m_causal", Limits(1.3, batch=4)),
}


def measure(model, rounds, size="bench", *, log=print):
    """Measures one model.

    Args:
        model: a name in `LIMITS`.
        rounds: turns of each step.
        size: "bench", or "tiny" to try the measurement itself.
        log: takes a line of progress.

    Returns:
        {"plain@16": {...}, "ours@16": {...}}: "ms" and "ratio" with quartiles,
        "first_ms", "process_mb" (peak of the process) and "peak_mb" (its rise
        over the process before the first step), and "first_known_ms", the
        first step where the trace knows the batch size; or "error".
    """
    batch = LIMITS[model].batch
    entries = [
        interleaved.Entry(r, model, REAL_MODELS, batch=batch) for r in RIVALS
    ]
    for entry in entries:
        entry.request["size"] = size
    interleaved.run(entries, rounds, log, limit=SECONDS, slow_ms=None)
    found = results.summarise(entries, f"plain@{batch}")
    apart = alone.run(entries, log, limit=SECONDS, turns=TURNS)
    for key, more in apart.items():
        found[key] = {**found[key], **more}
    for entry in entries:
        entry.request["known"] = True
    for key, more in alone.run(entries, log, limit=SECONDS).items():
        if "first_ms" in more:
            found[key]["first_known_ms"] = more["first_ms"]
    return found


def table(section):
    """A Markdown table: figures, and what they were aimed at."""
    lines = [
        "| | plain, ms | clipped, ms | clipped / plain (at most) | peak, "
        "MB, plain | clipped / plain (at most) | rise of the peak, MB, plain "
        f"| clipped | first step / plain (at most {FIRST_STEP:g}) "
        "| with a known batch size | |",
        "|---|" + 9 * "---:|" + "---|",
    ]
    for model in LIMITS:
        if model in section:
            lines.append(_row(model, section[model]))
    return "\n".join(lines)


def _row(model, found):
    plain, ours = (_by_rival(found).get(rival, {}) for rival in RIVALS)
    limits = LIMITS[model]
    time = _over(ours, plain, "ms")
    if "ratio" in ours:
        time = ours["ratio"][0]
    judged = (
        ("time", time, limits.time),
        ("memory", _over(ours, plain, "process_mb"), limits.memory),
        ("first step", _first(ours, plain, "first_ms"), limits.first),
    )
    time, memory, first = (_judged(value, limit) for _, value, limit in judged)
    cells = [
        model,
        _figure(plain, "ms"),
        _figure(ours, "ms"),
        f"{time}{_aim(limits.time)}",
        _figure(plain, "process_mb"),
        f"{memory}{_aim(limits.memory)}",
        _figure(plain, "peak_mb"),
        _figure(ours, "peak_mb"),
        first,
        _judged(_first(ours, plain, "first_known_ms"), limits.first),
        _verdict(plain, ours, judged),
    ]
    return "| " + " | ".join(cells) + " |"


def _verdict(plain, ours, judged):
    if "error" in plain:
        return f"the plain step: {_in_a_cell(plain['error'])}"
    if "error" in ours:
        return f"**not reached**: {_in_a_cell(ours['error'])}"
    missed = [
        name
        for name, value, limit in judged
        if limit is not None and (value is None or value > limit)
    ]
    if missed:
        return f"**not reached**: {', '.join(missed)}"
    return "reached"


def _in_a_cell(text):
    return text.replace("|", "/")


def _by_rival(found):
    return {key.partition("@")[0]: value for key, value in found.items()}


def _value(entry, field):
    """A figure; the median where there are quartiles, too."""
    value = entry.get(field)
    return value[0] if isinstance(value, list) else value


def _over(ours, plain, field):
    mine, unit = _value(ours, field), _value(plain, field)
    return None if mine is None or unit is None else mine / unit


def _first(ours, plain, field):
    """A ratio of first steps, unless a newer one is stored by itself."""
    newer = ours.get("first_ratios", {})
    return newer[field] if field in newer else _over(ours, plain, field)


def _figure(entry, field):
    value = _value(entry, field)
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _judged(value, limit):
    """A ratio, bold above its limit."""
    if value is None:
        return "–"
    text = f"{value:.2f}"
    return f"**{text}**" if limit is not None and value > limit else text


def _aim(limit):
    return "" if limit is None else f" ({limit:g})"
