"""Numbers and lists in words."""

import numpy as np


def relative(value):
    """A share of something: "12 %", "0.3 %", "4e-07", "0"."""
    if not np.isfinite(value):
        return "–" if np.isnan(value) else "∞"
    if value == 0:
        return "0"
    if value < 0.001:
        return f"{value:.0e}"
    return f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def number(value, figures=3):
    """A number to some figures; a dash for none."""
    return "–" if np.isnan(value) else f"{value:.{figures}g}"


def listed(words, most=5):
    """ "a, b and c"; of more than `most` words the number of the others."""
    words = list(map(str, words))
    if len(words) > most:
        words[most:] = [f"{len(words) - most} more"]
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
