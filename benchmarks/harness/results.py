"""The results file: what was measured, by section and model."""

import json
import statistics

from benchmarks.harness.process import RESULTS

PATH = RESULTS / "results.json"


def load(path=PATH):
    """The stored results, empty where there are none."""
    if not path.exists():
        return {}
    return json.loads(path.read_text())


def store(section, model, found, *, machine, path=PATH):
    """Replaces one model's part of one section.

    What is measured alone is no part of a run: it is replaced one by one.
    """
    stored = load(path)
    versions = stored.get("machine", {}).get("versions", {})
    versions.update(machine["versions"])
    stored["machine"] = {**machine, "versions": versions}
    part = stored.setdefault(section, {})
    if section == "alone":
        part.setdefault(model, {}).update(found)
    else:
        part[model] = found
    write(stored, path)


def write(stored, path):
    """Writes all results."""
    path.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


def summarise(entries, unit):
    """Medians, quartiles, ratios to the unit, and agreement with ours.

    Ratios are taken round by round, since both sides of one round saw the
    same state of the machine.

    Args:
        entries: measured entries of one run.
        unit: the key of the entry that ratios refer to, if it is there.
    """
    by_key = {e.key: e for e in entries}
    base = by_key[unit].times if unit in by_key else []
    reference = next((e for e in entries if e.key.startswith("ours@")), None)
    found = {}
    for entry in entries:
        if entry.error is not None:
            found[entry.key] = {"error": entry.error}
            continue
        times = [t for t in entry.times if t is not None]
        found[entry.key] = {"ms": _spread(times, 4)}
        pairs = [(t, b) for t, b in zip(entry.times, base) if t and b]
        if pairs:
            ratios = [t / b for t, b in pairs]
            found[entry.key]["ratio"] = _spread(ratios, 3)
        if reference and reference.norms and entry.norms:
            found[entry.key]["difference"] = _difference(entry, reference)
    return found


def _spread(values, digits):
    """Median and quartiles."""
    if len(values) < 2:
        values = list(values) * 2
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return [round(v, digits) for v in (middle, low, high)]


def _difference(entry, reference):
    """The largest relative difference of the norms; None: not comparable."""
    ours, theirs = reference.norms, entry.norms
    if len(ours) != len(theirs):
        return None
    scale = max(ours)
    return max(abs(a - b) for a, b in zip(ours, theirs)) / scale
