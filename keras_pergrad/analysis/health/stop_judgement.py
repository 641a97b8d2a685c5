"""The end of a training: when to stop."""

import itertools

from keras_pergrad.analysis.health.judgement import HealthAdvice, series

# As many readings in a row must agree.
LAST = 3
# The probe's loss has risen as often in a row, to that much above its least:
# UP 3 and GL 5 of Prechelt, "Early stopping - but when?", 1998.
ABOVE = 1.05


def judge(readings, fit):
    """Advise to stop where the gradient is noise, or the loss rises."""
    if not fit.learned:
        return []
    evidence = series(readings, "gradient_early_stopping")[-LAST:]
    if len(evidence) == LAST and min(evidence) > 0:
        return [
            HealthAdvice(
                "stop",
                f"In the last {LAST} readings the probe's gradient does not "
                "stand out of the noise between samples (evidence "
                f"{min(evidence):.2g} to {max(evidence):.2g}, above 0): the "
                "rest of training fits noise.",
                {"evidence": evidence[-1]},
                is_fault=False,
            )
        ]
    losses = fit.losses
    last = list(itertools.pairwise(losses[-LAST - 1 :]))
    rises = len(last) == LAST and all(a < b for a, b in last)
    if rises and losses[-1] > ABOVE * min(losses):
        best = losses.index(min(losses))
        return [
            HealthAdvice(
                "stop",
                f"The probe's loss was least, {min(losses):.3g}, after "
                f"{readings[best].step} updates, and is {losses[-1]:.3g} "
                "now: the model learns the training samples by heart. Keep "
                "the weights of that time "
                "(keras.callbacks.EarlyStopping(restore_best_weights=True)).",
                {"least_loss": min(losses), "loss": losses[-1]},
                is_fault=False,
            )
        ]
    return []
