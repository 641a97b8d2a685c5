"""What keras_pergrad has set itself, and whether it is reached."""

from benchmarks.harness.models import STANDARD
from benchmarks.harness.rivals import (
    BOTH,
    CLIPPED,
    MATERIALISED,
    OURS,
    REFERENCES,
)
from benchmarks.steps import growth

#: Clipped step, times the plain Keras step, at batch 64.
CLIPPED_RATIOS = {
    "logreg": 1.1,
    "ffnn": 1.1,
    "mnist": 1.25,
    "cifar10": 1.2,
    "embed": 1.4,
    "lstm": 1.2,
    "transformer": 1.12,
}
#: The same, both under XLA.
XLA_RATIOS = {**dict.fromkeys(CLIPPED_RATIOS, 1.25), "embed": 1.5}
#: Statistics without clipping, times the clipped step.
STATISTICS = 1.1
GROWTH = 4.3
FIRST_STEP = 3.0
#: The same, both under XLA.
XLA_FIRST_STEP = 1.8
LARGE_MB = 2000.0
LARGE_EMBEDDING = 1.8


def table(stored):
    """A Markdown table: target, figure, reached or not."""
    lines = ["| target | at most | measured | |", "|---|---:|---:|---|"]
    for name, limit, value in [*_times(stored), *_others(stored)]:
        if value is None:
            continue
        mark = "reached" if value <= limit else "**not reached**"
        lines.append(f"| {name} | {limit:.3g} | {value:.3g} | {mark} |")
    return "\n".join(lines)


def _times(stored):
    clipped = stored.get(CLIPPED, {})
    for model, limit in CLIPPED_RATIOS.items():
        found = _by_rival(clipped.get(model, {}))
        yield f"{model}: clipped / plain", limit, _ratio(found, "ours", "plain")
        compiled = _by_rival(stored.get("xla", {}).get(model, {}))
        yield (
            f"{model}: clipped / plain, XLA",
            XLA_RATIOS[model],
            _ratio(compiled, "ours_xla", "plain_xla"),
        )
        yield (
            f"{model}: statistics / clipped",
            STATISTICS,
            _ratio(found, "ours_statistics", "ours"),
        )
    for task in BOTH:
        mine = "ours" if task == MATERIALISED else "ours_bare"
        for model in STANDARD:
            found = _by_rival(stored.get(task, {}).get(model, {}))
            peer = _fastest_peer(found)
            if peer:
                value = _ratio(found, mine, peer)
                yield f"{model}: {task} / fastest peer ({peer})", 1.0, value


def _others(stored):
    for model, found in stored.get("growth", {}).items():
        ours = growth.times(found)["ours"]
        for_four = ours[256] / ours[64]
        yield f"{model}: growth, batch × 4", GROWTH, for_four
    for model, found in stored.get("alone", {}).items():
        found = _by_rival(found)
        first = {k: v["first_ms"] for k, v in found.items() if "first_ms" in v}
        for suffix, label, limit in (
            ("", "", FIRST_STEP),
            ("_xla", ", XLA", XLA_FIRST_STEP),
        ):
            pair = [first.get(r + suffix) for r in ("ours", "plain")]
            if all(pair):
                name = f"{model}: first step / plain{label}"
                yield name, limit, pair[0] / pair[1]
    found = _by_rival(stored.get("large", {}).get("dense4096", {}))
    if all("peak_mb" in found.get(r, {}) for r in ("ours", "plain")):
        over = found["ours"]["peak_mb"] - found["plain"]["peak_mb"]
        yield "Dense 4096→4096, batch 256: MB over plain", LARGE_MB, over
    found = _by_rival(stored.get("large", {}).get("embed_million", {}))
    value = _ratio(found, "ours", "plain")
    yield "embedding of 1,000,000 rows: clipped / plain", LARGE_EMBEDDING, value


def _by_rival(found):
    return {key.partition("@")[0]: value for key, value in found.items()}


def _ratio(found, rival, other):
    """How much longer one takes than the other, if both are there."""
    pair = [found.get(name, {}) for name in (rival, other)]
    if not all("ms" in entry for entry in pair):
        return None
    if pair[1].get("ratio") == [1, 1, 1] and "ratio" in pair[0]:
        # The other is the unit: round by round, as in the tables.
        return pair[0]["ratio"][0]
    return pair[0]["ms"][0] / pair[1]["ms"][0]


def _fastest_peer(found):
    times = {
        rival: entry["ms"][0]
        for rival, entry in found.items()
        if "ms" in entry and rival not in (*OURS, *REFERENCES)
    }
    return min(times, key=times.get) if times else None
