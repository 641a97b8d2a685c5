"""The advice that readings of a training give."""

from collections.abc import Sequence

from keras_pergrad.analysis.health import (
    batch_judgement,
    data_judgement,
    layer_judgement,
    rate_judgement,
    stop_judgement,
)
from keras_pergrad.analysis.health.fit_record import Fit
from keras_pergrad.analysis.health.judgement import HealthAdvice
from keras_pergrad.analysis.health.reading import HealthReading

__all__ = ["HealthAdvice", "advise"]


def advise(readings: Sequence[HealthReading], fit: Fit) -> list[HealthAdvice]:
    """Return the advice on a training, faults first.

    A cause is named instead of what follows from it: where the loss sums over
    the batch, nothing is said of the rate, which it multiplies.
    """
    if not readings or not fit.losses or fit.first_loss is None:
        return []
    causes = [
        *data_judgement.summed_loss(fit),
        *data_judgement.unnormalised_inputs(readings, fit),
    ]
    rate = [] if causes else rate_judgement.judge(readings, fit)
    layers = (
        [] if causes or rate else layer_judgement.not_learning(readings, fit)
    )
    origins = layer_judgement.wrongly_trained(readings, fit)
    faults = [*causes, *rate, *layers, *origins]
    if not faults:
        faults = data_judgement.unrelated_labels(readings, fit)
    if faults:
        return faults
    return [
        *batch_judgement.judge(readings, fit),
        *stop_judgement.judge(readings, fit),
    ]
