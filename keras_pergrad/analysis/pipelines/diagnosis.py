"""The one message about a stall."""

import textwrap

from keras_pergrad.analysis.pipelines import tfdata_advice
from keras_pergrad.analysis.pipelines.pipeline_facts import gather
from keras_pergrad.analysis.pipelines.stage_table import slowest, stage_rows
from keras_pergrad.analysis.pipelines.stall_accounting import TOO_MANY
from keras_pergrad.analysis.pipelines.stall_advice import advise as advice_for

WIDTH = 79
# Handing a batch over takes a tenth of a millisecond (measured): a wait of
# this length leaves nothing to gain, whatever share of a short step it is.
SMALL_WAIT_MS = 0.2
# The first batch is late when it takes this share of an epoch, and long enough
# for a user to notice.
LATE_SHARE, LATE_S = 0.2, 0.1


def diagnose(
    report, warn_above, data=None, running=None, advise=True, passes=None
):
    """Put a `StallReport` above the threshold into words.

    Args:
        report: the report.
        warn_above: the threshold.
        data: what the user passed to `fit` or `evaluate`, if known.
        running: its `RunningPipeline`, or a live iterator, if it is there.
        advise: whether to say why, and what to change.
        passes: how many epochs there are, from this one on; None: unknown.

    Returns:
        The text and the list of `Advice` in it; the text is None where
        nothing is worth saying.
    """
    if report.not_recorded:
        return (
            f"DataStall: no figures, since {report.not_recorded} fetches of "
            f"batches were not recorded: {TOO_MANY}"
        ), []
    lost, wait, step = (
        report.data_stall_fraction,
        report.wait_ms,
        report.step_ms,
    )
    if lost is None or wait is None:
        return None, []
    stalls = lost > warn_above and not (warn_above and wait < SMALL_WAIT_MS)
    if not advise or not step:
        return (_headline(report) if stalls else None), []
    facts = _facts(report, data, running, passes)
    if stalls:
        given = advice_for(facts)
        return _message(_headline(report), facts, given), given
    late = (report.first_batch_fraction or 0.0) > max(warn_above, LATE_SHARE)
    rules = tfdata_advice.WITHOUT_WAIT
    if warn_above < 1 and late and (report.first_batch_s or 0.0) > LATE_S:
        rules += tfdata_advice.OF_THE_START
    given = [a for a in (rule(facts) for rule in rules) if a is not None]
    if not given or warn_above >= 1:
        return None, []
    headline = "DataStall: the data comes in time, but:"
    return "\n".join([headline, *_advice_lines(given, facts)]), given


def _facts(report, data, running, passes):
    wait = report.wait_ms
    return gather(
        data,
        running,
        wait,
        report.step_ms,
        burst_ms=max(wait - (report.wait_p50_ms or wait), 0.0),
        first_batch_ms=1e3 * (report.first_batch_s or 0.0),
        passes=passes,
        steps=report.steps,
        cpu_ms=report.cpu_ms,
        copy_ms=report.copy_ms,
    )


def _headline(report):
    text = (
        f"DataStall: {report.data_stall_fraction:.0%} of the time went by "
        f"waiting for data: {report.wait_ms:.3g} ms a batch"
    )
    step = report.step_ms
    return text + (f"; a step takes {step:.3g} ms." if step else ".")


def _message(headline, facts, given):
    lines = [headline]
    found = slowest(
        stage_rows(facts.data, facts.kind, facts.stages, facts.running)
    )
    if found is not None:
        name, share = found
        lines.append(f"  Slowest stage: {name}, {share:.0%} of the work.")
    lines += _advice_lines(given, facts)
    made, step = facts.pipeline_ms, facts.step_ms
    if made > (1.1 * step if given else step):
        lines.append(
            f"  To hide the loading altogether the pipeline must give "
            f"{1e3 / step:.3g}\n  batches/s; it gives {1e3 / made:.3g}."
        )
    return "\n".join(lines)


def _advice_lines(given, facts):
    lines = []
    ended = facts.wait_ms + facts.step_ms
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
        gain = advice.gain_ms
        if gain and gain < ended:
            lines.append(
                f"     Gain:   about {gain:.3g} of {ended:.3g} ms a "
                f"batch at best ({gain / ended:.0%})."
            )
    return lines
