"""The one message about a stall: figures, advice, and the verdict."""

import textwrap

from keras_pergrad.common.text import WIDTH
from keras_pergrad.stalls import dataset_advice, loader_advice
from keras_pergrad.stalls.accounting import TOO_MANY_FETCHES
from keras_pergrad.stalls.stages import slowest
from keras_pergrad.stalls.verdicts import short_number

# The first batch is late when it takes this share of an epoch, and long enough
# for a user to notice.
LATE_SHARE, LATE_S = 0.2, 0.1
#: The rules of advice on each kind of data, the first to follow first.
RULES = {**loader_advice.RULES, "dataset": dataset_advice.RULES}
NO_ADVICE = (
    "  No change is known to help. On a busy machine waits may be noise:\n"
    "     measure again: keras_pergrad.diagnose.profile_pipeline(data, model)."
)
#: Of data that the package draws from a source, in stages of its own.
NO_ADVICE_ON_DRAWS = (
    "  The batches are drawn in one thread beside the step. Only a source\n"
    "     that gives its examples faster can help, such as arrays in memory."
)


def advise(facts, stalled=True, starts_late=False):
    """Return the advice on these facts, the first to follow first.

    Without a stall, only that of rules which apply all the same, or to a first
    batch that is late.
    """
    rules = RULES.get(facts.kind, ())
    if not stalled:
        without_stall = dataset_advice.WITHOUT_STALL
        late = dataset_advice.OF_THE_START if starts_late else ()
        rules = [rule for rule in rules if rule in (*without_stall, *late)]
    answers = [rule(facts) for rule in rules]
    return [advice for advice in answers if advice is not None]


def diagnose(facts, warn_above, *, with_advice=True):
    """Return the message and its `Advice`; None if there is nothing to say.

    The message names a stall above the threshold, a mistake or a late start.
    With `with_advice` it says why, and what to change.
    """
    report = facts.report
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
    lines.append(f"  Verdict: {facts.verdict.text}.")
    return "\n".join(lines), advice_list


def _headline(report):
    text = (
        f"DataStall: {report.data_stall_fraction:.0%} of the time went by "
        f"waiting for data: {short_number(report.wait_ms)} ms a batch"
    )
    step = report.step_ms
    return text + (f"; a step takes {short_number(step)} ms." if step else ".")


def _slowest_stage(facts):
    stage = slowest(facts.rows)
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
