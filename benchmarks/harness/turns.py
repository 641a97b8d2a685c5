"""Steps of one process that are timed in turns."""

import statistics
import time


def in_turns(steps, rounds, timed):
    """Times steps in rounds that start with another one each time.

    Args:
        steps: a function of no arguments by name.
        rounds: how often each is timed.
        timed: `timed(name, step)` → milliseconds.

    Returns:
        {name: [milliseconds of each round]}.
    """
    times, order = {name: [] for name in steps}, list(steps)
    for turn in range(rounds):
        shift = turn % len(order)
        for name in order[shift:] + order[:shift]:
            times[name].append(timed(name, steps[name]))
    return times


def milliseconds(step):
    """What a step takes; it waits for its result itself."""
    start = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - start)


def added(more, plain):
    """Return the median of the differences in each turn."""
    return statistics.median(m - p for m, p in zip(more, plain))


def show(times, unit):
    """Prints medians and, with quartiles, their ratios to one of the steps."""
    for name, taken in times.items():
        ratios = [a / b for a, b in zip(taken, times[unit])]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"  {name:24s} {statistics.median(taken):7.1f} ms "
            f"{middle:6.2f} {unit} steps ({low:.2f} to {high:.2f})",
            flush=True,
        )
