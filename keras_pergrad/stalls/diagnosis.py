"""The one message about a stall, and the verdict in which it ends."""

import textwrap

from keras_pergrad.common.text import WIDTH
from keras_pergrad.stalls import verdicts
from keras_pergrad.stalls.accounting import TOO_MANY_FETCHES
from keras_pergrad.stalls.advice import advise
from keras_pergrad.stalls.stages import slowest, stage_rows

# The first batch is late when it takes this share of an epoch, and long enough
# for a user to notice.
LATE_SHARE, LATE_S = 0.2, 0.1
NO_ADVICE = (
    "  No change is known to help. On a busy machine waits may be noise:\n"
    "     measure again: keras_pergrad.diagnose.profile_pipeline(data, model)."
)
#: Of data that the package draws from a source, in stages of its own.
NO_ADVICE_ON_DRAWS = (
    "  The batches are drawn in one thread beside the step. Only a source\n"
    "     that gives its examples faster can help, such as arrays in memory."
)


def short_number(number):
    """Return a number with three digits or more, and no power of ten."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def verdict_label(report, facts):
    """Return the words of `label_of` for an epoch; None: not known."""
    if report.data_stall_fraction is None or not report.step_ms:
        return None
    return verdicts.label_of(
        report.stalls(),
        report.data_stall_fraction,
        facts.wait_ms,
        report.step_ms,
    )


def verdict(report, facts):
    """Say in one line whether the data is the bottleneck."""
    if report.not_recorded:
        return f"unknown, since {report.not_recorded} fetches were not recorded"
    label = verdict_label(report, facts)
    if label is None:
        return "unknown: it takes two batches, and a step that is not traced"
    stall_share, wait = report.data_stall_fraction, facts.wait_ms
    waits = f"{stall_share:.0%} of the time goes by waiting for data"
    if label == verdicts.FAST_ENOUGH:
        if (
            stall_share > verdicts.SMALL_SHARE
            and wait >= verdicts.SMALL_WAIT_MS
        ):
            return (
                f"{label}, but for one wait of "
                f"{short_number(report.wait_longest_ms)} ms "
                f"(step {report.wait_longest_step}): "
                f"{report.fraction_without_longest:.1%} without it"
            )
        return (
            f"{label}: {stall_share:.1%} of the time goes by waiting for "
            f"data, {wait:.2g} ms a batch"
        )
    if label == verdicts.NEARLY_FAST_ENOUGH:
        return f"{label}: {waits}"
    needed = (
        f"the pipeline must give {short_number(1e3 / report.step_ms)} "
        f"batches/s, it gives {short_number(1e3 / facts.pipeline_ms)}"
    )
    if label == verdicts.BOTTLENECK:
        return f"{label}: {needed}"
    if facts.overlaps:
        return f"{label}: {waits}; {needed} while the model computes"
    return f"{label}: {waits}, since the pipeline and the model take turns"


def diagnose(report, facts, warn_above, with_advice=True):
    """Return the message and its `Advice`; None if there is nothing to say.

    The message names a stall above the threshold, a mistake or a late start.
    With `with_advice` it says why, and what to change.
    """
    if report.not_recorded:
        return (
            f"DataStall: no figures, since {report.not_recorded} fetches of "
            f"batches were not recorded: {TOO_MANY_FETCHES}"
        ), []
    stalled = report.stalls(warn_above)
    lines, advice_list = [_headline(report)] if stalled else [], []
    if with_advice and report.step_ms and report.wait_ms is not None:
        is_late = (report.first_batch_fraction or 0.0) > max(
            warn_above, LATE_SHARE
        ) and (report.first_batch_s or 0.0) > LATE_S
        if stalled or warn_above < 1:
            advice_list = advise(facts, stalled, is_late)
        if stalled:
            lines += _slowest_stage(facts)
            is_drawn = facts.kind == "drawn"
            nothing = NO_ADVICE_ON_DRAWS if is_drawn else NO_ADVICE
            lines += [] if advice_list else [nothing]
        elif advice_list:
            lines = ["DataStall: the data comes in time, but:"]
        lines += _advice_lines(advice_list, facts)
    if not lines:
        return None, []
    return "\n".join(
        [*lines, f"  Verdict: {verdict(report, facts)}."]
    ), advice_list


def _headline(report):
    text = (
        f"DataStall: {report.data_stall_fraction:.0%} of the time went by "
        f"waiting for data: {short_number(report.wait_ms)} ms a batch"
    )
    step = report.step_ms
    return text + (f"; a step takes {short_number(step)} ms." if step else ".")


def _slowest_stage(facts):
    stage = slowest(
        stage_rows(facts.data, facts.kind, facts.stages, facts.running)
    )
    if stage is None:
        return []
    name, share = stage
    return [f"  Slowest stage: {name}, {share:.0%} of the work."]


def _advice_lines(advice_list, facts):
    lines = []
    batch_ms = facts.wait_ms + facts.step_ms
    for number, advice in enumerate(advice_list, 1):
        cause, gain = advice.cause, advice.gain_ms
        if gain and gain < batch_ms:
            cause += (
                f" Saves at most {short_number(gain)} of "
                f"{short_number(batch_ms)} ms a batch."
            )
        lines += textwrap.wrap(
            cause,
            WIDTH,
            initial_indent=f"  {number}. ",
            subsequent_indent=" " * 5,
        )
        first, *more = advice.code.split("\n")
        lines.append(f"     Write:  {first}")
        lines += [" " * 13 + line for line in more]
    return lines
