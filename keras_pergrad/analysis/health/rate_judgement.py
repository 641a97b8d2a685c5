"""The learning rate: too high, or too low."""

import math

from keras_pergrad.analysis.health import layer_judgement
from keras_pergrad.analysis.health.judgement import (
    HealthAdvice,
    falls,
    median,
    series,
)

# An update that changes weights by this part of themselves replaces them in
# ten updates; a thousandth is usual.
LARGE_UPDATE = 0.1
# The weights have gone as far as they are long, so that nothing is left of how
# they were made, and a hundredth of that in every update.
FAR, PACE = 1.0, 0.01
# The loss would still fall along an update of this many times its length.
LONGER = 20
FEWEST = 3


def judge(readings, fit):
    """Accuse the rate by what updates do to the weights and to the loss."""
    return (
        _broken(readings, fit)
        or _too_high(readings, fit)
        or _too_low(readings, fit)
    )


def _broken(readings, fit):
    for reading, loss in zip(readings, fit.losses):
        if not math.isfinite(loss):
            return [
                _high(
                    f"The loss is {loss:g} after {reading.step} updates.",
                    fit,
                    {"step": reading.step, "loss": loss},
                )
            ]
    return []


def _too_high(readings, fit):
    way, step = _fast_way(readings, fit)
    # Weights that are made of zeros are replaced by any first update.
    updates = series(readings, "gradient_update_ratio")
    updates = updates if any(fit.weight_norms) else []
    alphas = series(readings, "gradient_alpha")
    loss = f"The loss went from {fit.first_loss:.3g} to {fit.losses[-1]:.3g}"
    largest = max(updates, default=0.0)
    if largest * _part(fit) > LARGE_UPDATE or (
        largest > LARGE_UPDATE and not fit.learned
    ):
        why = (
            f"{loss}, while an update changed the weights by "
            f"{largest:.0%} of themselves (usual: about 0.1%)."
        )
    elif fit.learned:
        return []
    elif len(alphas) >= FEWEST and median(alphas) > 1:
        why = (
            f"{loss}: updates end on the far side of the valley, higher than "
            f"they began (alpha {median(alphas):.2g} in the median)."
        )
    elif way > FAR:
        why = (
            f"{loss}, while the weights went {way:.2g} times as far as they "
            f"were long in {step} updates."
        )
    else:
        return []
    figures = {
        "largest_update_ratio": largest,
        "alpha": median(alphas),
        "distance": way,
    }
    dead = layer_judgement.dead(readings)
    if dead:
        why += f" Dead since: {', '.join(map(repr, dead))}."
    return [_high(why, fit, figures)]


def _too_low(readings, fit):
    alphas = series(readings, "gradient_alpha")
    if fit.learned or len(alphas) < FEWEST:
        return []
    gone = [abs(alpha + 1) for alpha in alphas]
    if not median(gone) < 1 / LONGER:
        return []
    # Without a signal alpha is -1, too. With one, a rate that is too low lets
    # the loss fall all the time.
    if not falls(fit.losses):
        return []
    updates = series(readings, "gradient_update_ratio")
    times = 1 / max(median(gone), 1e-3)
    return [
        HealthAdvice(
            "rate_too_low",
            f"The loss went from {fit.first_loss:.3g} to "
            f"{fit.losses[-1]:.3g}, and would still fall along an update "
            f"of {times:.0f} times its length (alpha {median(alphas):.3f}); "
            f"an update changes the weights by {median(updates):.1e} of "
            f"themselves. Raise the learning rate{_now(fit)}, ten times at "
            "first.",
            {
                "alpha": median(alphas),
                "update_ratio": median(updates),
                "learning_rate": fit.rate or math.nan,
            },
        )
    ]


def _high(why, fit, figures):
    figures = {**figures, "learning_rate": fit.rate or math.nan}
    return HealthAdvice(
        "rate_too_high",
        f"{why} Lower the learning rate{_now(fit)}, ten times at first.",
        figures,
    )


def _now(fit):
    return "" if fit.rate is None else f" ({fit.rate:.2g})"


def _part(fit):
    """Return which part of the model's weights is trained, by norm."""
    trained = math.hypot(*fit.weight_norms)
    whole = math.hypot(trained, fit.frozen_norm)
    return trained / whole if whole else 0.0


def _fast_way(readings, fit):
    """Return the longest way at `PACE`, by the first norm, and its updates."""
    length = math.hypot(*fit.weight_norms)
    ways = [(0.0, 0)]
    for reading in readings:
        way = reading.figures.get("gradient_distance", math.nan)
        if length and way / length > PACE * reading.step:
            ways.append((way / length, reading.step))
    return max(ways)
