"""The one message about a stall."""

from keras_pergrad.pipelines.advice import advise as advice_for
from keras_pergrad.pipelines.facts import gather


def diagnose(report, warn_above, data=None, iterator=None, advise=True):
    """Words for a `StallReport` above the threshold, or None below it."""
    lost = report.data_stall_fraction
    wait, step = report.wait_ms, report.step_ms
    if lost is None or wait is None or lost <= warn_above:
        return None
    lines = [
        f"DataStall: {lost:.0%} of the time went by waiting for data: "
        f"{wait:.3g} ms a batch"
        + (f"; a step takes {step:.3g} ms." if step else ".")
    ]
    if not advise or not step:
        return lines[0]
    burst = max(wait - (report.wait_p50_ms or wait), 0.0)
    facts = gather(data, iterator, wait, step, burst)
    lines += _slowest(facts)
    given = advice_for(facts)
    for number, advice in enumerate(given, 1):
        lines.append(f"  {number}. {advice.cause}")
        lines.append(f"     Write:  {advice.code}")
        if advice.gain_ms:
            ended = wait + step
            lines.append(
                f"     Gain:   about {advice.gain_ms:.3g} of {ended:.3g} ms a "
                f"batch at best ({advice.gain_ms / ended:.0%})."
            )
    hidden = facts.pipeline_ms
    if not given or hidden > 1.1 * step:
        lines.append(
            f"  To hide the loading altogether the pipeline must give "
            f"{1e3 / step:.4g} batches/s; it gives {1e3 / hidden:.4g}."
        )
    return "\n".join(lines)


def _slowest(facts):
    if not facts.running:
        return []
    total = sum(seconds for _, seconds in facts.running)
    if not total:
        return []
    name, seconds = max(facts.running, key=lambda pair: pair[1])
    return [f"  Slowest stage: {name}, {seconds / total:.0%} of the work."]
