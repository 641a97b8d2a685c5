"""The table of verdicts on a pipeline, for `fit` and for `profile_pipeline`.

Both ask how much of the time the model waits for data, and how long the
pipeline alone takes for a batch. The first row that applies is the verdict:

1. The waits are no stall, as `stalls` says: not the bottleneck.
2. Their share is no more than two measurements differ by: nearly fast enough.
3. The pipeline alone is slower than the step: the bottleneck.
4. It is fast enough alone, as far as is known, but the two take turns or
   share the cores: not fast enough beside the model.

`profile_pipeline` measures the pipeline alone. `fit` runs both at once: where
they overlap, it knows only that the pipeline alone takes the wait at least.
"""

FAST_ENOUGH = "not the bottleneck"
NEARLY_FAST_ENOUGH = "nearly fast enough"
BOTTLENECK = "the bottleneck"
NOT_BESIDE = "not fast enough beside the model"

#: A stall with a smaller share of the time is no bottleneck.
SMALL_SHARE = 0.05
# Handing a batch over takes a tenth of a millisecond (measured): a wait of
# this length leaves nothing to gain, whatever share of a short step it is.
SMALL_WAIT_MS = 0.2
# Two measurements of the same rate differ by less, even on a busy machine.
NOISE = 0.1


def stalls(stall_share, wait_ms, share_without_longest, above=SMALL_SHARE):
    """Whether waits take more than this share of the time, and are a stall."""
    if stall_share is None or wait_ms is None or stall_share <= above:
        return False
    # A machine that pauses makes one long wait: it takes two for a stall.
    return not above or (
        wait_ms >= SMALL_WAIT_MS and share_without_longest > above
    )


def label_of(is_stalled, stall_share, alone_ms, step_ms):
    """Return the verdict, in words, on waits that are a stall or not.

    Args:
        is_stalled: what `stalls` says.
        stall_share: the share of the time that goes by waiting.
        alone_ms: what the pipeline alone takes for a batch, at least.
        step_ms: what the model takes for one.
    """
    if not is_stalled:
        return FAST_ENOUGH
    if stall_share <= NOISE / (1 + NOISE):
        return NEARLY_FAST_ENOUGH
    if alone_ms > (1 + NOISE) * step_ms:
        return BOTTLENECK
    return NOT_BESIDE
