"""The noise multiplier that a budget asks for."""

import dataclasses

from keras_pergrad.privacy.accounting import accountant_of, epsilon_of

_LEAST_NOISE, _MOST_NOISE = 0.1, 1e6
#: How finely losses are told apart during the search.
_ROUGH, _CLOSE = 1e-2, 1e-3


def calibrated(mechanism, steps, target, delta, before=()):
    """Return the least noise multiplier for which a budget is enough."""

    def gap(noise, interval=None):
        now = dataclasses.replace(mechanism, noise_multiplier=float(noise))
        phases = (*before, (now, steps))
        return epsilon_of(phases, delta, interval) - target

    low, high = 0.5, 1.0
    while gap(high, _ROUGH) > 0:
        low, high = high, high * 2
        if high > _MOST_NOISE:
            after = ""
            if before:
                already = epsilon_of(tuple(before), delta)
                after = f" after epsilon={already:.4g}, spent before"
            raise ValueError(
                f"No noise is enough for this budget{after}. Received: "
                f"target_epsilon={target}, delta={delta}, {steps} steps of "
                f"batches of {mechanism.batch_size}. Ask for a larger "
                "epsilon, or for fewer steps."
            )
    # Downwards in small steps: very little noise takes long to account for.
    while low > _LEAST_NOISE and gap(low, _ROUGH) <= 0:
        low, high = low / 2, low
    # The intervals get finer, since the finest takes long. Without
    # distributions they make no difference.
    now = dataclasses.replace(mechanism, noise_multiplier=high)
    fine = accountant_of((*before, (now, steps))) == "PLD"
    stages = [(_ROUGH, 2e-2), (_CLOSE, 1e-4), (None, 1e-4)]
    for interval, width in stages if fine else [(None, 1e-4)]:

        def spent(noise, interval=interval):
            return gap(noise, interval)

        if interval is None and -1e-4 * target < spent(high) <= 0:
            break
        low, high = _around(spent, low, high, width)
        low, high = _narrowed(spent, low, high, width)
    return high


def _around(gap, low, high, width):
    """Return an interval that contains the solution, from one that is near."""
    factor = 1 + width
    while low > _LEAST_NOISE and gap(low) <= 0:
        low, high, factor = low / factor, low, factor**2
    while gap(high) > 0:
        low, high, factor = high, high * factor, factor**2
    return low, high


def _narrowed(gap, low, high, width):
    """Return a narrow interval; the budget is enough at its upper end."""
    from scipy import optimize

    width *= high
    if high - low > width and gap(low) > 0:
        root = optimize.brentq(gap, low, high, xtol=width / 2)
        low, high = root - width / 2, root + width / 2
        while gap(high) > 0:
            low, high = high, high + width
    return low, high
