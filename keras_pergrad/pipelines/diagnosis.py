"""The one message about a stall."""

import textwrap

from keras_pergrad.pipelines.account import TOO_MANY
from keras_pergrad.pipelines.advice import advise as advice_for
from keras_pergrad.pipelines.facts import gather
from keras_pergrad.pipelines.tf_model import slowest_stage

WIDTH = 79


def diagnose(
    report, warn_above, data=None, iterator=None, advise=True, passes=None
):
    """Words for a `StallReport` above the threshold, or None below it.

    Args:
        report: the report.
        warn_above: the threshold.
        data: what the user passed to `fit` or `evaluate`, if known.
        iterator: the iterator over it, if it is still there.
        advise: whether to say why, and what to change.
        passes: how many epochs there are, from this one on; None: unknown.
    """
    if report.not_recorded:
        return (
            f"DataStall: no figures, since {report.not_recorded} fetches of "
            f"batches were not recorded: {TOO_MANY}"
        )
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
    facts = gather(
        data,
        iterator,
        wait,
        step,
        burst_ms=burst,
        first_batch_ms=1e3 * (report.first_batch_s or 0.0),
        passes=passes,
        steps=report.steps,
    )
    lines += _slowest(facts)
    given = advice_for(facts)
    for number, advice in enumerate(given, 1):
        lines += textwrap.wrap(
            advice.cause,
            width=WIDTH,
            initial_indent=f"  {number}. ",
            subsequent_indent=" " * 5,
        )
        first, *more = advice.code.split("\n")
        lines.append(f"     Write:  {first}")
        lines += [" " * 13 + line for line in more]
        if advice.gain_ms:
            ended = wait + step
            lines.append(
                f"     Gain:   about {advice.gain_ms:.3g} of {ended:.3g} ms a "
                f"batch at best ({advice.gain_ms / ended:.0%})."
            )
    made = facts.pipeline_ms
    if made > (1.1 * step if given else step):
        lines.append(
            f"  To hide the loading altogether the pipeline must give "
            f"{1e3 / step:.3g}\n  batches/s; it gives {1e3 / made:.3g}."
        )
    return "\n".join(lines)


def _slowest(facts):
    found = slowest_stage(facts.running)
    if found is None:
        return []
    name = _as_written(found[0], facts)
    return [f"  Slowest stage: {name}, {found[1]:.0%} of the work."]


def _as_written(name, facts):
    """The user's word for a stage that TensorFlow or Keras has made of it."""
    kind = name.split("[")[0].removesuffix("V2").removeprefix("Parallel")
    if kind in ("FlatMap", "Generator"):
        if facts.kind in ("pydataset", "generator", "dataloader"):
            return f"the {type(facts.data).__name__}"
        labels = {s.label for s in facts.stages if s.is_generator}
    else:
        kind = kind.removesuffix("AndBatch")
        labels = {
            s.label
            for s in facts.stages
            if s.kind.removeprefix("Parallel") == kind
        }
    return labels.pop() if len(labels) == 1 else name
