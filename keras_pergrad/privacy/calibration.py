"""The noise multiplier that a budget asks for."""

import functools

from keras_pergrad.privacy.accounting import accountant_name, compute_epsilon

_MIN_NOISE, _MAX_NOISE = 0.1, 1e6
#: The grids of losses during the search: a rough one, then a narrower one.
_SEARCH_INTERVAL, _NARROW_INTERVAL = 1e-2, 1e-3


def calibrate_noise(
    make_mechanism, steps, target, *, delta, earlier_phases=(), is_rough=False
):
    """Find the least noise multiplier for which a budget is enough.

    `make_mechanism(noise_multiplier)` returns a `Mechanism`.
    """

    def excess_epsilon(noise, interval=None):
        phases = (*earlier_phases, (make_mechanism(float(noise)), steps))
        return compute_epsilon(phases, delta, interval) - target

    low, high = 0.5, 1.0
    while excess_epsilon(high, _SEARCH_INTERVAL) > 0:
        low, high = high, high * 2
        if high > _MAX_NOISE:
            context = ""
            if earlier_phases:
                spent_epsilon = compute_epsilon(tuple(earlier_phases), delta)
                context = f" after epsilon={spent_epsilon:.4g}, spent before"
            raise ValueError(
                f"No noise is enough for this budget{context}. Received: "
                f"target_epsilon={target}, delta={delta}, {steps} steps of "
                f"batches of {make_mechanism(high).batch_size}. Ask for a "
                "larger epsilon, or for fewer steps."
            )
    # Downwards in small steps: very little noise takes long to account for.
    while low > _MIN_NOISE and excess_epsilon(low, _SEARCH_INTERVAL) <= 0:
        low, high = low / 2, low
    # The intervals get finer, since the finest takes long. Without
    # distributions they make no difference.
    phases = (*earlier_phases, (make_mechanism(high), steps))
    uses_pld = accountant_name(phases) == "PLD"
    stages = [(_SEARCH_INTERVAL, 2e-2), (_NARROW_INTERVAL, 1e-4), (None, 1e-4)]
    stages = stages if uses_pld else [(None, 1e-4)]
    for interval, width in stages[:2] if is_rough else stages:
        stage_excess = functools.partial(excess_epsilon, interval=interval)
        # Often the search on the coarser grids has already come close enough.
        if interval is None and -1e-4 * target < stage_excess(high) <= 0:
            break
        low, high = _bracket_root(stage_excess, low, high, width=width)
        low, high = _narrow_bracket(stage_excess, low, high, width=width)
    return high


def _bracket_root(excess, low, high, *, width):
    """Return an interval that contains the solution, from one that is near."""
    factor = 1 + width
    while low > _MIN_NOISE and excess(low) <= 0:
        low, high, factor = low / factor, low, factor**2
    while excess(high) > 0:
        low, high, factor = high, high * factor, factor**2
    return low, high


def _narrow_bracket(excess, low, high, *, width):
    """Return a narrow interval; the budget is enough at its upper end."""
    from scipy import optimize

    width *= high
    if high - low > width and excess(low) > 0:
        root = optimize.brentq(excess, low, high, xtol=width / 2)
        low, high = root - width / 2, root + width / 2
        # The root is approximate: the upper end must keep to the budget.
        while excess(high) > 0:
            low, high = high, high + width
    return low, high
