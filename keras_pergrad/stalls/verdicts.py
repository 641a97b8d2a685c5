"""The table of verdicts on a pipeline, for `fit` and for `profile_pipeline`.

Both ask how much of the time the model waits for data, and how long the
pipeline alone takes for a batch. The first row that applies is the verdict:

1. The waits are no stall, as `StallReport.stalls` says: not the bottleneck.
2. Their share is no more than two measurements differ by: nearly fast enough.
3. The pipeline alone is slower than the step: the bottleneck.
4. It is fast enough alone, as far as is known, but the two take turns or
   share the cores: not fast enough beside the model.

`profile_pipeline` measures the pipeline alone. `fit` runs both at once: where
they overlap, it knows only that the pipeline alone takes the wait at least.
"""

import dataclasses

from keras_pergrad.stalls.accounting import SMALL_SHARE, SMALL_WAIT_MS

FAST_ENOUGH = "not the bottleneck"
NEARLY_FAST_ENOUGH = "nearly fast enough"
BOTTLENECK = "the bottleneck"
NOT_BESIDE = "not fast enough beside the model"

# Two measurements of the same rate differ by less, even on a busy machine.
NOISE = 0.1


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A verdict on a pipeline.

    Attributes:
        label: The words of a row of the table; None: not known.
        text: One line, which begins with them and gives the reason.
    """

    label: str | None
    text: str

    @property
    def is_bottleneck(self):
        """Whether the pipeline is the bottleneck."""
        return self.label == BOTTLENECK


def _label(report, alone_ms, step_ms):
    """Return the row of the table for a report of pipeline and model.

    Args:
        report: the `StallReport` of both together.
        alone_ms: what the pipeline alone takes for a batch, at least.
        step_ms: what the model takes for one.
    """
    if not report.stalls():
        return FAST_ENOUGH
    if report.data_stall_fraction <= NOISE / (1 + NOISE):
        return NEARLY_FAST_ENOUGH
    return BOTTLENECK if alone_ms > (1 + NOISE) * step_ms else NOT_BESIDE


def fit_verdict(report, overlaps):
    """Return the `Verdict` on an epoch.

    `overlaps`: whether batches are made while the model computes.
    """
    if report.not_recorded:
        lost = f"{report.not_recorded} fetches were not recorded"
        return Verdict(None, f"unknown, since {lost}")
    share, step = report.data_stall_fraction, report.step_ms
    if share is None or not step:
        needs = "it takes two batches, and a step that is not traced"
        return Verdict(None, f"unknown: {needs}")
    wait = report.wait_ms or 0.0
    label = _label(report, wait, step)
    if label == FAST_ENOUGH:
        if share > SMALL_SHARE and wait >= SMALL_WAIT_MS:
            longest = short_number(report.wait_longest_ms)
            return Verdict(
                label,
                f"{label}, but for one wait of {longest} ms "
                f"(step {report.wait_longest_step}): "
                f"{report.fraction_without_longest:.1%} without it",
            )
        waits = f"{share:.1%} of the time goes by waiting for data"
        return Verdict(label, f"{label}: {waits}, {wait:.2g} ms a batch")
    waits = f"{share:.0%} of the time goes by waiting for data"
    alone_ms = wait + (step if overlaps else 0.0)
    needed = (
        f"the pipeline must give {short_number(1e3 / step)} batches/s, "
        f"it gives {short_number(1e3 / alone_ms)}"
    )
    if label == NEARLY_FAST_ENOUGH:
        reason = waits
    elif label == BOTTLENECK:
        reason = needed
    elif overlaps:
        reason = f"{waits}; {needed} while the model computes"
    else:
        reason = f"{waits}, since the pipeline and the model take turns"
    return Verdict(label, f"{label}: {reason}")


def profile_verdict(alone, model, together, *, change):
    """Return the `Verdict` on a profiled pipeline.

    Args:
        alone, model, together: `StallReport`s of the pipeline, of the model on
            a cached batch (or None), and of both.
        change: the change that helps most, in words, or "".
    """
    rate = alone.batches_per_s
    if model is None:
        gives = f"the pipeline gives {short_number(rate)} batches/s"
        return Verdict(None, f"none without a model: {gives}{change}")
    ratio = ratio_text(rate / model.batches_per_s)
    label = _label(together, 1e3 / rate, 1e3 / model.batches_per_s)
    if label == FAST_ENOUGH:
        gives = f"the pipeline gives {ratio} what the model takes"
        return Verdict(label, f"{label}: {gives}")
    share = together.data_stall_fraction
    waits = f"{label}: the model waits {share:.0%} of the time"
    gives = f"the pipeline gives {ratio} what it takes"
    if label == BOTTLENECK:
        return Verdict(label, waits + (change or f", {gives}"))
    return Verdict(label, f"{waits}; alone {gives}{change}")


def short_number(number):
    """Return a number with three digits or more, and no power of ten."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def ratio_text(ratio):
    """Return a ratio in words: "34 times", but "4.7% of"."""
    value, unit = (ratio, " times") if ratio >= 1 else (100 * ratio, "% of")
    return (f"{value:.0f}" if value >= 10 else f"{value:.2g}") + unit
